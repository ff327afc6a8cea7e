"""The files ``rank-R.*`` that the ranks of a supervised job write, and that its supervisor reads.

- ``pid``: the process of the rank (:class:`RankProcess`); written by its wrapper, ``rank.py``
- ``hooked``: empty, written once the exit hooks are installed (:mod:`adjointlab.supervisor.exit_hooks`)
- ``finished``: written by a hooked rank when its interpreter ends in order. A command of the lab writes its exit code there before exit
  handlers of user code run; a command within a script leaves it empty, because others may follow
- ``stacks``: stacks of the rank's threads, upon a fatal signal or when the supervisor asks for them
- ``exit``: a call of ``os._exit``, with its stack
- ``ended``: the end of the rank's process (:class:`RankEnd`); written by its wrapper
- ``tests``: events of its pytest session (:mod:`adjointlab.supervisor.pytest_results`); the only one kept over restarts
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

__all__ = ["RankEnd", "RankFiles", "RankProcess"]

T = TypeVar("T")

_KILLS: Final = (signal.SIGKILL, signal.SIGTERM)


class RankProcess(msgspec.Struct, frozen=True):
    """The process of a rank. Process ids are valid only on their host."""

    pid: int
    host: str


class RankEnd(msgspec.Struct, frozen=True):
    """End of the process of a rank.

    `status` is its exit code, or minus the number of the signal that killed it; `regular` is True if its interpreter
    ended in order; `at` is the time, in seconds since the epoch. `asked_by` is a signal that the launcher has sent before, or 0.
    """

    status: int
    regular: bool
    at: float
    asked_by: int = 0


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank."""

    folder: Path
    rank: int

    def path(self, suffix: str) -> Path:
        """The file with that suffix."""
        return self.folder / f"rank-{self.rank}.{suffix}"

    @property
    def is_hooked(self) -> bool:
        """True once the rank's exit hooks are installed."""
        return self.path("hooked").exists()

    @property
    def is_finished(self) -> bool:
        """True once the interpreter of a hooked rank ends in order."""
        return self.path("finished").exists()

    @property
    def process(self) -> RankProcess | None:
        """The rank's process, once it has started."""
        return self._decoded("pid", RankProcess)

    @property
    def end(self) -> RankEnd | None:
        """The end of the rank, once it has ended."""
        return self._decoded("ended", RankEnd)

    @property
    def last_end(self) -> RankEnd | None:
        """The end of the rank, once the job is over. It counts as in order if the process was killed after its work was finished.

        The launcher kills a rank when another one exits by ``_exit`` without finalizing MPI, as user code may do in an exit handler.
        """
        end = self.end
        if (end is not None and (end.regular or -end.status not in _KILLS)) or not (
            code := self.text("finished")
        ):
            return end
        return RankEnd(int(code), True, 0.0 if end is None else end.at) if code.isdigit() else end

    @property
    def has_died(self) -> bool:
        """True if the rank ended out of order."""
        return (end := self.end) is not None and not end.regular

    def text(self, suffix: str) -> str:
        """The content of a text file; empty if it does not exist."""
        try:
            return self.path(suffix).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _decoded(self, suffix: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(self.path(suffix).read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None
