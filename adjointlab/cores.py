"""The processor cores that this process may use."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from typing import TypeAlias

__all__ = ["Cores", "are_crowded", "cores", "own_cores"]

Cores: TypeAlias = frozenset[tuple[str, int]]
"""Processor cores: the name of the machine, and the number there."""


def cores() -> int:
    """Number of cores that this process may use, which in a container or a batch job may be fewer than the machine has."""
    return len(own_cores())


def own_cores() -> Cores:
    """Return the cores that this process may use; all cores of the machine if the system cannot tell."""
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return frozenset((socket.gethostname(), number) for number in numbers)


def are_crowded(processes: Collection[Cores]) -> bool:
    """Return True if there are more processes than cores; `processes` has the cores that each process may use.

    The cores of a single process would not show this: a launcher may bind it to one core, and others may run on other machines.
    """
    return len(processes) > len(frozenset().union(*processes))
