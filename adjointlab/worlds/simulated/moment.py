"""Time in which simulated ranks could poll, to distinguish a livelock from a loop that terminates.

On a busy machine, wall-clock time passes while this process does not run: half a second may allow a
hundred polls or ten thousand. Ranks that sleep between polls, on the other hand, use hardly any processor time.
"""

from __future__ import annotations

from time import perf_counter, process_time
from typing import NamedTuple

__all__ = ["Moment"]

_OF_THE_WALL = 10
"""Wall-clock seconds that count as one second of polling if this process did not run: ranks may sleep between polls."""


class Moment(NamedTuple):
    """Wall-clock time, and the processor time of this process."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Moment:
        return cls(perf_counter(), process_time())

    def until(self, later: Moment) -> float:
        """Seconds in which ranks could poll: processor time, but at least a fraction of the wall-clock time."""
        wall = later.wall - self.wall
        # With threads of libraries, processor time may exceed wall-clock time.
        return max(min(later.processor - self.processor, wall), wall / _OF_THE_WALL)
