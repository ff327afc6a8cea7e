"""All of them."""

from __future__ import annotations

from . import algebra, calls, memory, ranks, sums

FAULTS = tuple(
    sorted(
        (fault for room in (sums, ranks, memory, calls, algebra) for fault in room.FAULTS),
        key=lambda f: f.number,
    )
)
RIGHT = tuple(subject for room in (sums, ranks, memory, calls, algebra) for subject in room.RIGHT)
