"""Cases of the memory operations and of SendReceive, which copies or moves between the memories of two workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.engine.subject import subject
from adjointlab.primitives.memory import Add, Allocate, Clear, Copy, Deallocate, Move
from adjointlab.primitives.send_receive import SendReceive
from adjointlab.primitives.subjects import building_blocks as blocks
from adjointlab.primitives.subjects.building_blocks import DTYPES, LIBRARIES, Parameters, SizedCase

__all__ = ["adds", "allocates", "clears", "copies", "deallocates", "moves", "send_receives"]


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
    return {**_buffers(draw, ranks), "in_place": draw(st.booleans())}


allocates = subject(Allocate, arrays=LIBRARIES, every=_every_buffer)(_buffers)
deallocates = subject(Deallocate, arrays=LIBRARIES, every=_every_buffer)(_buffers)
clears = subject(Clear, arrays=LIBRARIES, every=_every_buffer)(_buffers)
adds = subject(Add, arrays=LIBRARIES, every=_every_buffer)(_buffers)
copies = subject(Copy, arrays=LIBRARIES, every=_every_buffer_in_both_forms)(_buffers_in_both_forms)
moves = subject(Move, arrays=LIBRARIES, every=_every_buffer_in_both_forms)(_buffers_in_both_forms)


def _every_send_receive(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[SizedCase]:
    """Any two workers, both forms."""
    for world in range(1, ranks + 1):
        for dims, source, target, form in product(
            range(order + 1), range(world), range(world), ("copy", "move")
        ):
            partition = Partition((1,) * dims, [source])
            for shape in blocks.shapes(dims, side):
                yield world, {"layout": Layout(shape, partition), "destination": target, "form": form}


@subject(SendReceive, arrays=LIBRARIES, every=_every_send_receive)
def send_receives(draw: DrawFn, ranks: int) -> Parameters:
    """Any two workers, or one that sends to itself."""
    source = draw(st.integers(0, ranks - 1))
    order = draw(st.integers(0, 3))
    return {
        "layout": Layout(draw(strategies.shapes(order)), Partition((1,) * order, [source])),
        "destination": draw(st.integers(0, ranks - 1)),
        "form": draw(st.sampled_from(("copy", "move"))),
        "dtype": draw(DTYPES),
    }
