"""Hypothesis strategies for partitions, layouts and element types, including those that distributed code often gets wrong.

Everything shrinks towards fewer ranks, balanced cuts, small sides, the natural order of ranks, and float64, since Hypothesis
shrinks integers to 0, booleans to False and choices to the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, SupportsIndex, TypedDict

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from adjointlab.core.arrays import dtype, installed
from adjointlab.core.kept_strategies import BOOLEANS, choices, integers, made_once, permuted
from adjointlab.core.layout import Layout, balanced_cut
from adjointlab.core.partition import Partition, PartitionLike, as_partition, whole_number
from adjointlab.core.partition import integers as as_integers
from adjointlab.quantities import counted
from adjointlab.typing import DtypeLike

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement

__all__ = [
    "broadcasting_partitions",
    "cuts",
    "dtypes",
    "layouts",
    "meshes",
    "nested_shards",
    "partitions",
    "pipelines",
    "placements",
    "rank_orders",
    "shapes",
]

FLOATING = ("float64", "float32", "complex128", "complex64", "float16")
"""The element types of a linear operator that NumPy has."""

_LARGEST_SIDE = {1: 12, 2: 6, 3: 4}


def _require(smallest: int, /, **given: SupportsIndex) -> None:
    """Raise `TypeError` for an argument that is not a whole number, and `ValueError` for one below the smallest.

    A float such as 4.0 equals an integer, so a strategy cached for the one would be used for the other.
    """
    for name, value in given.items():
        if whole_number(name, value) < smallest:
            raise ValueError(f"{name}: at least {smallest}, not {value}")


@made_once
@st.composite
def rank_orders(draw: DrawFn, ranks: int, size: int | None = None) -> tuple[int, ...]:
    """Draw `size` (default: all) distinct ranks of `ranks`: any subset, not starting at 0, strided, permuted."""
    # The simplest draws leave out the last ranks and keep the order, so that results shrink to 0, 1, 2, ...
    _require(0, ranks=ranks, size=0 if size is None else size)
    if size is not None and size > ranks:
        raise ValueError(f"size: {size} of {ranks} ranks cannot be drawn")
    chosen = list(range(ranks))
    for _ in range(ranks if size is None else size, ranks):
        chosen.pop(-1 - draw(integers(0, len(chosen) - 1)))
    if len(chosen) > 1 and draw(BOOLEANS):
        chosen = permuted(draw, chosen)
    return tuple(chosen)


@made_once
@st.composite
def partitions(
    draw: DrawFn, ranks: int, order: int | None = None, *, whole: bool = True, max_order: int = 3
) -> Partition:
    """Draw grids over the ranks of a world of `ranks`.

    With `whole` the grid uses every rank in its natural order; otherwise any subset in any order, so that some ranks are inactive
    and positions in the grid differ from ranks.
    """
    _require(1, ranks=ranks, max_order=max_order)
    _require(0, order=0 if order is None else order)
    dims = draw(integers(1, max_order)) if order is None else order
    size = ranks if whole else draw(integers(1, ranks))
    shape = draw(choices(_grids(draw, size, dims)))
    return Partition(shape, None if whole and dims else draw(rank_orders(ranks, math.prod(shape))))


@cache
def grids(size: int, order: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of all grids of `order` dimensions with `size` workers; of order 0 there is one, ()."""
    if not order:
        return ((),)
    if order == 1:
        return ((size,),)
    return tuple(
        (side, *rest)
        for side in range(1, size + 1)
        if not size % side
        for rest in grids(size // side, order - 1)
    )


@cache
def proper_grids(size: int, order: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of those grids that have several workers in every dimension."""
    return tuple(shape for shape in grids(size, order) if 1 not in shape)


def _grids(draw: DrawFn, size: int, order: int) -> tuple[tuple[int, ...], ...]:
    """Return all grids or, half of the time, only those with several workers in every dimension: these are few, and some bugs need them."""
    every, proper = grids(size, order), proper_grids(size, order)
    if order < 2 or not proper:
        return every
    return proper if draw(BOOLEANS) else every


@made_once
def shapes(
    order: int, largest: int | None = None, *, divisible_by: Sequence[int] | None = None, least: int = 0
) -> SearchStrategy[tuple[int, ...]]:
    """Draw tensor shapes: small sides, mostly pairwise different, mostly above 1; sometimes empty. No side is above `largest`.

    With `divisible_by`, such as the shape of a grid, each side is rounded up to a multiple of that entry. No side, or part of one, has fewer
    than `least` elements.
    """
    _require(0, order=order, largest=0 if largest is None else largest, least=least)
    if largest is not None and least > largest:
        raise ValueError(f"least: {least} is above the largest side, {largest}")
    # Dimensions that are exchanged by mistake show only if their sides differ; a wrong factor of a side shows only above 1.
    top = _LARGEST_SIDE.get(order, 3) if largest is None else largest
    widest = max(top, order + 1) if largest is None else top
    any_sides = st.lists(st.integers(min(1, top), top), min_size=order, max_size=order)
    empty = st.lists(st.integers(0, top), min_size=order, max_size=order)
    # Repeated entries set the probabilities; `one_of` would drop repetitions.
    mixture = [any_sides] * 2
    if widest - 1 >= max(1, order):
        mixture += [st.lists(st.integers(2, widest), min_size=order, max_size=order, unique=True)] * 4
    sides = st.sampled_from([*mixture, empty]).flatmap(lambda chosen: chosen)
    parts = (1,) * order if divisible_by is None else as_integers("divisible_by", divisible_by)
    if len(parts) != order or 0 in parts:
        raise ValueError(
            f"divisible_by: {divisible_by} is not {counted(order, 'number')} above 0, one for each dimension"
        )
    return sides.map(lambda shape: _rounded_up(shape, parts, least))


def _rounded_up(shape: Sequence[int], parts: Sequence[int], least: int) -> tuple[int, ...]:
    """Round each side up to a multiple of its number of parts, with at least `least` elements in each part."""
    return tuple(
        max(least, math.ceil(side / count)) * count for side, count in zip(shape, parts, strict=True)
    )


@made_once
@st.composite
def cuts(draw: DrawFn, length: int, parts: int, *, least: int = 0) -> tuple[int, ...]:
    """Draw boundaries that cut `length` into `parts`: balanced, or any, of at least `least` elements each.

    By default parts may be empty. Raises `ValueError` if the length is less than `parts` times `least`.
    """
    _require(0, length=length, least=least)
    _require(1, parts=parts)
    spare = length - least * parts
    if spare < 0:
        raise ValueError(f"least: {parts} parts of at least {least} elements do not fit into {length}")
    # Sorted draws with repetitions: equal boundaries make parts of the least size, by default empty ones, as with more ranks than
    # elements.
    if parts > 1 and draw(BOOLEANS):
        inner = sorted(draw(integers(0, spare)) for _ in range(parts - 1))
        return (0, *(end + least * part for part, end in enumerate(inner, 1)), length)
    return balanced_cut(length, parts)


@made_once
@st.composite
def layouts(
    draw: DrawFn,
    ranks: int,
    ndim: int | None = None,
    *,
    partition: PartitionLike | None = None,
    whole: bool = True,
    balanced: bool = False,
    shape: Sequence[int] | None = None,
    least: int = 0,
    divisible: bool = False,
) -> Layout:
    """Draw cuts of a tensor over (some of) the ranks, uneven and with empty local tensors unless `balanced`.

    Each worker holds at least `least` indices in each dimension. With `divisible` the grid divides the sides, and all local
    tensors have the same shape. `partition` and `shape` are drawn if they are not given.

    Raises `ValueError` for a `shape` that is too small for `least`, or that the grid does not divide, and for a `shape`, a
    `partition` and `ndim` that do not fit each other.
    """
    shape = None if shape is None else as_integers("shape", shape)
    if shape is not None and min(shape, default=0) < 0:
        raise ValueError(f"shape: a side of a tensor is at least 0, not {shape}")
    if shape is not None and ndim not in (None, len(shape)):
        raise ValueError(f"ndim: {ndim}, but the shape {tuple(shape)} has {counted(len(shape), 'dimension')}")
    _require(0, least=least, ndim=0 if ndim is None else ndim)
    order = len(shape) if shape is not None else ndim
    if partition is None:
        partition = draw(partitions(ranks, order, whole=whole))
    partition = as_partition("partition", partition)
    if order not in (None, len(partition.shape)):
        raise ValueError(
            f"partition: {partition} cuts {counted(len(partition.shape), 'dimension')}, not {order}"
        )
    sides = draw(_sides(partition.shape, least, divisible)) if shape is None else tuple(shape)
    if divisible and any(side % parts for side, parts in zip(sides, partition.shape, strict=True)):
        raise ValueError(f"divisible: the {partition} partition does not divide the sides {sides}")
    if any(side < least * parts for side, parts in zip(sides, partition.shape, strict=True)):
        raise ValueError(f"least: the sides {sides} leave fewer than {least} for some worker of {partition}")
    if balanced or divisible:
        return Layout(sides, partition)
    ends = [draw(cuts(side, parts, least=least)) for side, parts in zip(sides, partition.shape, strict=True)]
    return Layout.cut(sides, partition, ends)


@cache
def _sides(parts: tuple[int, ...], least: int, divisible: bool) -> SearchStrategy[tuple[int, ...]]:
    """Draw the shape of a tensor that is cut into ``parts[k]`` parts in dimension k."""
    drawn = shapes(len(parts), divisible_by=parts if divisible else None)
    if not least:
        return drawn
    return drawn.map(
        lambda shape: tuple(max(side, least * count) for side, count in zip(shape, parts, strict=True))
    )


class NestedShards(TypedDict):
    """A cut of a tensor over a grid whose dimensions do not correspond to the tensor's one by one.

    ``shards[k]`` lists (grid dimension, number of parts) for each cut of tensor dimension k, the outermost first: each part of
    a cut is cut again by the next. The parts of all cuts along one grid dimension multiply to its side; the grid index counts
    them in row-major order, those of tensor dimension 0 being the major ones. `layout` is the result over all workers.

        grid 2x2, shards (((0, 2), (1, 2)),)    worker (0, 0) holds 0:2, (0, 1) 2:4, (1, 0) 4:6, (1, 1) 6:8 of x[8]
                  shards (((1, 2), (0, 2)),)    worker (0, 0) holds 0:2, (1, 0) 2:4, (0, 1) 4:6, (1, 1) 6:8
        grid 4,   shards (((0, 2),), ((0, 2),)) workers 0 and 1 hold the upper rows, workers 0 and 2 the left columns
    """

    grid: Partition
    shards: tuple[tuple[tuple[int, int], ...], ...]
    layout: Layout


@made_once
@st.composite
def nested_shards(
    draw: DrawFn, ranks: int, ndim: int | None = None, *, whole: bool = True, least: int = 0
) -> NestedShards:
    """Draw cuts with several tensor dimensions along one grid dimension, and one along several, in any order of nesting.

    For code that describes shards by dimensions of a device mesh. The parts of a cut are cut again at different boundaries, into
    parts that may be uneven or empty; workers hold at least `least` indices in each dimension.
    """
    _require(1, ranks=ranks)
    _require(0, least=least, ndim=0 if ndim is None else ndim)
    size = ranks if whole else draw(integers(1, ranks))
    # Mostly grids without sides of 1, and among these mostly grids of several dimensions: only they can nest cuts.
    proper = [shape for dims in (1, 2, 3) for shape in proper_grids(size, dims)]
    any_grid = st.sampled_from([grids(size, dims) for dims in (1, 2, 3)]).flatmap(st.sampled_from)
    shape_of_grid = draw(st.sampled_from([*proper, *proper[1:]]) | any_grid if proper else any_grid)
    grid = Partition(shape_of_grid, None if whole else draw(rank_orders(ranks, size)))
    order = draw(integers(1, 3)) if ndim is None else ndim
    cut_by: list[list[tuple[int, int]]] = [[] for _ in range(order)]
    for grid_dim, side in enumerate(grid.shape):
        # The simplest factorisation is (side, 1, ...): the grid dimension cuts only tensor dimension 0.
        factors = grids(side, order)[::-1]
        for dim, parts in enumerate(draw(st.just(factors[0]) | st.sampled_from(factors))):
            if parts > 1:
                cut_by[dim].append((grid_dim, parts))
    shards = tuple(tuple(permuted(draw, of_dim) if len(of_dim) > 1 else of_dim) for of_dim in cut_by)
    counts = [tuple(parts for _, parts in of_dim) for of_dim in shards]
    shape = draw(_sides(tuple(map(math.prod, counts)), least, divisible=False))
    ends = [draw(_nested_cuts(side, parts, least)) for side, parts in zip(shape, counts, strict=True)]
    return {"grid": grid, "shards": shards, "layout": Layout.cut(shape, _workers_by_part(grid, shards), ends)}


@made_once
@st.composite
def _nested_cuts(draw: DrawFn, length: int, counts: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Draw boundaries of the innermost parts of a length that is cut into ``counts[0]`` parts, each of these into ``counts[1]``, ..."""
    ends: tuple[int, ...] = (0, length)
    for depth, parts in enumerate(counts):
        smallest = least * math.prod(counts[depth + 1 :])
        inner = [(start, draw(cuts(stop - start, parts, least=smallest))) for start, stop in pairwise(ends)]
        ends = (0, *(start + end for start, of_part in inner for end in of_part[1:]))
    return ends


def _workers_by_part(grid: Partition, shards: Sequence[Sequence[tuple[int, int]]]) -> Partition:
    """Arrange the workers of `grid` in a grid with one dimension per tensor dimension, whose side is the number of its parts."""
    sides = [[parts for _, parts in of_dim] for of_dim in shards]
    ranks = []
    for part in product(*(range(side) for of_dim in sides for side in of_dim)):
        index = [0] * grid.order
        for (grid_dim, parts), i in zip((shard for of_dim in shards for shard in of_dim), part, strict=True):
            index[grid_dim] = index[grid_dim] * parts + i
        ranks.append(grid.rank(index))
    return Partition([math.prod(of_dim) for of_dim in sides], ranks)


@made_once
@st.composite
def meshes(draw: DrawFn, ranks: int, max_dims: int = 2) -> tuple[int, ...]:
    """Draw shapes of device meshes over all ranks of a world of `ranks`: the simplest have one dimension, and many have no side of 1."""
    _require(1, ranks=ranks, max_dims=max_dims)
    dims = draw(integers(1, max_dims))
    # The last of the grids has all ranks along its first dimension.
    return draw(choices(_grids(draw, ranks, dims)[::-1]))


@made_once
@st.composite
def placements(
    draw: DrawFn,
    mesh: Sequence[int] | Mapping[str, int],
    ndim: int,
    *,
    partial: bool = False,
    strided: Sequence[int] | None = None,
) -> tuple[Placement, ...]:
    """Draw torch's placements of a DTensor of `ndim` dimensions on a mesh, given by its extents, named or not: ``Shard`` and ``Replicate``.

    `partial` adds ``Partial``, a pending sum, which inputs may have. `strided`, the shape of the tensor, adds ``_StridedShard``
    where the shards are even: FSDP over tensor parallelism uses it.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = as_integers("mesh", mesh.values() if isinstance(mesh, Mapping) else mesh)
    _require(0, ndim=ndim)
    kinds: list[Placement] = [*map(Shard, range(ndim)), Replicate(), *([Partial()] if partial else [])]
    drawn = [draw(st.sampled_from(kinds)) for _ in mesh]
    for dim, side in enumerate(strided or ()):
        cutting = [mesh_dim for mesh_dim, placement in enumerate(drawn) if placement == Shard(dim)]
        is_uneven = side % math.prod(mesh[mesh_dim] for mesh_dim in cutting)
        if len(cutting) == 2 and not is_uneven and draw(BOOLEANS):
            drawn[cutting[0]] = _StridedShard(dim, split_factor=mesh[cutting[1]])
    return tuple(drawn)


class BroadcastingPartitions(TypedDict):
    """The arguments of a broadcast that determine which ranks send to which."""

    source: Partition
    destination: Partition
    transpose_src: bool
    transpose_dest: bool


@made_once
@st.composite
def broadcasting_partitions(
    draw: DrawFn, ranks: int, max_order: int = 3, *, transpose: bool = True
) -> BroadcastingPartitions:
    """Draw pairs of partitions that broadcast, P_x onto P_y, in a world of `ranks`; with the transposition flags.

    Orders may differ; the two may overlap, be disjoint, or leave ranks inactive in either or both.
    """
    _require(1, ranks=ranks, max_order=max_order)
    order = draw(integers(1, max_order))
    size = draw(integers(1, ranks))
    target = draw(choices(grids(size, order)))
    effective = [side if draw(BOOLEANS) else 1 for side in target]
    # Leading sides of 1 may be left out, since a partition of lower order is promoted [DistDL].
    leading = next((i for i, side in enumerate(effective) if side != 1), order - 1)
    source = effective[draw(integers(0, leading)) :]
    transpose_src = transpose and draw(BOOLEANS)
    transpose_dest = transpose and draw(BOOLEANS)
    return {
        "source": Partition(
            source[::-1] if transpose_src else source, draw(rank_orders(ranks, math.prod(source)))
        ),
        "destination": Partition(target[::-1] if transpose_dest else target, draw(rank_orders(ranks, size))),
        "transpose_src": transpose_src,
        "transpose_dest": transpose_dest,
    }


def dtypes(
    names: Sequence[DtypeLike] | None = None, *, bfloat16: bool = False, integers: bool = False
) -> SearchStrategy[str]:
    """Draw names of element types: real and complex, down to half precision; float64 is the simplest.

    `bfloat16` adds that type if torch is installed: NumPy does not have it. `integers` adds int64 and int32, in which an
    operator is linear as long as nothing overflows. Raises `ValueError` for `names` that are not a list of element types.
    """
    several: object = names
    if several is not None and (isinstance(several, str) or not isinstance(several, Sequence) or not several):
        raise ValueError(f"names: {names!r} is not a list of element types, such as ['float32']")
    given = tuple(dtype(each).name for each in names or ())
    every = FLOATING + (("bfloat16",) if bfloat16 and installed("torch") else ())
    every += ("int64", "int32") if integers else ()
    return choices(given or every)


SCHEDULES = (
    "ScheduleGPipe",
    "Schedule1F1B",
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
)
"""Schedules of torch.distributed.pipelining; those after the second have several stages on each rank."""


class DrawnPipeline(TypedDict):
    """A drawn pipeline: its schedule, the cuts of its layers into stages, and its number of microbatches."""

    schedule: str
    cuts: tuple[int, ...]
    microbatches: int


@st.composite
def pipelines(draw: DrawFn, ranks: int, *, schedules: Sequence[str] = SCHEDULES) -> DrawnPipeline:
    """Draw a schedule of torch.distributed.pipelining for `ranks` ranks, by the name of its class.

    Stage k has the layers from ``cuts[k]`` to ``cuts[k + 1]``, at least one; ``cuts[-1]`` is the number of all layers. Schedules of
    several stages on each rank get two or three, ``ScheduleZBVZeroBubble`` two. The schedule accepts the number of `microbatches`.
    """
    _require(1, ranks=ranks)
    if isinstance(schedules, str) or not schedules:
        raise ValueError(
            f"schedules: {schedules!r} is not a list of names of schedules, such as {SCHEDULES[:2]}"
        )
    schedule = draw(st.sampled_from(tuple(schedules)))
    on_each = 1
    if schedule in SCHEDULES[2:]:
        on_each = 2 if "V" in schedule else draw(st.integers(2, 3))
    stages = ranks * on_each
    layers = stages + draw(st.integers(0, 2))
    legal = [n for n in range(1, 2 * stages + 2) if _takes(schedule, n, ranks, stages)]
    return DrawnPipeline(
        schedule=schedule, cuts=draw(cuts(layers, stages, least=1)), microbatches=draw(st.sampled_from(legal))
    )


def _takes(schedule: str, microbatches: int, ranks: int, stages: int) -> bool:
    """Return True if the schedule accepts this number of microbatches."""
    if schedule == "Schedule1F1B":
        return microbatches >= stages
    if schedule.startswith("ScheduleInterleaved"):
        return not microbatches % max(1, microbatches // ranks)
    return True
