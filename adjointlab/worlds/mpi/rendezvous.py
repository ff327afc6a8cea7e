"""Meetings of all processes that do not hang when somebody stays away.

The front ends run a good deal of code outside any world: they parse options, import files, run other people's tests.
Before they do something together they meet here and compare what each is about to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, NamedTuple

from mpi4py import MPI

from adjointlab.worlds.mpi.backoff import pause
from adjointlab.worlds.mpi.keepalive import keep_alive

__all__ = ["RanksDiverged", "Rendezvous"]

_TAG: Final = 1
_GRACE: Final = 2.0
"""Seconds that latecomers get once it is known that the meeting has failed."""


class _Word(NamedTuple):
    """What one process tells another: where it is, and what it brings; `last` if it comes to no more meetings."""

    label: str
    payload: Any
    last: bool


class RanksDiverged(Exception):
    """The processes did not come to the same meeting."""

    def __init__(self, labels: tuple[str | None, ...], departures: dict[int, Any]) -> None:
        self.labels = labels
        """Where each rank is; `None` where that is unknown."""
        self.departures = departures
        """The farewells of the ranks that have gone, by rank."""
        super().__init__(self.account())

    def account(self) -> str:
        """Who is where, one line for each place."""
        places: dict[str | None, list[int]] = {}
        for rank, label in enumerate(self.labels):
            places.setdefault("has left" if rank in self.departures else label, []).append(rank)
        return "\n".join(
            f"  rank {', '.join(map(str, ranks))}: {'not heard of' if label is None else label}"
            for label, ranks in places.items()
        )


class Rendezvous:
    """All processes of an MPI communicator (default: ``COMM_WORLD``). Making one is collective.

    `patience` is how many seconds a meeting waits for everybody.
    """

    def __init__(self, comm: MPI.Intracomm | None = None, patience: float = 300.0) -> None:
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        self.patience = patience
        self._heard: list[deque[_Word]] = [deque() for _ in range(self.size)]
        self._sending: list[MPI.Request] = []
        self.has_left = False

    def allgather(self, label: str, payload: Any = None) -> list[Any]:
        """Collective: everybody's payload, in rank order, if all have come to the meeting `label`.

        Raises :class:`RanksDiverged` if some rank is at another meeting, has left, or does not come in time. There is no
        telling then which words belong together: leave.
        """
        self._tell(_Word(label, payload, last=False))
        self._await(
            lambda: all(self._heard),
            self.patience,
            lambda: any(not self._is_at(label, w) for w in self._heard),
        )
        if not all(self._is_at(label, words) and words for words in self._heard):
            raise RanksDiverged(
                tuple(words[0].label if words else None for words in self._heard), self.departures()
            )
        return [words.popleft().payload for words in self._heard]

    def departures(self) -> dict[int, Any]:
        """The farewells that have come in, by rank."""
        self._listen()
        return {rank: words[-1].payload for rank, words in enumerate(self._heard) if words and words[-1].last}

    def depart(self, payload: Any) -> None:
        """Say farewell to all, without waiting."""
        if not self.has_left:
            self.has_left = True
            self._tell(_Word("", payload, last=True))

    def depart_together(self, payload: Any, patience: Callable[[], float]) -> list[Any]:
        """Collective: everybody's farewell, in rank order; `None` for those who did not leave in time.

        `patience` may change its mind while the ranks wait.
        """
        self.depart(payload)
        self._await(lambda: len(self.departures()) == self.size and not self._sending, patience)
        gone = self.departures()
        return [gone.get(rank) for rank in range(self.size)]

    def abort(self, code: int) -> None:
        """End all processes at once: some do not answer, so that nobody could leave MPI in order."""
        self._comm.Abort(code)

    @staticmethod
    def _is_at(label: str, words: deque[_Word]) -> bool:
        return not words or (words[0].label == label and not words[0].last)

    def _tell(self, word: _Word) -> None:
        self._heard[self.rank].append(word)
        for rank in range(self.size):
            if rank != self.rank:
                self._sending.append(self._comm.isend(word, rank, _TAG))

    def _listen(self) -> None:
        self._sending = [request for request in self._sending if not request.Test()]
        for rank, words in enumerate(self._heard):
            while rank != self.rank and (message := self._comm.improbe(rank, _TAG)) is not None:
                words.append(message.recv())

    def _await(
        self,
        ready: Callable[[], bool],
        patience: float | Callable[[], float],
        hopeless: Callable[[], bool] = lambda: False,
    ) -> None:
        started = monotonic()
        lost_at: float | None = None
        while True:
            self._listen()
            now = monotonic()
            if ready() and (lost_at is not None or not self._sending):
                return
            if lost_at is None and hopeless():
                lost_at = now
            limit = patience() if callable(patience) else patience
            if now - started > limit or (lost_at is not None and now - lost_at > _GRACE):
                # What has not gone out by now may never do; its buffers stay.
                for request in self._sending:
                    keep_alive(request)
                self._sending = []
                return
            pause(now - started)
