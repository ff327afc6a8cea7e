"""Failures and layouts that the tests of pictures draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import adjointlab as al
from adjointlab.check_result import CheckResult
from adjointlab.core.program import Add, Allocate, Deallocate, buffers_by_rank
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.session import run_check
from tests.samples import RingShift, equal_blocks

HOSTILE = "<script>alert('&\"x\"')</script>\x1b[31m:rocket: [bold]"
"""A name that is markup for a browser, a terminal, and rich."""

LAYOUTS = {
    "cut": al.Layout((7,), al.Partition((3,))),
    "halos": al.Layout((10,), al.Partition((3,)), [[(0, 5), (3, 8), (6, 10)]]),
    "padding": al.Layout((10,), al.Partition((3,)), [[(-1, 4), (4, 7), (7, 11)]]),
    "gaps": al.Layout((10,), al.Partition((3,)), [[(1, 4), (5, 7), (7, 9)]]),
    "empty": al.Layout((5,), al.Partition((3,), (5, 2, 0)), [[(0, 0), (0, 5), (5, 5)]]),
    "copies": al.Layout((3,), al.Partition((2,)), axes=[None]),
    "scalar": al.Layout((), al.Partition(())),
    "grid": al.Layout((4, 6), al.Partition((2, 3))),
    "overlapping grid": al.Layout((4, 6), al.Partition((2, 2)), [[(0, 3), (1, 4)], [(0, 4), (2, 6)]]),
    "three dimensions": al.Layout((2, 3, 4), al.Partition((1, 2, 2))),
    "long": al.Layout((1_000_000,), al.Partition((5,)), [[(0, 3), (3, 4), (4, 5), (5, 999_999), (999_999, 1_000_000)]]),
    "wide": al.Layout((3000, 4000), al.Partition((2, 3))),
    "many ranks": al.Layout((2000,), al.Partition((1000,))),
    "nothing": al.Layout((0, 3), al.Partition((2, 1))),
}  # fmt: skip


class SpecifiedShift(RingShift):
    """Moves blocks as its specification says but for the last element, which it loses in both directions."""

    def specification(self) -> al.Program:
        sources = buffers_by_rank(self.domain)
        targets = {rank: type(b)(rank, "y", b.shape, b.dtype) for rank, b in sources.items()}
        size = len(sources)
        steps: list[Any] = [Allocate(target) for target in targets.values()]
        steps += [Add(sources[rank].whole, targets[(rank + 1) % size].whole) for rank in sources]
        steps += [Deallocate(source) for source in sources.values()]
        return al.Program(sources.values(), steps)

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.codomain = al.Space(layout, name="y")

    def shifted(self, x: Any, step: int) -> Any:
        # The last element of rank 0 is lost on its way to rank 1, and back.
        last = self.comm.Get_rank() == 0
        if step == 1 and last:
            x = x.copy()
            x[-1:] = 0
        result = super().shifted(x, step)
        if step == -1 and last:
            result[-1:] = 0
        return result


class FirstCome(RingShift):
    """Takes the message that comes first for that of the left neighbour."""

    def forward(self, x: Any) -> Any:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        if rank:
            self.comm.Send(np.array(x), 0, 3)
            return np.zeros_like(x)
        received = np.array(x)
        for _ in range(1, size):
            self.comm.Recv(received, al.MPI.ANY_SOURCE, 3)
        return received

    def adjoint(self, y: Any) -> Any:
        return np.zeros_like(y)


def specified(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


def failure(
    subject: Subject, check: str, folder: Path, world: al.SimulatedWorld, schedules: int = 1, seed: int = 1
) -> CheckResult:
    """The failure that a check finds of a subject."""
    return run_check(world, found_as(subject), check, Budget(20, 4, seed, 5.0, schedules), folder)
