"""Cases of Repartition, Scatter and Gather: any layout of a tensor to any other layout of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.core.kept_strategies import BOOLEANS, choices, integers, permuted
from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition
from adjointlab.primitives.gather import Gather
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.scatter import Scatter
from adjointlab.primitives.subjects import building_blocks as blocks
from adjointlab.primitives.subjects.building_blocks import DTYPES, Parameters, SizedCase, primitive_subject

__all__ = ["gathers", "repartitions", "scatters"]

_WIDTHS = st.sampled_from((0, 1, 2))
_COPIES = ("replicated", "partial", "invariant")


def _every_repartition(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[SizedCase]:
    """From every cut to every other cut, to every window of tensors of order 1, and between copies of every local type.

    Copies lie along one additional dimension of either grid, for tensors of order d on at most ``ranks + 1 - d`` ranks.
    Copies of a scalar lie along all dimensions of either grid, on ``ranks + 1`` ranks.
    """
    for world in range(1, ranks + 1):
        for dims in range(1, order + 1):
            for source, target in _pairs_of_grids(world, dims):
                for shape in blocks.shapes(dims, side):
                    yield from ((world, pair) for pair in _every_pair_of_cuts(shape, source, target))
            if world + dims <= ranks + 1:
                yield from _between_copies(world, dims, side)
        yield from _onto_windows(world, side)
    yield from _between_scalars(ranks + 1)


def _pairs_of_grids(world: int, dims: int) -> Iterator[tuple[Partition, Partition]]:
    """Pairs of grids of `dims` dimensions that leave no rank of the world out.

    The source lists its ranks from 0 on and the target lists any ranks in any order: renaming the ranks of both gives
    nothing new.
    """
    shapes_of_grids = blocks.grids_of_order(world, dims)
    for source, target in product(shapes_of_grids, repeat=2):
        if prod(source) + prod(target) < world:
            continue
        for target_ranks in blocks.rank_orders(world, prod(target)):
            yield Partition(source), Partition(target, target_ranks)


def _every_pair_of_cuts(shape: Sequence[int], source: Partition, target: Partition) -> Iterator[Parameters]:
    """Every cut over either grid of a tensor whose dimension d lies along grid dimension d; copies lie along further ones."""
    cuts_of = (
        [blocks.cuts(length, parts) for length, parts in zip(shape, grid.shape, strict=False)]
        for grid in (source, target)
    )
    axes = range(len(shape))
    for ends, new_ends in product(*(list(product(*cuts)) for cuts in cuts_of)):
        layouts = (Layout.cut(shape, source, ends, axes), Layout.cut(shape, target, new_ends, axes))
        yield dict(zip(("layout", "target"), layouts, strict=True))


def _between_scalars(world: int) -> Iterator[SizedCase]:
    """A tensor of order 0 on grids of all ranks, with all combinations of the local types of its copies."""
    whole_grids = [grid for grid in blocks.grids(world, 2) if prod(grid) == world]
    for source_grid, target_grid in product(whole_grids, repeat=2):
        layout, target = (Layout((), Partition(grid), axes=()) for grid in (source_grid, target_grid))
        for types, target_types in product(
            product(_COPIES, repeat=len(source_grid)), product(("varying", *_COPIES), repeat=len(target_grid))
        ):
            types_of = {"types": types, "target_types": target_types}
            yield world, {"layout": layout, "target": target, **types_of}


def _between_copies(world: int, dims: int, side: int) -> Iterator[SizedCase]:
    """Tensors with copies, of each local type, along the last dimension of either grid."""
    varying = ("varying",) * dims
    for (source, target), shape in product(_pairs_of_grids(world, dims + 1), blocks.shapes(dims, side)):
        for pair in _every_pair_of_cuts(shape, source, target):
            for copies, new_copies in product(_COPIES, ("varying", *_COPIES)):
                types = {"types": (*varying, copies), "target_types": (*varying, new_copies)}
                yield world, {**pair, **types}


def _onto_windows(world: int, side: int) -> Iterator[SizedCase]:
    """From every cut of a tensor of order 1 to all windows up to one element beyond it, on one or two workers of any rank."""
    for length, parts, size in product(range(side + 1), range(1, world + 1), (1, 2)):
        if size > world or max(parts, size) < world:
            continue
        for ends, target_ranks in product(blocks.cuts(length, parts), blocks.rank_orders(world, size)):
            layout = Layout.cut((length,), Partition((parts,)), [ends])
            for held in product(blocks.windows(length, 1), repeat=size):
                target = Layout((length,), Partition((size,), target_ranks), [held])
                if target.ends(0) is None:  # cuts are listed already
                    yield world, {"layout": layout, "target": target}


@primitive_subject(Repartition, every=_every_repartition)
def repartitions(draw: DrawFn, ranks: int) -> Parameters:
    """Any layout to any layout of a tensor: grids, orders of workers, cuts, copies of all local types, padding, gaps,
    and targets with halos.
    """
    shape = draw(strategies.shapes(draw(choices((1, 2, 3, 4, 5, 0)))))
    held, needed = [], []
    trimmed = draw(integers(0, 5)) == 5
    for side in shape:
        whole = (0, side)
        start, stop = sorted((draw(integers(0, side)), draw(integers(0, side)))) if trimmed else whole
        held.append((start, stop) if draw(BOOLEANS) else whole)
        needed.append((start, stop))
    if not trimmed and draw(integers(0, 5)) == 5:  # windows reach beyond the tensor
        held = [(start - draw(_WIDTHS), stop + draw(_WIDTHS)) for start, stop in held]
        needed = [(start - draw(_WIDTHS), stop + draw(_WIDTHS)) for start, stop in needed]
    wide = ("wide",) * 4 if not trimmed and draw(BOOLEANS) else ()
    layout = _layouts_over(draw, ranks, shape, held, ("cut", "cut", "copied"))
    target = _layouts_over(draw, ranks, shape, needed, ("cut", "cut", "copied", *wide))
    return {
        "layout": layout,
        "target": target,
        "dtype": draw(DTYPES),
        "types": blocks.local_types(draw, layout, one_value=True),
        "target_types": blocks.local_types(draw, target, one_value=False),
    }


def _layouts_over(
    draw: DrawFn, ranks: int, shape: Sequence[int], spans: Sequence[Window], kinds: tuple[str, ...]
) -> Layout:
    """Layouts of a tensor of `shape` over any workers, its dimensions along those of the grid in any order or along none.

    In each dimension the windows make up the interval in `spans`, as one of `kinds` says: "cut" in any order, "wide" in a
    cut whose windows are widened so that they overlap, or "copied" on every worker.
    """
    # A grid of a higher order than the tensor has dimensions along which copies lie.
    highest_order = 3 if draw(integers(0, 3)) == 3 else min(3, max(1, len(shape)))
    grid_order = draw(integers(1, highest_order))
    partition = draw(strategies.partitions(ranks, grid_order, whole=draw(BOOLEANS)))
    axes: list[int | None] = [dim if dim < partition.order else None for dim in range(len(shape))]
    if draw(BOOLEANS):
        free = [*range(partition.order), *[None] * max(0, len(shape) - draw(integers(0, partition.order)))]
        axes = permuted(draw, free)[: len(shape)]
    held: list[list[Window]] = []
    for (first, last), axis in zip(spans, axes, strict=True):
        parts = 1 if axis is None else partition.shape[axis]
        kind = draw(choices(kinds))
        if kind == "copied":
            held.append([(first, last)] * parts)
            continue
        ends = [first + end for end in draw(strategies.cuts(last - first, parts))]
        cut = [*pairwise(ends)]
        if parts > 1 and draw(integers(0, 3)) == 3:
            cut = permuted(draw, cut)
        if kind == "wide":
            cut = [(start - draw(_WIDTHS), stop + draw(_WIDTHS)) for start, stop in cut]
        held.append(cut)
    return Layout(shape, partition, held, axes)


def _every_scatter(*, ranks: int = 4, order: int = 2, side: int = 3) -> Iterator[SizedCase]:
    """Every cut, with every worker of it and one outside as `root`: the cases of Gather too."""
    for grid in blocks.grids(ranks, order):
        for root in range(prod(grid) + 1):
            for layout in blocks.layouts(Partition(grid), side):
                yield max(prod(grid), root + 1), {"layout": layout, "root": root}


@primitive_subject(Scatter, every=_every_scatter)
def scatters(draw: DrawFn, ranks: int) -> Parameters:
    """From any worker to any cut, in the partition or out of it."""
    return {**blocks.layout_and_dtype(draw, ranks), "root": draw(integers(0, ranks - 1))}


@primitive_subject(Gather, every=_every_scatter)
def gathers(draw: DrawFn, ranks: int) -> Parameters:
    """From any cut to any worker, in the partition or out of it."""
    return {**blocks.layout_and_dtype(draw, ranks), "root": draw(integers(0, ranks - 1))}
