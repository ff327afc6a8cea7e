"""Time in which simulated ranks could poll, for telling a livelock from a loop that ends by itself.

On a machine that other processes use too, the wall clock goes on while this process does not run: half a second of it may hold a
hundred polls or ten thousand. Ranks that sleep between polls, on the other hand, need hardly any processor time.
"""

from __future__ import annotations

from time import perf_counter, process_time
from typing import NamedTuple

__all__ = ["Moment"]

_OF_THE_WALL = 10
"""Seconds of the wall clock that count as one of polling where the processor did something else: ranks may sleep between polls."""


class Moment(NamedTuple):
    """Wall-clock time, and the processor time of this process."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Moment:
        return cls(perf_counter(), process_time())

    def until(self, later: Moment) -> float:
        """Seconds in which ranks could poll. On a busy machine few of them are this process's own."""
        wall = later.wall - self.wall
        # Threads of libraries may use more processor time than passes.
        return max(min(later.processor - self.processor, wall), wall / _OF_THE_WALL)
