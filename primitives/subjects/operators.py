"""How the cases of the built-in primitives are drawn (entry-point group ``adjointlab.subjects``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.checks.verdict import Inapplicable
from adjointlab.core import strategies
from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition
from adjointlab.engine.subject import subject
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.broadcast_rules import broadcast_pattern
from adjointlab.primitives.discard import Discard
from adjointlab.primitives.gather import Gather
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
from adjointlab.primitives.halo_geometry import HaloGeometry
from adjointlab.primitives.memory import Add, Allocate, Clear, Copy, Deallocate, Move
from adjointlab.primitives.redistribute import Redistribute
from adjointlab.primitives.reduce_scatter import ReduceScatter
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.scatter import Scatter
from adjointlab.primitives.segments import wide_layout
from adjointlab.primitives.send_receive import SendReceive
from adjointlab.primitives.subjects import exhaustive
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = [
    "adds",
    "all_gathers",
    "all_sum_reduces",
    "allocates",
    "broadcasts",
    "clears",
    "copies",
    "deallocates",
    "discards",
    "gathers",
    "halo_exchanges",
    "halo_exchanges_in_place",
    "moves",
    "redistributes",
    "reduce_scatters",
    "repartitions",
    "scatters",
    "send_receives",
    "sum_reduces",
]

_LIBRARIES = ("numpy", "torch")
_DTYPES = strategies.dtypes(bfloat16=True, integers=True)
_WIDTHS = st.sampled_from((0, 1, 2))


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


@st.composite
def _laid_over(
    draw: DrawFn, ranks: int, shape: Sequence[int], spans: Sequence[Window], kinds: Sequence[str]
) -> Layout:
    """A tensor of the shape over any workers, its dimensions along those of the grid in any order or along none.

    In each dimension the windows cut the span, in any order, or are copies of it: one of the kinds "cut", "copied" and
    "wide", which is a cut with windows that overlap.
    """
    most = (
        3 if draw(st.integers(0, 3)) == 3 else min(3, max(1, len(shape)))
    )  # more leave dimensions for copies
    grid = draw(st.integers(1, most))
    partition = draw(strategies.partitions(ranks, grid, whole=draw(st.booleans())))
    axes: list[int | None] = [dim if dim < partition.order else None for dim in range(len(shape))]
    if draw(st.booleans()):
        free = [*range(partition.order), *[None] * max(0, len(shape) - draw(st.integers(0, partition.order)))]
        axes = draw(st.permutations(free))[: len(shape)]
    windows = []
    for (first, last), axis in zip(spans, axes, strict=True):
        parts = 1 if axis is None else partition.shape[axis]
        kind = draw(st.sampled_from(kinds))
        if kind == "copied":
            windows.append([(first, last)] * parts)
            continue
        ends = [first + end for end in draw(strategies.cuts(last - first, parts))]
        cut = [*pairwise(ends)]
        if parts > 1 and draw(st.integers(0, 3)) == 3:
            cut = draw(st.permutations(cut))
        if kind == "wide":
            cut = [(start - draw(_WIDTHS), stop + draw(_WIDTHS)) for start, stop in cut]
        windows.append(cut)
    return Layout(shape, partition, windows, axes)


@st.composite
def _local_types(draw: DrawFn, layout: Layout, one_value: bool) -> tuple[str, ...]:
    """Local types that a layout may have; with `one_value` those that leave an element one value."""
    along = {axis: layout.windows[dim] for dim, axis in enumerate(layout.axes)}
    types = []
    for dim, (side, copied) in enumerate(zip(layout.partition.shape, layout.copied, strict=True)):
        legal = ["varying", "replicated", "partial", "invariant"] if copied else ["varying"]
        if one_value and copied and side > 1 and any(a < b for a, b in along.get(dim, [(0, 1)])):
            legal.remove("varying")
        types.append(draw(st.sampled_from(legal)))
    return tuple(types)


@subject(Repartition, arrays=_LIBRARIES, every=exhaustive.repartitions)
def repartitions(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any layout to any layout of a tensor: grids, orders of workers, cuts, copies of all local types, padding, gaps,
    and targets with halos.
    """
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 5, 0)))))
    held, needed = [], []
    trimmed = draw(st.integers(0, 5)) == 5
    for side in shape:
        whole = (0, side)
        start, stop = sorted((draw(st.integers(0, side)), draw(st.integers(0, side)))) if trimmed else whole
        held.append((start, stop) if draw(st.booleans()) else whole)
        needed.append((start, stop))
    if not trimmed and draw(st.integers(0, 5)) == 5:  # padding
        held = [(start - draw(_WIDTHS), stop + draw(_WIDTHS)) for start, stop in held]
        needed = [(start - draw(_WIDTHS), stop + draw(_WIDTHS)) for start, stop in needed]
    wide = ("wide",) * 4 if not trimmed and draw(st.booleans()) else ()
    layout = draw(_laid_over(ranks, shape, held, ("cut", "cut", "copied")))
    target = draw(_laid_over(ranks, shape, needed, ("cut", "cut", "copied", *wide)))
    return {
        "layout": layout,
        "target": target,
        "dtype": draw(_DTYPES),
        "types": draw(_local_types(layout, one_value=True)),
        "target_types": draw(_local_types(target, one_value=False)),
    }


@st.composite
def _narrow(draw: DrawFn, ranks: int) -> tuple[Layout, int]:
    """A tensor over any workers and a dimension in which it is cut; others are cut along the rest of the grid, or not."""
    partition = draw(strategies.partitions(ranks, whole=False))
    order = draw(st.integers(1, 5))
    axes: list[int | None] = [dim if dim < partition.order else None for dim in range(order)]
    if draw(st.booleans()):
        axes = draw(st.permutations([*range(partition.order), *[None] * (order - 1)]))[:order]
    cut = [dim for dim, axis in enumerate(axes) if axis is not None]
    if not cut:
        axes[0], cut = draw(st.integers(0, partition.order - 1)), [0]
    shape = draw(strategies.shapes(order))
    parts = [1 if axis is None else partition.shape[axis] for axis in axes]
    ends = [draw(strategies.cuts(side, count)) for side, count in zip(shape, parts, strict=True)]
    # The last one first: what is cut there does not lie in one block of the memory.
    return Layout.cut(shape, partition, ends, axes), draw(st.sampled_from(cut[::-1]))


@st.composite
def _narrow_types(draw: DrawFn, narrow: Layout, dim: int) -> tuple[str, ...]:
    """Local types of a tensor that is cut in dimension `dim`."""
    types = draw(_local_types(narrow, one_value=False))
    return tuple("varying" if axis == narrow.axes[dim] else entry for axis, entry in enumerate(types))


@subject(AllGather, arrays=_LIBRARIES, every=exhaustive.all_gathers)
def all_gathers(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any cut in any dimension; copies of all local types along it and along the rest of the grid."""
    narrow, dim = draw(_narrow(ranks))
    return {
        "layout": narrow,
        "dim": dim,
        "dtype": draw(_DTYPES),
        "types": draw(_narrow_types(narrow, dim)),
        "copies": draw(st.sampled_from(("varying", "replicated", "invariant"))),
    }


def _wide(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """The other way round; the whole dimension lies along no dimension of the partition, or along one in copies."""
    narrow, dim = draw(_narrow(ranks))
    along, wide = narrow.axes[dim], wide_layout(narrow, dim)
    if draw(st.booleans()):
        windows, axes = list(wide.windows), list(wide.axes)
        windows[dim], axes[dim] = ((0, wide.shape[dim]),) * len(narrow.windows[dim]), along
        wide = Layout(wide.shape, wide.partition, windows, axes)
    return {
        "layout": wide,
        "dim": dim,
        "along": along,
        "cut": draw(st.sampled_from((narrow.ends(dim), None))),
        "dtype": draw(_DTYPES),
        "types": draw(_narrow_types(narrow, dim)),
    }


@subject(ReduceScatter, arrays=_LIBRARIES, every=exhaustive.reduce_scatters)
def reduce_scatters(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any cut of any dimension that is whole; summands of both local types."""
    return {**_wide(draw, ranks), "summands": draw(st.sampled_from(("varying", "partial")))}


@subject(Discard, arrays=_LIBRARIES, every=exhaustive.discards)
def discards(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any cut of any dimension that is whole; copies of all local types."""
    return {**_wide(draw, ranks), "copies": draw(st.sampled_from(("varying", "replicated", "invariant")))}


@st.composite
def _assigned(draw: DrawFn, grid: Partition, order: int, simplest: str) -> tuple[tuple[int, ...], ...]:
    """Some dimensions of the grid, in any order, for each dimension of a tensor; the simplest is all ◦, or all *."""
    dims: list[list[int]] = [[] for _ in range(order)]
    uses = (True, True, False) if simplest == "◦" else (False, True, True)
    for axis in draw(st.permutations(range(grid.order))):
        if order and draw(st.sampled_from(uses)):
            dims[draw(st.integers(0, order - 1))].append(axis)
    return tuple(map(tuple, dims))


@subject(Redistribute, arrays=_LIBRARIES, every=exhaustive.redistributes)
def redistributes(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any two assignments over a grid on any workers, with summands along any of the redundant grid dimensions."""
    grid = draw(strategies.partitions(ranks, whole=False))
    order = draw(st.sampled_from((1, 2, 3, 4, 5, 0)))
    source = draw(_assigned(grid, order, "◦"))
    redundant = [axis for axis in range(grid.order) if all(axis not in axes for axes in source)]
    return {
        "grid": grid,
        "shape": draw(strategies.shapes(order)),
        "source": source,
        "target": draw(_assigned(grid, order, "*")),
        "partial": tuple(axis for axis in redundant if draw(st.booleans())),
        "dtype": draw(_DTYPES),
        "copies": draw(st.sampled_from(("replicated", "invariant"))),
    }


@subject(Scatter, arrays=_LIBRARIES, every=exhaustive.scatters)
def scatters(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """From any worker to any cut, in the partition or out of it."""
    return {**_layout_and_dtype(draw, ranks), "root": draw(st.integers(0, ranks - 1))}


@subject(Gather, arrays=_LIBRARIES, every=exhaustive.gathers)
def gathers(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """From any cut to any worker, in the partition or out of it."""
    return {**_layout_and_dtype(draw, ranks), "root": draw(st.integers(0, ranks - 1))}


@st.composite
def _bulks(draw: DrawFn, ranks: int) -> Layout:
    """Cuts of tensors of order 1 to 5 along the dimensions of any grid, in any order, or along none."""
    grid = draw(st.sampled_from((1, 2, 2, 3)))  # corners need two dimensions
    partition = draw(strategies.partitions(ranks, grid, whole=draw(st.sampled_from((True, True, False)))))
    axes: list[int | None] = list(range(partition.order))
    if draw(st.booleans()):
        order = draw(st.integers(1, 5))
        spare = max(0, order - partition.order) + draw(st.integers(0, 1))
        axes = draw(st.permutations([*axes, *[None] * spare]))[:order]
    order = len(axes)
    sides = st.lists(st.integers(1, 3), min_size=order, max_size=order)
    shape = tuple(draw(sides if order > 3 else strategies.shapes(order)))
    windows = []
    for side, axis in zip(shape, axes, strict=True):
        parts = 1 if axis is None else partition.shape[axis]
        windows.append([*pairwise(draw(strategies.cuts(side, parts)))])
        if parts > 1 and draw(st.integers(0, 3)) == 3:
            windows[-1] = draw(st.permutations(windows[-1]))
    return Layout(shape, partition, windows, axes)


@st.composite
def _kernel_windows(draw: DrawFn, bulk: Layout) -> Layout:
    """What the workers need for any cut of a kernel's output."""
    kernels, strides, dilations, paddings, cuts = [], [], [], [], []
    for side, windows in zip(bulk.shape, bulk.windows, strict=True):
        kernel, dilation, stride = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
        most = dilation * (kernel - 1)
        padding = (draw(st.integers(0, most)), draw(st.integers(0, most)))
        length = (side + sum(padding) - most - 1) // stride + 1
        if length < 1:  # the tensor is smaller than the kernel
            kernel, padding, length = 1, (0, 0), (side - 1) // stride + 1
        kernels.append(kernel)
        strides.append(stride)
        dilations.append(dilation)
        paddings.append(padding)
        cuts.append(draw(strategies.cuts(length, len(windows))))
    return HaloGeometry.from_kernel(
        bulk, kernels, stride=strides, dilation=dilations, padding=paddings, output_cuts=cuts
    ).window


@st.composite
def _free_windows(draw: DrawFn, bulk: Layout) -> Layout:
    """Windows of any width anywhere: around the bulk or apart from it, empty, trimmed, and beyond the tensor."""
    reach = 3 if bulk.order < 3 else 1
    widths = st.integers(-reach, reach)
    windows: list[list[Window]] = []
    for side, owned in zip(bulk.shape, bulk.windows, strict=True):
        windows.append([])
        for start, stop in owned:
            if draw(st.integers(0, 3)) == 3:
                start, stop = draw(st.integers(-reach, side)), draw(st.integers(0, side + reach))
            else:
                start, stop = start - draw(widths), stop + draw(widths)
            windows[-1].append((start, max(start, stop)))
    return Layout(bulk.shape, bulk.partition, windows, bulk.axes)


def _halos(draw: DrawFn, ranks: int) -> dict[str, Any]:
    bulk = draw(_bulks(ranks))
    from_kernel = 0 not in bulk.shape and draw(st.booleans())
    around = st.booleans() if draw(st.integers(0, 2)) else st.just(False)
    return {
        "layout": bulk,
        "windows": draw(_kernel_windows(bulk) if from_kernel else _free_windows(bulk)),
        "periodic": tuple(dim for dim, side in enumerate(bulk.shape) if side and draw(around)),
        "dtype": draw(_DTYPES),
    }


def _unchanged(x: Any, *, periodic: Sequence[int], **_: Any) -> Any:
    """The sequential twin of an exchange: every worker holds its window of the tensor, and zeros beyond it."""
    if periodic:
        raise Inapplicable("windows around a periodic dimension are no windows of one tensor")
    return x


@subject(HaloExchange, arrays=_LIBRARIES, reference=_unchanged, every=exhaustive.halo_exchanges)
def halo_exchanges(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Windows that a kernel needs, and any others, around any cut."""
    return _halos(draw, ranks)


@subject(HaloExchangeInPlace, arrays=_LIBRARIES, every=exhaustive.halo_exchanges_in_place)
def halo_exchanges_in_place(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """The same, each worker's window padded to hold its bulk."""
    return _halos(draw, ranks)


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
