"""Cases of AllGather, ReduceScatter, Discard and Redistribute: dimensions that are cut along others of the grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import prod

from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.core.kept_strategies import BOOLEANS, choices, integers, permuted
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.discard import Discard
from adjointlab.primitives.redistribute import Redistribute
from adjointlab.primitives.reduce_scatter import ReduceScatter
from adjointlab.primitives.segments import wide_layout
from adjointlab.primitives.subjects import building_blocks as blocks
from adjointlab.primitives.subjects.building_blocks import DTYPES, Parameters, SizedCase, primitive_subject

__all__ = ["all_gathers", "discards", "redistributes", "reduce_scatters"]

_COPIES = ("varying", "replicated", "invariant")


def _every_all_gather(
    *, ranks: int = 4, order: int = 3, side: int = 2, permuted: int = 3
) -> Iterator[SizedCase]:
    """Every dimension of every cut is gathered, for each local type of the copies."""
    for world, partition in _partitions(ranks, order, permuted):
        for layout in blocks.layouts(partition, side):
            for dim, copies in product(range(partition.order), _COPIES):
                yield world, {"layout": layout, "dim": dim, "copies": copies}


@primitive_subject(AllGather, every=_every_all_gather)
def all_gathers(draw: DrawFn, ranks: int) -> Parameters:
    """Any cut in any dimension; copies of all local types along it and along the rest of the grid."""
    narrow, dim = _cut_layouts(draw, ranks)
    return {
        "layout": narrow,
        "dim": dim,
        "dtype": draw(DTYPES),
        "types": _types_of_cut(draw, narrow, dim),
        "copies": draw(choices(_COPIES)),
    }


def _every_reduce_scatter(
    *, ranks: int = 4, order: int = 3, side: int = 2, permuted: int = 3
) -> Iterator[SizedCase]:
    """Every dimension that is whole is summed and cut in every way, for both local types of the summands."""
    for world, parameters in _every_cut_of_a_whole_dimension(ranks, order, side, permuted):
        for summands in ("varying", "partial"):
            yield world, {**parameters, "summands": summands}


@primitive_subject(ReduceScatter, every=_every_reduce_scatter)
def reduce_scatters(draw: DrawFn, ranks: int) -> Parameters:
    """Any cut of any dimension that is whole; summands of both local types."""
    return {**_whole_dimension(draw, ranks), "summands": draw(choices(("varying", "partial")))}


def _every_discard(
    *, ranks: int = 4, order: int = 3, side: int = 2, permuted: int = 3
) -> Iterator[SizedCase]:
    """Every dimension that is whole is cut in every way, for each local type of the copies."""
    for world, parameters in _every_cut_of_a_whole_dimension(ranks, order, side, permuted):
        for copies in _COPIES:
            yield world, {**parameters, "copies": copies}


@primitive_subject(Discard, every=_every_discard)
def discards(draw: DrawFn, ranks: int) -> Parameters:
    """Any cut of any dimension that is whole; copies of all local types."""
    return {**_whole_dimension(draw, ranks), "copies": draw(choices(_COPIES))}


def _every_cut_of_a_whole_dimension(ranks: int, order: int, side: int, permuted: int) -> Iterator[SizedCase]:
    """Tensors with one dimension that every worker holds whole, and every cut of it along a dimension of the grid."""
    for world, partition in _partitions(ranks, order, permuted):
        for along in range(partition.order):
            for layout, dim in _whole_in_one_dimension(partition, along, side):
                for cut in blocks.cuts(layout.shape[dim], partition.shape[along]):
                    yield world, {"layout": layout, "dim": dim, "along": along, "cut": cut}


def _whole_in_one_dimension(partition: Partition, along: int, side: int) -> Iterator[tuple[Layout, int]]:
    """Every cut along the other dimensions of the grid than `along`, and the dimension of the tensor that is not cut."""
    others = [axis for axis in range(partition.order) if axis != along]
    for cut in blocks.layouts(partition, side, along=others):
        for dim, length in product(range(len(others) + 1), range(side + 1)):
            shape = (*cut.shape[:dim], length, *cut.shape[dim:])
            windows = (*cut.windows[:dim], ((0, length),), *cut.windows[dim:])
            axes = (*cut.axes[:dim], None, *cut.axes[dim:])
            yield Layout(shape, partition, windows, axes), dim


def _partitions(ranks: int, order: int, permuted: int) -> Iterator[tuple[int, Partition]]:
    """Partitions and the number of ranks they lie in: every grid on the ranks from 0 on, then lines of any ranks.

    The lines lie in a world of `permuted` ranks, in any order: the order of a communicator's ranks is then not that of
    the partition.
    """
    in_order = [(prod(grid), Partition(grid)) for grid in blocks.grids(ranks, order)]
    yield from in_order
    for size in range(1, permuted + 1):
        for line_ranks in blocks.rank_orders(permuted, size):
            line = Partition((size,), line_ranks)
            if (permuted, line) not in in_order:
                yield permuted, line


def _cut_layouts(draw: DrawFn, ranks: int) -> tuple[Layout, int]:
    """A layout over any workers and a dimension of the tensor that it cuts; it may cut the others along the rest of the grid."""
    partition = draw(strategies.partitions(ranks, whole=False))
    order = draw(integers(1, 5))
    axes: list[int | None] = [dim if dim < partition.order else None for dim in range(order)]
    if draw(BOOLEANS):
        axes = permuted(draw, [*range(partition.order), *[None] * (order - 1)])[:order]
    cut = [dim for dim, axis in enumerate(axes) if axis is not None]
    if not cut:
        axes[0], cut = draw(integers(0, partition.order - 1)), [0]
    # The last one is the simplest: a part of it is strided memory.
    return blocks.cut_layout(draw, partition, axes), draw(choices(tuple(cut[::-1])))


def _types_of_cut(draw: DrawFn, narrow: Layout, dim: int) -> tuple[str, ...]:
    """Local types of a tensor that is cut in dimension `dim`, and so varying there."""
    types = blocks.local_types(draw, narrow, one_value=False)
    return tuple("varying" if axis == narrow.axes[dim] else entry for axis, entry in enumerate(types))


def _whole_dimension(draw: DrawFn, ranks: int) -> Parameters:
    """A layout with a whole dimension and the cut to come; the dimension lies along no grid dimension or in copies along one."""
    narrow, dim = _cut_layouts(draw, ranks)
    along, wide = narrow.axes[dim], wide_layout(narrow, dim)
    if draw(BOOLEANS):
        windows, axes = list(wide.windows), list(wide.axes)
        windows[dim], axes[dim] = ((0, wide.shape[dim]),) * len(narrow.windows[dim]), along
        wide = Layout(wide.shape, wide.partition, windows, axes)
    return {
        "layout": wide,
        "dim": dim,
        "along": along,
        "cut": draw(choices((narrow.ends(dim), None))),
        "dtype": draw(DTYPES),
        "types": _types_of_cut(draw, narrow, dim),
    }


def _every_redistribute(*, ranks: int = 4, order: int = 2, side: int = 3) -> Iterator[SizedCase]:
    """From every assignment to every other over every grid, with every choice of summands among the redundant dimensions."""
    for grid in blocks.grids(ranks, order):
        partition = Partition(grid)
        for dims in range(1, order + 1):
            assignments = list(_assignments(dims, len(grid)))
            for shape, source, target in product(blocks.shapes(dims, side), assignments, assignments):
                redundant = [axis for axis in range(len(grid)) if all(axis not in axes for axes in source)]
                for summed, copies in product(_subsets(redundant), ("replicated", "invariant")):
                    ends = {"source": source, "target": target, "partial": summed, "copies": copies}
                    yield prod(grid), {"grid": partition, "shape": shape, **ends}


def _assignments(order: int, dims: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every assignment of a tensor of `order` dimensions to `dims` grid dimensions, each used at most once, in any order."""
    # For each grid dimension the tensor dimension that it cuts; `order` stands for a redundant one.
    for tensor_dim_of in product(range(order + 1), repeat=dims):
        axes_of = [[axis for axis in range(dims) if tensor_dim_of[axis] == dim] for dim in range(order)]
        yield from product(*(tuple(permutations(axes)) for axes in axes_of))


def _subsets(entries: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for chosen in product((False, True), repeat=len(entries)):
        yield tuple(entry for entry, taken in zip(entries, chosen, strict=True) if taken)


@primitive_subject(Redistribute, every=_every_redistribute)
def redistributes(draw: DrawFn, ranks: int) -> Parameters:
    """Any two assignments over a grid on any workers, with summands along any of the redundant grid dimensions."""
    grid = draw(strategies.partitions(ranks, whole=False))
    order = draw(choices((1, 2, 3, 4, 5, 0)))
    source = _drawn_assignments(draw, grid, order, "◦")
    redundant = [axis for axis in range(grid.order) if all(axis not in axes for axes in source)]
    return {
        "grid": grid,
        "shape": draw(strategies.shapes(order)),
        "source": source,
        "target": _drawn_assignments(draw, grid, order, "*"),
        "partial": tuple(axis for axis in redundant if draw(BOOLEANS)),
        "dtype": draw(DTYPES),
        "copies": draw(choices(("replicated", "invariant"))),
    }


def _drawn_assignments(
    draw: DrawFn, grid: Partition, order: int, simplest: str
) -> tuple[tuple[int, ...], ...]:
    """Assignments of a tensor's dimensions; they shrink towards all distributed (`simplest` "◦") or all whole ("*")."""
    dims: list[list[int]] = [[] for _ in range(order)]
    uses = (True, True, False) if simplest == "◦" else (False, True, True)
    for axis in permuted(draw, range(grid.order)):
        if order and draw(choices(uses)):
            dims[draw(integers(0, order - 1))].append(axis)
    return tuple(map(tuple, dims))
