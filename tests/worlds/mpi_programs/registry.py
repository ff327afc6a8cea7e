"""Registry of the programs, and what they share.

Each program is a function of a communicator and of the module of its constants. What it returns on each rank follows from
the standard alone: no choice of an implementation shows. It is run by raw mpi4py, by the guarded communicator and by
simulated ranks (:mod:`tests.worlds.test_conformance`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "ERRORS",
    "PROGRAMS",
    "constant_name",
    "counts",
    "error",
    "named",
    "neighbours",
    "plain",
    "program",
    "ramp",
    "starts",
    "status_values",
]

Program = Callable[[Any, Any], Any]

PROGRAMS: dict[str, Program] = {}
ERRORS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def error(function: Program) -> Program:
    """Register a call that MPI (or mpi4py) refuses, on every rank, before anything is sent."""
    ERRORS[function.__name__] = function
    return function


def plain(value: Any) -> Any:
    """Convert a result to values that compare with ==, the same in all worlds."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def ramp(comm: Any, count: int, dtype: str = "d") -> np.ndarray:
    return (10 * comm.Get_rank() + np.arange(count)).astype(dtype)


def counts(comm: Any) -> list[int]:
    """Uneven counts, with none for rank 1."""
    return [0 if rank == 1 else rank + 1 for rank in range(comm.Get_size())]


def starts(comm: Any) -> list[int]:
    """Displacements with a gap of one element before every block."""
    return [sum(counts(comm)[:rank]) + rank + 1 for rank in range(comm.Get_size())]


def neighbours(comm: Any) -> tuple[int, int]:
    return (comm.Get_rank() - 1) % comm.Get_size(), (comm.Get_rank() + 1) % comm.Get_size()


def status_values(mpi: Any, status: Any) -> list[Any]:
    """Source, tag and size in a status, with constants by their names."""
    return [
        named(mpi, status.Get_source(), "PROC_NULL", "ANY_SOURCE"),
        named(mpi, status.Get_tag(), "ANY_TAG"),
        status.Get_count(mpi.BYTE),
    ]


def constant_name(mpi: Any, value: Any) -> Any:
    return named(mpi, value, "PROC_NULL", "UNDEFINED")


def named(mpi: Any, value: Any, *names: str) -> Any:
    """Name of the constant that `value` equals, compared as user code does."""
    return next((name for name in names if value == getattr(mpi, name)), value)
