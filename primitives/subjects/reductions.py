"""Cases of Broadcast, SumReduce and AllSumReduce: partitions that broadcast, and tensors cut along them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod

from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.core.kept_strategies import BOOLEANS, integers, permuted
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.broadcast_rules import broadcast_pattern
from adjointlab.primitives.subjects import building_blocks as blocks
from adjointlab.primitives.subjects.building_blocks import DTYPES, Parameters, SizedCase, primitive_subject
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = ["all_sum_reduces", "broadcasts", "sum_reduces"]


def _every_broadcast(*, ranks: int = 4, order: int = 2, side: int = 2) -> Iterator[SizedCase]:
    """Every pair of partitions that broadcast, every cut of every tensor along P_x."""
    for world, source, target, flags in _broadcasting_pairs(ranks, order):
        for layout in blocks.layouts(source, side):
            yield world, {"layout": layout, "partition": target, **flags}


def _every_sum_reduce(*, ranks: int = 4, order: int = 2, side: int = 2) -> Iterator[SizedCase]:
    """The partitions of :func:`_every_broadcast` the other way round; every cut along what is not summed over."""
    for world, source, target, flags in _broadcasting_pairs(ranks, order):
        pattern = broadcast_pattern(
            source, target, transpose_one=flags["transpose_src"], transpose_many=flags["transpose_dest"]
        )
        for layout in blocks.layouts(target, side, along=pattern.kept.values()):
            reversed_flags = dict(
                transpose_src=flags["transpose_dest"], transpose_dest=flags["transpose_src"]
            )
            yield world, {"layout": layout, "partition": source, **reversed_flags}


def _broadcasting_pairs(
    ranks: int, order: int
) -> Iterator[tuple[int, Partition, Partition, dict[str, bool]]]:
    """Every P_x and P_y that broadcast, with the number of ranks and the transposition flags.

    P_y lists its ranks from 0 on and P_x lists any ranks in any order: renaming the ranks of both gives nothing new. There
    is one rank more than P_y has, so that P_x may use a rank outside.
    """
    for target in blocks.grids(ranks - 1, order):
        world = prod(target) + 1
        for source, flags in _sources(target):
            for source_ranks in blocks.rank_orders(world, prod(source)):
                yield world, Partition(source, source_ranks), Partition(target), flags


def _sources(target: Sequence[int]) -> Iterator[tuple[tuple[int, ...], dict[str, bool]]]:
    """The grids that broadcast to `target`, with leading ones and without, and with each side transposed or not."""
    for transpose_src, transpose_dest in product((False, True), repeat=2):
        read = target[::-1] if transpose_dest else target
        for shape in dict.fromkeys(product(*((1, length) for length in read))):
            for first in range(len(shape)):
                if any(length != 1 for length in shape[:first]):
                    break
                grid = shape[first:][::-1] if transpose_src else shape[first:]
                yield grid, {"transpose_src": transpose_src, "transpose_dest": transpose_dest}


def _every_all_sum_reduce(*, ranks: int = 4, order: int = 3, side: int = 2) -> Iterator[SizedCase]:
    """Every subset of the dimensions of every grid to sum over, every cut along the others."""
    for grid in blocks.grids(ranks, order):
        partition = Partition(grid)
        for chosen in product((False, True), repeat=len(grid)):
            dims = tuple(dim for dim, summed in enumerate(chosen) if summed)
            kept = [dim for dim, summed in enumerate(chosen) if not summed]
            for layout in blocks.layouts(partition, side, along=kept):
                yield partition.size, {"layout": layout, "dims": dims}


@primitive_subject(Broadcast, every=_every_broadcast)
def broadcasts(draw: DrawFn, ranks: int) -> Parameters:
    """P_x and P_y of different orders and on any ranks, transposed or not; tensors cut along P_x or copied."""
    pair = draw(strategies.broadcasting_partitions(ranks))
    return {
        "layout": _layouts_along(draw, pair["source"], range(pair["source"].order)),
        "partition": pair["destination"],
        "dtype": draw(DTYPES),
        "transpose_src": pair["transpose_src"],
        "transpose_dest": pair["transpose_dest"],
        "preserve_batch": draw(BOOLEANS),
    }


@primitive_subject(SumReduce, every=_every_sum_reduce)
def sum_reduces(draw: DrawFn, ranks: int) -> Parameters:
    """The partitions of a broadcast, the other way round; tensors cut along what is not summed over."""
    pair = draw(strategies.broadcasting_partitions(ranks))
    pattern = broadcast_pattern(
        pair["source"],
        pair["destination"],
        transpose_one=pair["transpose_src"],
        transpose_many=pair["transpose_dest"],
    )
    return {
        "layout": _layouts_along(draw, pair["destination"], sorted(pattern.kept.values())),
        "partition": pair["source"],
        "dtype": draw(DTYPES),
        "transpose_src": pair["transpose_dest"],
        "transpose_dest": pair["transpose_src"],
        "preserve_batch": draw(BOOLEANS),
    }


@primitive_subject(AllSumReduce, every=_every_all_sum_reduce)
def all_sum_reduces(draw: DrawFn, ranks: int) -> Parameters:
    """Any partition, summed over any of its dimensions; tensors cut along the others."""
    partition = draw(strategies.partitions(ranks, whole=False))
    dims = permuted(draw, range(partition.order))[: draw(integers(0, partition.order))]
    return {
        "layout": _layouts_along(draw, partition, (dim for dim in range(partition.order) if dim not in dims)),
        "dims": tuple(dims),
        "dtype": draw(DTYPES),
    }


def _layouts_along(draw: DrawFn, partition: Partition, dims: Iterable[int]) -> Layout:
    """Layouts of a tensor cut along some of the dimensions `dims` of a partition, in any order, with copies along the others."""
    free: list[int | None] = [*dims]
    axes: Sequence[int | None] = free
    if len(free) != partition.order or draw(BOOLEANS):
        axes = permuted(draw, [*free, None])[: draw(integers(0, 3))]
    return blocks.cut_layout(draw, partition, axes)
