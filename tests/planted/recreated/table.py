"""All recreated faults, and the same operators without the fault."""

from __future__ import annotations

from tests.planted.recreated import algebra, calls, memory, ranks, sums

_MODULES = (sums, ranks, memory, calls, algebra)

FAULTS = tuple(
    sorted((fault for module in _MODULES for fault in module.FAULTS), key=lambda fault: fault.source)
)
RIGHT = tuple(subject for module in _MODULES for subject in module.RIGHT)
