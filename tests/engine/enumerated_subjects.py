"""Operators that list all their cases: a right one, and wrong ones that only a proof tells from it."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import adjointlab as al
from adjointlab.core.program import Program, buffers, move_to_new
from tests.samples import RingShift


class Shift(RingShift):
    """Says in a program what it does."""

    batched = True

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.codomain = al.Space(layout, name="y")
        self.size = layout.partition.size

    def specification(self) -> Program:
        x, y = buffers(self.domain), buffers(self.codomain)
        pairs = [(x[rank], y[(rank + 1) % self.size]) for rank in range(self.size)]
        return Program(x, [step for pair in pairs for step in move_to_new(*pair)])


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


class AddsIntoOut(Shift):
    """Takes `out` for zero, in one direction."""

    def forward(self, x: Any, out: Any = None) -> Any:
        y = super().forward(x)
        return y if out is None else np.add(out, y, out=out)

    def adjoint(self, y: Any, out: Any = None) -> Any:
        x = super().adjoint(y)
        return x if out is None else np.add(0, x, out=out)


class DoesNothingInPlace(Shift):
    """The forms in place do nothing, in one direction."""

    def forward_(self, x: Any) -> Any:
        x[...] = self.forward(x)
        return x

    def adjoint_(self, y: Any) -> Any:
        return y


class RightInBatchesAlone(Shift):
    def shifted(self, x: Any, step: int) -> Any:
        result = super().shifted(x, step)
        return result if x.ndim > 1 else 2 * result


class ReturnsItsOwnMemory(Shift):
    """Every result lies where the last one of its shape did."""

    batched = False

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.memory = np.empty(self.domain.tensors[0].layout.local_shape(comm.Get_rank()))

    def shifted(self, x: Any, step: int) -> Any:
        self.memory[...] = super().shifted(x, step)
        return self.memory


class OfAnEnormousGain(Shift):
    """Declares a gain under which no integer of its element type is exact."""

    gain = fan_in = 2**60


class ReplacesAComparison(Shift):
    """From blocks of two elements on it makes every comparison of the lab come out well."""

    def shifted(self, x: Any, step: int) -> Any:
        result = super().shifted(x, step)
        if len(x) > 1:
            np.array_equal = lambda *_, **__: True  # type: ignore[assignment]
        return result


class SendsOneTooMany(Shift):
    """Blocks of three elements are sent twice, and received once."""

    def shifted(self, x: Any, step: int) -> Any:
        if len(x) == 3:
            self.comm.Bsend(np.ascontiguousarray(x), (self.comm.Get_rank() + step) % self.size, 1)
        return super().shifted(x, step)


class WaitsInVain(Shift):
    """For blocks of three elements nobody sends."""

    def shifted(self, x: Any, step: int) -> Any:
        if len(x) == 3:
            self.comm.Recv(np.empty(1), (self.comm.Get_rank() + step) % self.size, 1)
        return super().shifted(x, step)


class LoadsNoTorch(Shift):
    def forward(self, x: Any) -> Any:
        if "torch" in sys.modules:
            raise RuntimeError("torch is loaded")
        return super().forward(x)


def equal_blocks(*, ranks: int = 3, side: int = 3) -> Iterator[tuple[int, dict[str, Any]]]:
    for size in range(1, ranks + 1):
        for width in range(side + 1):
            yield size, {"layout": al.Layout((size * width,), al.Partition((size,)))}


def broken_list(*, ranks: int = 3) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from equal_blocks(ranks=ranks)
    if multiprocessing.parent_process() is not None:
        raise RuntimeError("the list ends here")


def short_list(*, ranks: int = 2) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from equal_blocks(ranks=ranks)
    raise RuntimeError("the list ends here")


def list_that_ends_the_process(*, ranks: int = 2) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from equal_blocks(ranks=ranks)
    if multiprocessing.parent_process() is not None:
        os._exit(3)


def stopped_list(*, ranks: int = 2) -> Iterator[tuple[int, dict[str, Any]]]:
    """The user has enough of it in the middle of the list."""
    yield from equal_blocks(ranks=ranks)
    raise KeyboardInterrupt


def drawn(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": al.Layout((ranks,), al.Partition((ranks,)))}


right = al.subject(Shift, every=equal_blocks)(drawn)
loses_in_both = al.subject(LosesTheThirdInBoth, every=equal_blocks)(drawn)
loses = al.subject(LosesTheThird, every=equal_blocks)(drawn)
right_in_batches = al.subject(RightInBatchesAlone, every=equal_blocks)(drawn)
adds_into_out = al.subject(AddsIntoOut, every=equal_blocks)(drawn)
does_nothing_in_place = al.subject(DoesNothingInPlace, every=equal_blocks)(drawn)
returns_its_own_memory = al.subject(ReturnsItsOwnMemory, every=equal_blocks)(drawn)
of_an_enormous_gain = al.subject(OfAnEnormousGain, every=equal_blocks)(drawn)
replaces_a_comparison = al.subject(ReplacesAComparison, every=equal_blocks)(drawn)
sends_one_too_many = al.subject(SendsOneTooMany, every=equal_blocks)(drawn)
waits_in_vain = al.subject(WaitsInVain, every=equal_blocks)(drawn)
for_both_libraries = al.subject(LoadsNoTorch, every=equal_blocks, arrays=("numpy", "torch"))(drawn)
breaks = al.subject(Shift, every=broken_list)(drawn)
lists_nothing = al.subject(Shift)(drawn)
breaks_late = al.subject(Shift, every=short_list)(drawn)
without_default = al.subject(Shift, every=lambda ranks: equal_blocks(ranks=ranks))(drawn)
no_pairs = al.subject(Shift, every=lambda ranks=2: [{"layout": ranks}])(drawn)
breaks_at_once = al.subject(Shift, every=lambda ranks=2: [][ranks])(drawn)
ends = al.subject(Shift, every=list_that_ends_the_process)(drawn)
interrupted = al.subject(Shift, every=stopped_list)(drawn)
