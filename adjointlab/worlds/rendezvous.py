"""An all-gather between all processes that does not hang when somebody stays away.

The front ends run a good deal of code outside any world: they parse options, import files, run other people's tests.
Any of that may fail, or take another turn, on one rank only. So before the ranks do something together they come here
and compare what each is about to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from adjointlab.worlds.polling import Channel, poll_until

__all__ = ["RanksDiverged", "Rendezvous"]

_TAG: Final = 1
_GRACE: Final = 2.0
"""Seconds that latecomers get once the ranks are known to have diverged, so that the report can say where they are."""


class _Arrival(NamedTuple):
    """A rank is at `label` and brings `payload`; after a departure it comes to no other."""

    label: str
    payload: Any
    is_departure: bool


class RanksDiverged(Exception):
    """The processes did not come to the same point of the program.

    Made from each rank's label (`None` where that is unknown). `departures` are the last payloads of the ranks that have
    left for good, by rank.
    """

    def __init__(self, labels: tuple[str | None, ...], departures: dict[int, Any]) -> None:
        self.departures = departures
        ranks_at: dict[str, list[int]] = {}
        for rank, label in enumerate(labels):
            text = "has left" if rank in departures else "no message" if label is None else label
            ranks_at.setdefault(text, []).append(rank)
        lines = (f"  rank {', '.join(map(str, ranks))}: {text}" for text, ranks in ranks_at.items())
        super().__init__("\n".join(lines))


class Rendezvous:
    """All processes of a job, over a `channel` of its own. Making one is collective.

    `patience` is how many seconds the first rank waits for the last.
    """

    def __init__(self, channel: Channel, patience: float = 300.0) -> None:
        self._channel = channel
        self.rank, self.size = channel.rank, channel.size
        self.patience = patience
        # A fast rank may be several points ahead of a slow one, so its arrivals queue up.
        self._arrivals: list[deque[_Arrival]] = [deque() for _ in range(self.size)]
        self._has_departed = False

    def allgather(self, label: str, payload: Any = None) -> list[Any]:
        """Return everybody's payload, in rank order, once all ranks are at `label`; collective.

        Raises :class:`RanksDiverged` if some rank is at another label, has left, or does not come in time. Nobody can
        say then which arrivals belong together: depart.
        """

        def diverged() -> bool:
            return any(queue and not is_here(queue[0]) for queue in self._arrivals)

        def is_here(arrival: _Arrival) -> bool:
            return arrival.label == label and not arrival.is_departure

        # Everybody tells everybody: no rank has to be there for the others to learn who is missing.
        self._announce(_Arrival(label, payload, is_departure=False))
        self._wait_for(lambda: all(self._arrivals), lambda: self.patience, diverged)
        if diverged() or not all(self._arrivals):
            labels = tuple(queue[0].label if queue else None for queue in self._arrivals)
            raise RanksDiverged(labels, self.departures())
        return [queue.popleft().payload for queue in self._arrivals]

    def departures(self) -> dict[int, Any]:
        """Return the last payloads of the ranks that have left so far, by rank."""
        self._collect()
        last = {rank: queue[-1] for rank, queue in enumerate(self._arrivals) if queue}
        return {rank: arrival.payload for rank, arrival in last.items() if arrival.is_departure}

    def depart(self, payload: Any) -> None:
        """Tell all others that this rank leaves for good, without waiting; only the first time counts."""
        if not self._has_departed:
            self._has_departed = True
            self._announce(_Arrival("", payload, is_departure=True))

    def depart_together(self, payload: Any, patience: Callable[[], float]) -> list[Any]:
        """Return everybody's last payload, in rank order, or `None` for a rank that did not leave in time; collective.

        `patience` is asked again and again: what other ranks leave with may shorten the wait.
        """
        self.depart(payload)
        # The end of MPI need not deliver what was sent and not yet received, so the rank stays until its own has gone out.
        self._wait_for(lambda: len(self.departures()) == self.size and self._channel.all_sent(), patience)
        departures = self.departures()
        return [departures.get(rank) for rank in range(self.size)]

    def leave(self, patience: float) -> None:
        """Leave after rank 0 where the launcher would end that one, for no longer than `patience`."""
        self._channel.leave(patience)

    def abort(self, code: int) -> None:
        """End all processes at once: some do not answer, so nobody could leave in order."""
        self._channel.end_job(code)

    def _announce(self, arrival: _Arrival) -> None:
        self._arrivals[self.rank].append(arrival)
        self._channel.send_to_others(arrival, _TAG)

    def _collect(self) -> None:
        # From each rank apart: only the messages of one sender keep their order.
        for rank, queue in enumerate(self._arrivals):
            while rank != self.rank and (arrival := self._channel.poll(rank, _TAG)) is not None:
                queue.append(arrival)

    def _wait_for(
        self,
        ready: Callable[[], bool],
        patience: Callable[[], float],
        diverged: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until all are `ready` and this rank's messages have gone out; or until there is no point in waiting."""
        waited, diverged_after, is_over = 0.0, float("inf"), False

        def look(seconds: float) -> None:
            nonlocal waited, diverged_after, is_over
            waited = seconds
            if diverged():
                diverged_after = min(waited, diverged_after)
            is_over = waited > patience() or waited - diverged_after > _GRACE

        def done() -> bool:
            self._collect()
            # Once the ranks have diverged, those that wait at other points need not be receiving any more.
            is_sent = self._channel.all_sent() or diverged_after <= waited
            return is_over or (ready() and is_sent)

        poll_until(done, look, polls=1)
        if is_over:
            self._channel.abandon_unsent()
