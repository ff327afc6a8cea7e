"""Interface of the current run for the replacements of mpi4py's and torch's names, and its refusal of calls that would bypass it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol

from adjointlab.worlds.run import FindingKind

__all__ = ["CurrentRun", "NotedRefusals"]

_OPERATIONS_KEPT: Final = (
    "mpi4py supports only a few operations per process, and a check makes many operators: make the operation once, at module level, "
    "or free it when the operator is deleted"
)


class CurrentRun(Protocol):
    """The run in progress."""

    def communicator(self) -> Any:
        """The run's communicator for the rank of the calling thread; raises in a thread that does not belong to a rank."""

    def refuse(self, reason: str, kind: FindingKind = FindingKind.PAST_THE_RUN) -> NoReturn:
        """Raise, and record a finding of that `kind`, so that the run fails even if user code catches the exception."""

    def operation(self, kind: Any, create: Callable[..., Any], function: Any, commute: bool) -> Any:
        """Make a reduction operation of user code: an object of `kind`, mpi4py's class, as `create`, its ``Create``, would make."""


class NotedRefusals:
    """Base of runs that record their refusals in a list."""

    def __init__(self, refused: list[str]) -> None:
        self._refused = refused

    def refuse(self, reason: str, kind: FindingKind = FindingKind.PAST_THE_RUN) -> NoReturn:
        """Raise, and record the reason."""
        self._refused.append(reason)
        raise RuntimeError(reason)

    def operation(self, kind: Any, create: Callable[..., Any], function: Any, commute: bool) -> Any:
        """Make mpi4py's own operation; if mpi4py has reached its limit, add advice to the error."""
        try:
            return create(function, commute)
        except RuntimeError as error:
            error.add_note(_OPERATIONS_KEPT)
            raise
