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
    """The cores that this process may use, where the system says which: a container or a batch system may grant fewer than all."""
    return len(own_cores())


def own_cores() -> Cores:
    """The cores that this process may use: all of its machine where the system does not say which."""
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return frozenset((socket.gethostname(), number) for number in numbers)


def are_crowded(processes: Collection[Cores]) -> bool:
    """Return True if there are more processes than cores, each of which may use these.

    Of one process alone its cores say nothing: a launcher may give it one of its own, and others may run on other machines.
    """
    return len(processes) > len(frozenset().union(*processes))
