"""Worlds on the processes of MPI that run a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def made(*, least: int = 1, **options: Any) -> Any:
    """A world with these options; skips the test where it has less than the `least` number of ranks."""
    from adjointlab.worlds.mpi.world import MPIWorld

    world = MPIWorld(**options)
    if world.ranks < least:
        pytest.skip(f"{least} processes are needed: run under mpiexec -n 3")
    return world


@contextmanager
def opened(**given: Any) -> Iterator[Any]:
    """The world that :func:`made` makes, closed in the end."""
    world = made(**given)
    yield world
    world.close()
