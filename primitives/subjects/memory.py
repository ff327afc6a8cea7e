"""Cases of the memory operations, of Transfer, which changes the kind of memory, and of SendReceive, between two workers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import prod

from hypothesis.strategies import DrawFn

from adjointlab.core import arrays, strategies
from adjointlab.core.kept_strategies import BOOLEANS, choices, integers
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition
from adjointlab.core.program import Program
from adjointlab.primitives.memory import Add, Allocate, Clear, Copy, Deallocate, Move
from adjointlab.primitives.send_receive import SendReceive
from adjointlab.primitives.subjects import building_blocks as blocks
from adjointlab.primitives.subjects.building_blocks import DTYPES, Parameters, SizedCase, primitive_subject
from adjointlab.primitives.transfer import Transfer
from adjointlab.typing import Array, Communicator

__all__ = ["adds", "allocates", "clears", "copies", "deallocates", "moves", "send_receives", "transfers"]


def _every_buffer(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[SizedCase]:
    """Buffers of every layout."""
    for grid in blocks.grids(ranks, order):
        for layout in blocks.layouts(Partition(grid), side):
            yield prod(grid), {"layout": layout}


def _every_buffer_in_both_forms(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[SizedCase]:
    """Buffers of every layout, in place and out of place."""
    for world, parameters in _every_buffer(ranks=ranks, order=order, side=side):
        for in_place in (False, True):
            yield world, {**parameters, "in_place": in_place}


def _buffers(draw: DrawFn, ranks: int) -> Parameters:
    """Buffers on any workers."""
    return blocks.layout_and_dtype(draw, ranks)


def _buffers_in_both_forms(draw: DrawFn, ranks: int) -> Parameters:
    """Buffers on any workers, in place and out of place."""
    return {**_buffers(draw, ranks), "in_place": draw(BOOLEANS)}


allocates = primitive_subject(Allocate, every=_every_buffer)(_buffers)
deallocates = primitive_subject(Deallocate, every=_every_buffer)(_buffers)
clears = primitive_subject(Clear, every=_every_buffer)(_buffers)
adds = primitive_subject(Add, every=_every_buffer)(_buffers)
copies = primitive_subject(Copy, every=_every_buffer_in_both_forms)(_buffers_in_both_forms)
moves = primitive_subject(Move, every=_every_buffer_in_both_forms)(_buffers_in_both_forms)


def _every_send_receive(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[SizedCase]:
    """Any two workers, both forms."""
    for world in range(1, ranks + 1):
        for dims, source, target, form in product(
            range(order + 1), range(world), range(world), ("copy", "move")
        ):
            partition = Partition((1,) * dims, [source])
            for shape in blocks.shapes(dims, side):
                yield world, {"layout": Layout(shape, partition), "destination": target, "form": form}


@primitive_subject(SendReceive, every=_every_send_receive)
def send_receives(draw: DrawFn, ranks: int) -> Parameters:
    """Any two workers, or one that sends to itself."""
    source = draw(integers(0, ranks - 1))
    order = draw(integers(0, 3))
    return {
        "layout": Layout(draw(strategies.shapes(order)), Partition((1,) * order, [source])),
        "destination": draw(integers(0, ranks - 1)),
        "form": draw(choices(("copy", "move"))),
        "dtype": draw(DTYPES),
    }


class _Detour(LinearOperator):
    """A transfer to another memory and back: the identity, in which each way is a transfer in its forward or adjoint direction."""

    symbol = "M*M"
    batched = True

    def __init__(
        self, comm: Communicator, layout: Layout, by: str, *, pinned: bool = False, dtype: str = "float64"
    ) -> None:
        self.comm = comm
        self._make = partial(Transfer, comm, layout, pinned=pinned, dtype=dtype)
        self._by = by
        self._there = self._make("torch", "torch")
        self.domain, self.codomain = self._there.domain, self._there.codomain
        self.gain = self.fan_in = 1

    def specification(self) -> Program:
        """That of one transfer, since a second one between the same memories changes nothing."""
        return self._there.specification()

    def forward(self, x: Array) -> Array:
        """To the other memory, and by the adjoint back."""
        transfer = self._make(arrays.memory_of(x), self._by)
        return transfer.adjoint(transfer.forward(x))

    def adjoint(self, y: Array) -> Array:
        """By the adjoint to the other memory, and back."""
        transfer = self._make(self._by, arrays.memory_of(y))
        return transfer.forward(transfer.adjoint(y))


def _every_transfer(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[SizedCase]:
    """Buffers of every layout, by way of NumPy's memory, which is always available."""
    for world, parameters in _every_buffer(ranks=ranks, order=order, side=side):
        yield world, {**parameters, "by": "numpy"}


@primitive_subject(_Detour, every=_every_transfer, name="Transfer")
def transfers(draw: DrawFn, ranks: int) -> Parameters:
    """By way of any memory that has the element type, through pinned memory or not."""
    drawn = blocks.layout_and_dtype(draw, ranks)
    memories = [
        each
        for each in arrays.MEMORIES
        if arrays.installed(each) and arrays.supports(each, str(drawn["dtype"]))
    ]
    return {**drawn, "by": draw(choices(tuple(memories))), "pinned": draw(BOOLEANS)}
