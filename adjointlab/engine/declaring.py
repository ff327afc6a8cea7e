"""Text for a message: the declaration that would turn an object into a subject."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any, Final, TypeGuard

from adjointlab.core.operator import LinearOperator

__all__ = ["how_to_declare", "how_to_declare_in", "is_operator", "is_torch_module"]

_SUFFIXES: Final = ("adjoint", "transpose", "transposed", "backward")
_SPACES: Final = ("        space = adjointlab.Space(draw(adjointlab.strategies.layouts(ranks)))",)


def how_to_declare(value: object, name: str, module: ModuleType) -> str:
    """A declaration of the form that fits `value`, the variable `name` of `module`; by default that of an operator."""
    return f"declare one beside it:\n\n{_declaration(value, name, module)}"


def how_to_declare_in(module: ModuleType) -> str:
    """A declaration for the last operator that `module` defines, or else torch module, autograd function, or function with an adjoint."""
    own = {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }
    paired = [name for name, value in own.items() if _is_function(value) and _adjoint_of(name, own)]
    for names in (*([name for name in own if is_one(own[name])] for is_one in _CLASSES), paired):
        if names:
            return how_to_declare(own[names[-1]], names[-1], module)
    return how_to_declare(None, "MyOperator", module)


def _is_function(value: object) -> bool:
    return isinstance(value, FunctionType)


def is_operator(value: object) -> TypeGuard[type[Any]]:
    """Return True for a class of linear operators, also one that does not derive from the lab's."""
    return inspect.isclass(value) and (issubclass(value, LinearOperator) or hasattr(value, "adjoint"))


def is_torch_module(value: object) -> bool:
    """Return True for a class of torch modules."""
    return _derives(value, "torch.nn.modules.module", "Module")


def _is_autograd(value: object) -> bool:
    return _derives(value, "torch.autograd.function", "Function")


def _derives(value: object, module: str, name: str) -> bool:
    """Return True for a class that derives from a class of another library, which need not be imported."""
    bases = inspect.getmro(value) if inspect.isclass(value) else ()
    return any((base.__module__, base.__name__) == (module, name) for base in bases)


_CLASSES: Final = (is_operator, is_torch_module, _is_autograd)


def _declaration(value: object, name: str, module: ModuleType) -> str:
    is_distributed = _uses_torch_distributed(module)
    option = ", process_group=True" if is_distributed else ""
    if is_torch_module(value):
        return _of_layer(value, name)
    if _is_autograd(value):
        forward = _names(getattr(value, "forward", None))
        return _of_functions(f"autograd({name}{option})", forward[3 - is_distributed :])
    if _is_function(value) and _names(value)[:1] != ["draw"]:
        adjoint = _adjoint_of(name, vars(module)) or f"{name}_adjoint"
        return _of_functions(
            f"pair(forward={name}, adjoint={adjoint}{option})", _names(value)[2 - is_distributed :]
        )
    if is_distributed and not is_operator(value):
        return _of_functions(f"autograd(function{option})", [])
    return _of_operator(value, name) if is_operator(value) else _of_operator(None, "MyOperator")


def _uses_torch_distributed(module: ModuleType) -> bool:
    """Return True if `module` has imported torch.distributed, or something from it."""
    homes = (
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        for value in vars(module).values()
    )
    return any(isinstance(home, str) and f"{home}.".startswith("torch.distributed.") for home in homes)


def _of_operator(operator: type[Any] | None, name: str) -> str:
    arguments = [each for each in _names(operator) if "comm" not in each] or ["layout"]
    drawn = {"layout": "draw(adjointlab.strategies.layouts(ranks))"}
    given = ", ".join(f"{argument}={drawn.get(argument, '...')}" for argument in arguments)
    lines = [
        f"    @adjointlab.subject.operator({name})",
        "    def cases(draw, ranks):",
        f"        return dict({given})  # the arguments of one case",
    ]
    if operator is not None and not issubclass(operator, LinearOperator):
        lines.append(
            f"\nHere {name} has to derive from adjointlab.LinearOperator, to be made as {name}(comm, ...), and to have `domain` and `codomain`."
        )
    return _text(*lines)


def _of_functions(form: str, arguments: Sequence[str]) -> str:
    given = "".join(f", {argument}=..." for argument in arguments)
    return _text(
        f"    @adjointlab.subject.{form}",
        "    def cases(draw, ranks):",
        *_SPACES,
        f"        return dict(domain=space, codomain=space{given})  # spaces of x and of the result, arguments of a case",
    )


def _of_layer(module_class: object, name: str) -> str:
    arguments = _names(module_class)
    takes_communicator = any("comm" in first for first in arguments[:1])
    given = "".join(f", {argument}=..." for argument in arguments[takes_communicator:])
    by_process_group = "" if takes_communicator else ", process_group=True"
    return _text(
        f"    @adjointlab.subject.layer({name}, sequential=MySequential{by_process_group})  # the twin: without ranks, with the same arguments",
        "    def cases(draw, ranks):",
        *_SPACES,
        f"        return dict(domain=space, codomain=space, parameter_space=...{given})  # spaces and arguments of a case",
    )


def _text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def _names(function: object) -> list[str]:
    """The names of the required parameters of a function or class; empty if Python cannot determine them."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]  # refused below
    except (TypeError, ValueError):
        return []
    return [
        each.name
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and each.default is each.empty
    ]


def _adjoint_of(name: str, among: dict[str, object]) -> str | None:
    """The function `among` these whose name says that it is the adjoint of `name`, such as ``exchange_adjoint``."""
    names = (each for suffix in _SUFFIXES for each in (f"{name}_{suffix}", name.replace("forward", suffix)))
    return next((each for each in names if each != name and _is_function(among.get(each))), None)
