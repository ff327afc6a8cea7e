"""All of them."""

from __future__ import annotations

from tests.planted.recreated import algebra, calls, memory, ranks, sums

FAULTS = tuple(
    sorted(
        (fault for module in (sums, ranks, memory, calls, algebra) for fault in module.FAULTS),
        key=lambda f: f.source,
    )
)
RIGHT = tuple(subject for module in (sums, ranks, memory, calls, algebra) for subject in module.RIGHT)
