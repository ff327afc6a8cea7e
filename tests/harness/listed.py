"""Operators that list all their cases: a right one, and wrong ones that only a proof tells from it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np

import adjointlab as al
from adjointlab.program import Program, buffers, move_to_new


class Shift(al.LinearOperator):
    """Moves every worker's block one worker to the right, and says so in a program."""

    gain = fan_in = 1
    batched = True

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm, self.domain = comm, al.Space(layout)
        self.codomain = al.Space(layout, name="y")
        self.size = layout.partition.size

    def specification(self) -> Program:
        x, y = buffers(self.domain), buffers(self.codomain)
        pairs = [(x[rank], y[(rank + 1) % self.size]) for rank in range(self.size)]
        return Program(x, [step for pair in pairs for step in move_to_new(*pair)])

    def forward(self, x: Any) -> Any:
        return self.shifted(x, 1)

    def adjoint(self, y: Any) -> Any:
        return self.shifted(y, -1)

    def shifted(self, x: Any, step: int) -> Any:
        rank = self.comm.Get_rank()
        result = np.empty(x.shape, x.dtype)
        self.comm.Sendrecv(
            np.ascontiguousarray(x), (rank + step) % self.size, 0, result, (rank - step) % self.size, 0
        )
        return result


class LosesTheThirdInBoth(Shift):
    """A fault that forward and adjoint share: no dot test sees it."""

    def shifted(self, x: Any, step: int) -> Any:
        result = super().shifted(x, step)
        result[2:3] = 0
        return result


class LosesTheThird(Shift):
    def adjoint(self, y: Any) -> Any:
        result = super().adjoint(y)
        result[2:3] = 0
        return result


class RightInBatchesAlone(Shift):
    def shifted(self, x: Any, step: int) -> Any:
        result = super().shifted(x, step)
        return result if x.ndim > 1 else 2 * result


def equal_blocks(*, ranks: int = 3, side: int = 3) -> Iterator[tuple[int, dict[str, Any]]]:
    for size in range(1, ranks + 1):
        for width in range(side + 1):
            yield size, {"layout": al.Layout((size * width,), al.Partition((size,)))}


def broken_list(*, ranks: int = 3) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from equal_blocks(ranks=ranks)
    if multiprocessing.parent_process() is not None:
        raise RuntimeError("the list ends here")


def drawn(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": al.Layout((ranks,), al.Partition((ranks,)))}


right = al.subject(Shift, every=equal_blocks)(drawn)
loses_in_both = al.subject(LosesTheThirdInBoth, every=equal_blocks)(drawn)
loses = al.subject(LosesTheThird, every=equal_blocks)(drawn)
right_in_batches = al.subject(RightInBatchesAlone, every=equal_blocks)(drawn)
breaks = al.subject(Shift, every=broken_list)(drawn)
lists_nothing = al.subject(Shift)(drawn)
