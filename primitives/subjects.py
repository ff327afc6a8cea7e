"""How the cases of the built-in primitives are drawn (entry-point group ``adjointlab.subjects``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab import strategies
from adjointlab.harness.subject import subject
from adjointlab.layout import Layout
from adjointlab.partition import Partition
from adjointlab.primitives import exhaustive
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.broadcast_rules import broadcast_pattern
from adjointlab.primitives.memory import Add, Allocate, Clear, Copy, Deallocate, Move
from adjointlab.primitives.send_receive import SendReceive
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = [
    "adds",
    "all_sum_reduces",
    "allocates",
    "broadcasts",
    "clears",
    "copies",
    "deallocates",
    "moves",
    "send_receives",
    "sum_reduces",
]

_LIBRARIES = ("numpy", "torch")
_DTYPES = strategies.dtypes(bfloat16=True, integers=True)


@st.composite
def _laid_along(draw: DrawFn, partition: Partition, dims: Iterable[int]) -> Layout:
    """A tensor cut along some of the dimensions `dims` of a partition, in any order; copies lie along the others."""
    free: list[int | None] = [*dims]
    axes: Sequence[int | None] = free
    if len(free) != partition.order or draw(st.booleans()):
        axes = draw(st.permutations([*free, None]))[: draw(st.integers(0, 3))]
    shape = draw(strategies.shapes(len(axes)))
    parts = [1 if axis is None else partition.shape[axis] for axis in axes]
    ends = [draw(strategies.cuts(side, count)) for side, count in zip(shape, parts, strict=True)]
    return Layout.cut(shape, partition, ends, axes)


@subject(Broadcast, arrays=_LIBRARIES, every=exhaustive.broadcasts)
def broadcasts(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """P_x and P_y of different orders and on any ranks, transposed or not; tensors cut along P_x or copied."""
    pair = draw(strategies.broadcasting_partitions(ranks))
    return {
        "layout": draw(_laid_along(pair["source"], range(pair["source"].order))),
        "partition": pair["destination"],
        "dtype": draw(_DTYPES),
        "transpose_src": pair["transpose_src"],
        "transpose_dest": pair["transpose_dest"],
        "preserve_batch": draw(st.booleans()),
    }


@subject(SumReduce, arrays=_LIBRARIES, every=exhaustive.sum_reduces)
def sum_reduces(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """The partitions of a broadcast, the other way round; tensors cut along what is not summed over."""
    pair = draw(strategies.broadcasting_partitions(ranks))
    pattern = broadcast_pattern(
        pair["source"],
        pair["destination"],
        transpose_one=pair["transpose_src"],
        transpose_many=pair["transpose_dest"],
    )
    return {
        "layout": draw(_laid_along(pair["destination"], sorted(pattern.kept.values()))),
        "partition": pair["source"],
        "dtype": draw(_DTYPES),
        "transpose_src": pair["transpose_dest"],
        "transpose_dest": pair["transpose_src"],
        "preserve_batch": draw(st.booleans()),
    }


@subject(AllSumReduce, arrays=_LIBRARIES, every=exhaustive.all_sum_reduces)
def all_sum_reduces(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any partition, summed over any of its dimensions; tensors cut along the others."""
    partition = draw(strategies.partitions(ranks, whole=False))
    dims = draw(st.permutations(range(partition.order)))[: draw(st.integers(0, partition.order))]
    return {
        "layout": draw(_laid_along(partition, (dim for dim in range(partition.order) if dim not in dims))),
        "dims": tuple(dims),
        "dtype": draw(_DTYPES),
    }


@subject(SendReceive, arrays=_LIBRARIES, every=exhaustive.send_receives)
def send_receives(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any two workers, or one that sends to itself."""
    source = draw(st.integers(0, ranks - 1))
    order = draw(st.integers(0, 3))
    return {
        "layout": Layout(draw(strategies.shapes(order)), Partition((1,) * order, [source])),
        "destination": draw(st.integers(0, ranks - 1)),
        "form": draw(st.sampled_from(("copy", "move"))),
        "dtype": draw(_DTYPES),
    }


def _layout_and_dtype(draw: DrawFn, ranks: int) -> dict[str, Any]:
    return {
        "layout": draw(strategies.layouts(ranks, whole=False)),
        "dtype": draw(_DTYPES),
    }


@subject(Allocate, arrays=_LIBRARIES, every=exhaustive.memory_operations)
def allocates(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Buffers on any workers."""
    return _layout_and_dtype(draw, ranks)


@subject(Deallocate, arrays=_LIBRARIES, every=exhaustive.memory_operations)
def deallocates(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Buffers on any workers."""
    return _layout_and_dtype(draw, ranks)


@subject(Clear, arrays=_LIBRARIES, every=exhaustive.memory_operations)
def clears(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Buffers on any workers."""
    return _layout_and_dtype(draw, ranks)


@subject(Add, arrays=_LIBRARIES, every=exhaustive.memory_operations)
def adds(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Buffers on any workers."""
    return _layout_and_dtype(draw, ranks)


@subject(Copy, arrays=_LIBRARIES, every=exhaustive.memory_operations_in_both_forms)
def copies(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Buffers on any workers, in place and out of place."""
    return {**_layout_and_dtype(draw, ranks), "in_place": draw(st.booleans())}


@subject(Move, arrays=_LIBRARIES, every=exhaustive.memory_operations_in_both_forms)
def moves(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Buffers on any workers, in place and out of place."""
    return {**_layout_and_dtype(draw, ranks), "in_place": draw(st.booleans())}
