"""Legal arguments of the decorators that declare subjects: each function raises :class:`SubjectError` for any others."""

from __future__ import annotations

import inspect
from typing import Any, Final

from adjointlab.core.declaration import SubjectError
from adjointlab.core.operator import LinearOperator
from adjointlab.engine.declaring import is_torch_module
from adjointlab.engine.options import Options
from adjointlab.engine.parallel import MakeOptimizer
from adjointlab.spelling import described_type

__all__ = [
    "WHAT_TO_CHECK",
    "require_functions",
    "require_makers",
    "require_no_reference",
    "require_operator",
    "require_optimizer",
    "require_own_group",
    "require_truths",
]

WHAT_TO_CHECK = (
    "@subject needs to know what to check: @subject.operator(MyOperator), @subject.pair(forward=..., adjoint=...), "
    "@subject.autograd(function) or @subject.layer(layer, sequential=...)"
)


_ON_OTHER_LIBRARIES: Final = ": give functions that call its `matvec` and `rmatvec` to @subject.pair; docs/adapters.md has an adapter for those of PyLops-MPI"


def require_operator(operator: Any) -> None:
    """Require a class of linear operators, or a function that makes one."""
    if not callable(operator):
        raise SubjectError(WHAT_TO_CHECK)
    if not inspect.isclass(operator):
        # Decorating a strategy without parentheses hands over the strategy for the operator.
        if list(inspect.signature(operator).parameters)[:1] == ["draw"]:
            raise SubjectError(WHAT_TO_CHECK)
        return
    for method in ("forward", "adjoint"):
        if not callable(getattr(operator, method, None)):
            # SciPy's name for the adjoint, which PyLops uses too.
            advice = _ON_OTHER_LIBRARIES if hasattr(operator, "rmatvec") else ""
            raise SubjectError(
                f"{operator.__name__} has no method `{method}`; the lab checks forward against adjoint{advice}"
            )
    if not issubclass(operator, LinearOperator):
        raise SubjectError(
            f"{operator.__name__} is not an adjointlab.LinearOperator; derive it from that class, or give its methods as "
            "@subject.pair(forward=..., adjoint=...)"
        )
    if abstract := getattr(operator, "__abstractmethods__", None):
        raise SubjectError(f"{operator.__name__} does not define {', '.join(sorted(abstract))}")


def require_optimizer(optimizer: MakeOptimizer | None, steps: int, method: str) -> None:
    """Require an optimiser and a number of steps, or neither."""
    given: object = steps
    if not isinstance(given, int):
        raise SubjectError(f"steps: {given!r} is not a whole number")
    if steps < 0 or bool(steps) != (optimizer is not None):
        raise SubjectError(f"@subject.{method} takes `steps` of at least 1 together with an `optimizer`")
    if optimizer is not None and not callable(optimizer):
        raise SubjectError(
            f"optimizer: {described_type(optimizer)} is not a function that makes one of a list of parameters: give "
            "functools.partial(torch.optim.SGD, lr=0.1), say"
        )


_MAY_BE_NONE: Final = frozenset({"before_backward", "after_backward", "every", "reference"})


def require_functions(**given: object) -> None:
    """Require functions; those that may be left out may be None."""
    for name, value in given.items():
        if not callable(value) and not (value is None and name in _MAY_BE_NONE):
            raise SubjectError(f"{name}: {described_type(value)} is not a function")


def require_makers(**given: object) -> None:
    """Require functions that make a module, or its class, in the place of the module."""
    for name, value in given.items():
        if is_torch_module(type(value)):
            raise SubjectError(
                f"{name}: {described_type(value)} is a module, and each case needs a new one: give a function that makes it, or a class"
            )


def require_truths(**given: object) -> None:
    """Require `True` or `False`."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise SubjectError(f"{name}: {value!r} is neither True nor False")


def require_own_group(options: Options, method: str) -> None:
    """Require that the option of a process group is not off."""
    if not options.get("process_group", True):
        raise SubjectError(
            f"process_group: False, and @subject.{method} is for torch.distributed code: leave it out"
        )


def require_no_reference(options: Options, method: str, instead: str) -> None:
    """Require that there is no option `reference`; `instead` says why."""
    if options.get("reference") is not None:
        raise SubjectError(f"@subject.{method} takes no `reference`: {instead}")
