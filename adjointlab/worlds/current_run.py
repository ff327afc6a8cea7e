"""The run that ranks live in, as the names of mpi4py and of torch ask for it, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol

from adjointlab.worlds.run import FindingKind

__all__ = ["CurrentRun", "NotedRefusals"]

_OPERATIONS_KEPT: Final = (
    "mpi4py has room for few operations in a process, and a check makes many operators: make the operation once, where its module is "
    "imported, or free it when the operator goes"
)


class CurrentRun(Protocol):
    """The run that ranks live in."""

    def communicator(self) -> Any:
        """The communicator of the run, of the rank that the calling thread is; raises in a thread that is no rank's."""

    def refuse(self, reason: str, kind: FindingKind = FindingKind.PAST_THE_RUN) -> NoReturn:
        """Raise, and let the run not pass for a good one even if user code catches that. The finding is of that `kind`."""

    def operation(self, kind: Any, create: Callable[..., Any], function: Any, commute: bool) -> Any:
        """A reduction operation of user code: an object of `kind`, mpi4py's class, which its `create` would make."""


class NotedRefusals:
    """A run that notes its refusals for the case, in a list that it is given."""

    def __init__(self, noted: list[str]) -> None:
        self._noted = noted

    def refuse(self, reason: str, kind: FindingKind = FindingKind.PAST_THE_RUN) -> NoReturn:
        """Raise, and note it."""
        self._noted.append(reason)
        raise RuntimeError(reason)

    def operation(self, kind: Any, create: Callable[..., Any], function: Any, commute: bool) -> Any:
        """That of mpi4py; where it has no room for more, the error says why."""
        try:
            return create(function, commute)
        except RuntimeError as error:
            error.add_note(_OPERATIONS_KEPT)
            raise
