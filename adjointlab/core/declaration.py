"""A subject as it is declared: the error of a wrong one, and whether functions take the arguments that cases have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from adjointlab.spelling import did_you_mean

__all__ = ["SubjectError", "has_parameter", "require_accepts"]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class SubjectError(TypeError):
    """A subject is incomplete or declared wrongly; the message says what is missing or wrong."""


def require_accepts(
    role: str,
    function: Callable[..., Any],
    positional: Sequence[str],
    arguments: Mapping[str, object],
    declarations: Collection[str] = (),
) -> None:
    """Raise :class:`SubjectError` unless `function` can be called with so many positional arguments and these by name.

    `role` is the function's in the subject, such as "the adjoint"; `declarations` are further entries that a strategy's dictionary
    may have, which are not passed on. A function that does not tell its parameters is taken to accept all.
    """
    with suppress(TypeError, ValueError):  # of a builtin, say, or one that has no hash
        if _binds(function, len(positional), tuple(arguments)):
            return
    try:
        signature = _signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*positional, **arguments)
    except TypeError as error:
        fault = _fault(signature, positional, arguments, declarations) or f"cannot be called so: {error}"
        name = getattr(function, "__name__", type(function).__name__)
        call = ", ".join((*positional, *(f"{name}=…" for name in arguments)))
        raise SubjectError(
            f"{role} is called as {name}({call}), but {name}{_names(signature)} {fault}"
        ) from None


def _fault(
    signature: inspect.Signature,
    positional: Sequence[str],
    arguments: Mapping[str, object],
    declarations: Collection[str],
) -> str:
    """The reason why a function cannot be called so, with advice; empty for none that is known here."""
    parameters = signature.parameters
    lacks_comm = "comm" in positional and "comm" not in parameters
    if lacks_comm and _fits(signature, len(positional) - 1, arguments):
        return (
            "takes no communicator: say process_group=True in the subject if it communicates by torch.distributed; give a "
            "function that leaves it out if it uses MPI.COMM_WORLD, such as lambda comm, x: function(x); else let it take the communicator, first of all, or behind the tensors in an autograd function"
        )
    known = [name for name, each in parameters.items() if each.kind in _NAMED]
    unknown = [name for name in arguments if name not in known]
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    if takes_any or not unknown:
        return ""
    if unknown[0] in declarations:  # as `gain` of a pair is, where the other function takes it
        return f"takes no `{unknown[0]}`"
    bound = list(parameters)[: len(positional)]
    by_name_only = inspect.Parameter.KEYWORD_ONLY
    free = [
        name
        for name in known
        if name not in arguments and (name not in bound or parameters[name].kind is by_name_only)
    ]
    return f"takes no `{unknown[0]}`{did_you_mean(unknown[0], (*free, *declarations))}"


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Return True if `function` has a parameter of this very name.

    Any name fits ``**``: it counts where a decorator passes that on to a function that has the parameter.
    """
    try:
        parameters = _signature(function).parameters.values()
    except (TypeError, ValueError):  # of a builtin, say
        return False
    if any(each.name == name and each.kind in _NAMED for each in parameters):
        return True
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    behind = getattr(function, "__wrapped__", None)
    return takes_any and behind is not None and has_parameter(behind, name)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, follow_wrapped=False)  # what a decorator takes


@lru_cache(maxsize=64)  # every rank of every case asks
def _binds(function: Callable[..., Any], positional: int, named: tuple[str, ...]) -> bool:
    """Return True if a function can be called so. Raises what `inspect.signature` raises."""
    return _fits(_signature(function), positional, named)


def _fits(signature: inspect.Signature, positional: int, named: Iterable[str]) -> bool:
    try:
        signature.bind(*range(positional), **dict.fromkeys(named))
    except TypeError:
        return False
    return True


def _names(signature: inspect.Signature) -> str:
    """The parameters of a function, without annotations and defaults."""
    bare = [
        each.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        for each in signature.parameters.values()
    ]
    # Not as a signature, in which a parameter with a default may not come before one without.
    return f"({', '.join(map(str, bare))})"
