"""An all-gather between all processes that does not hang if one of them stays away.

The front ends run a good deal of code outside any world: they parse options, import files, run other people's tests.
Any of that may fail, or take another branch, on one rank only. So before a collective step the ranks meet here and compare
what each is about to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from adjointlab.worlds.polling import Channel, poll_until

__all__ = ["RanksDiverged", "Rendezvous"]

_TAG: Final = 1
_GRACE: Final = 2.0
"""Seconds to wait for late ranks once divergence is known, so that the report can name where they are."""


class _Arrival(NamedTuple):
    """Message that a rank is at `label` with `payload`; a departure is its last one."""

    label: str
    payload: Any
    is_departure: bool


class RanksDiverged(Exception):
    """The processes did not reach the same point of the program.

    `labels` has each rank's label (`None` if unknown). `departures` has the last payloads of the ranks that have left for
    good, by rank.
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
    """Meeting point of all processes of a job, over a dedicated `channel`. The constructor is collective.

    `patience` is how many seconds the first rank waits for the last.
    """

    def __init__(self, channel: Channel, patience: float = 300.0) -> None:
        self._channel = channel
        self.rank, self.size = channel.rank, channel.size
        self.patience = patience
        # A fast rank may be several points ahead of a slow one, so its messages queue up.
        self._arrivals: list[deque[_Arrival]] = [deque() for _ in range(self.size)]
        self._has_departed = False

    def allgather(self, label: str, payload: Any = None) -> list[Any]:
        """Return the payloads of all ranks, in rank order, once all are at `label`; collective.

        Raises :class:`RanksDiverged` if some rank is at another label, has left, or does not arrive in time. After that, messages
        can no longer be assigned to a common point, so the caller should depart.
        """

        def diverged() -> bool:
            return any(queue and not is_here(queue[0]) for queue in self._arrivals)

        def is_here(arrival: _Arrival) -> bool:
            return arrival.label == label and not arrival.is_departure

        # All-to-all rather than through a root, so that no single rank is needed to find out who is missing.
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
        """Announce to all others that this rank leaves for good, without waiting. Only the first call counts."""
        if not self._has_departed:
            self._has_departed = True
            self._announce(_Arrival("", payload, is_departure=True))

    def depart_together(self, payload: Any, patience: Callable[[], float]) -> list[Any]:
        """Return the last payloads of all ranks, in rank order, or `None` for a rank that did not leave in time; collective.

        `patience` is called repeatedly, because the payloads of other ranks may shorten the wait.
        """
        self.depart(payload)
        # MPI_Finalize need not deliver messages that were not received yet, so the rank stays until its own are sent.
        self._wait_for(lambda: len(self.departures()) == self.size and self._channel.all_sent(), patience)
        departures = self.departures()
        return [departures.get(rank) for rank in range(self.size)]

    def leave(self, patience: float) -> None:
        """Leave after rank 0, if the launcher would otherwise end it; wait no longer than `patience`."""
        self._channel.leave(patience)

    def abort(self, code: int) -> None:
        """End all processes at once: since some do not answer, no rank could leave in order."""
        self._channel.end_job(code)

    def _announce(self, arrival: _Arrival) -> None:
        self._arrivals[self.rank].append(arrival)
        self._channel.send_to_others(arrival, _TAG)

    def _collect(self) -> None:
        # Per sender, because only messages from the same sender are ordered.
        for rank, queue in enumerate(self._arrivals):
            while rank != self.rank and (arrival := self._channel.poll(rank, _TAG)) is not None:
                queue.append(arrival)

    def _wait_for(
        self,
        ready: Callable[[], bool],
        patience: Callable[[], float],
        diverged: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until `ready` holds and this rank's messages are sent; or until patience or, after divergence, the grace period is over."""
        waited, diverged_after, is_over = 0.0, float("inf"), False

        def look(seconds: float) -> None:
            nonlocal waited, diverged_after, is_over
            waited = seconds
            if diverged():
                diverged_after = min(waited, diverged_after)
            is_over = waited > patience() or waited - diverged_after > _GRACE

        def done() -> bool:
            self._collect()
            # Ranks that have diverged may no longer receive, so their messages are not waited for.
            is_sent = self._channel.all_sent() or diverged_after <= waited
            return is_over or (ready() and is_sent)

        poll_until(done, look, polls=1)
        if is_over:
            self._channel.abandon_unsent()
