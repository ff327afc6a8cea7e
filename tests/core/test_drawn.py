"""Everything that a strategy promises to draw is drawn within a stated number of cases, and nothing that it rules out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from typing import Any

import pytest

import adjointlab as al
from adjointlab.core import strategies
from adjointlab.core.layout import balanced_cut
from tests.drawing import first_cases


@dataclass(frozen=True)
class Promise:
    """Something that a strategy draws `within` a search of so many cases, for each of two seeds."""

    name: str
    strategy: Any
    is_so: Callable[[Any], bool]
    within: int = 100


def sizes(ends: tuple[int, ...]) -> list[int]:
    return [stop - start for start, stop in pairwise(ends)]


CUTS = strategies.cuts(7, 3)
ORDERS = strategies.rank_orders(4, 3)
ALL_RANKS = strategies.rank_orders(4)
SOME = strategies.partitions(4, whole=False)
WHOLE = strategies.partitions(4)
SHAPES = strategies.shapes(2)
LAYOUTS = strategies.layouts(4, whole=False)
WHOLE_LAYOUTS = strategies.layouts(4)
NESTED = strategies.nested_shards(4)
MESHES = strategies.meshes(4)
BROADCASTS = strategies.broadcasting_partitions(4)
LEAST = strategies.cuts(9, 3, least=2)


FLAGS = ("transpose_src", "transpose_dest")
FLOATING = ("float64", "float32", "float16", "complex128", "complex64")


def local_sizes(layout: al.Layout) -> list[int]:
    return [layout.local_size(rank) for rank in layout.partition.ranks]


def is_balanced(layout: al.Layout) -> bool:
    return layout == al.Layout(layout.shape, layout.partition)


def overlap(drawn: Any) -> int:
    return len(set(drawn["source"].ranks) & set(drawn["destination"].ranks))


RARE = 300
"""Cases of a search in which one of many possibilities is drawn; a search of 100 misses it sometimes."""

PROMISES = [
    # Cuts.
    Promise("a balanced cut", CUTS, lambda ends: ends == balanced_cut(7, 3)),
    Promise("an uneven cut", CUTS, lambda ends: ends != balanced_cut(7, 3)),
    Promise("an empty first part", CUTS, lambda ends: sizes(ends)[0] == 0),
    Promise("an empty part in the middle", CUTS, lambda ends: sizes(ends)[1] == 0),
    Promise("an empty last part", CUTS, lambda ends: sizes(ends)[2] == 0),
    Promise("all in one part", CUTS, lambda ends: max(sizes(ends)) == 7),
    Promise("two empty parts", CUTS, lambda ends: sizes(ends).count(0) == 2),
    Promise("a cut with a least part and more", LEAST, lambda ends: max(sizes(ends)) == 5),
    *(Promise(f"part {part} as small as allowed", LEAST, lambda ends, p=part: sizes(ends)[p] == 2) for part in range(3)),
    # Ranks.
    Promise("ranks in order", ORDERS, lambda ranks: ranks == (0, 1, 2)),
    *(Promise(f"a group without rank {gone}", ORDERS, lambda ranks, g=gone: g not in ranks) for gone in range(4)),
    *(Promise(f"rank {first} first", ORDERS, lambda ranks, f=first: ranks[0] == f) for first in range(4)),
    Promise("ranks in another order", ORDERS, lambda ranks: list(ranks) != sorted(ranks)),
    Promise("all ranks in another order", ALL_RANKS, lambda ranks: list(ranks) != sorted(ranks)),
    *(Promise(f"the order {order}", ORDERS, lambda ranks, o=order: ranks == o, 1000) for order in permutations((0, 1, 3), 3)),
    # Partitions.
    *(Promise(f"a grid of order {order}", WHOLE, lambda grid, o=order: grid.order == o) for order in (1, 2, 3)),
    Promise("a square grid", WHOLE, lambda grid: grid.shape == (2, 2)),
    Promise("a side of 1 first", WHOLE, lambda grid: grid.shape == (1, 4)),
    Promise("a side of 1 last", WHOLE, lambda grid: grid.shape == (4, 1)),
    *(Promise(f"a group of {size}", SOME, lambda grid, s=size: grid.size == s) for size in (1, 2, 3, 4)),
    Promise("a group that does not start at rank 0", SOME, lambda grid: 0 not in grid.ranks),
    Promise("a permuted group", SOME, lambda grid: list(grid.ranks) != sorted(grid.ranks)),
    Promise("a strided group", SOME, lambda grid: grid.ranks in ((0, 2), (1, 3))),
    Promise("a grid of order 0", strategies.partitions(4, 0), lambda grid: grid.ranks == (3,)),
    # Shapes.
    Promise("sides that are different", SHAPES, lambda shape: shape[0] != shape[1]),
    Promise("sides above 1 that are different", SHAPES, lambda shape: shape[0] != shape[1] and min(shape) > 1),
    Promise("equal sides", SHAPES, lambda shape: shape[0] == shape[1]),
    *(Promise(f"an empty side {dim}", SHAPES, lambda shape, d=dim: shape[d] == 0) for dim in (0, 1)),
    *(Promise(f"a side {dim} of 1", SHAPES, lambda shape, d=dim: shape[d] == 1) for dim in (0, 1)),
    *(Promise(f"the largest side {dim}", SHAPES, lambda shape, d=dim: shape[d] == 6) for dim in (0, 1)),
    # Layouts.
    Promise("a balanced layout", LAYOUTS, is_balanced),
    Promise("an uneven layout", LAYOUTS, lambda layout: not is_balanced(layout)),
    Promise("an empty local tensor beside others", LAYOUTS, lambda layout: min(local_sizes(layout)) == 0 < max(local_sizes(layout))),
    Promise("an empty tensor", LAYOUTS, lambda layout: max(local_sizes(layout)) == 0),
    Promise("inactive ranks", LAYOUTS, lambda layout: layout.partition.size < 4),
    Promise("permuted ranks", LAYOUTS, lambda layout: list(layout.partition.ranks) != sorted(layout.partition.ranks)),
    *(Promise(f"a tensor of order {order}", LAYOUTS, lambda layout, o=order: layout.order == o) for order in (1, 2, 3)),
    Promise("uneven cuts of two dimensions", WHOLE_LAYOUTS, lambda layout: layout.partition.shape == (2, 2) and len({layout.local_shape(rank) for rank in range(4)}) == 4),
    # Nested shards, meshes, broadcasts.
    Promise("one dimension cut along two", NESTED, lambda drawn: any(len(of_dim) > 1 for of_dim in drawn["shards"])),
    Promise("two dimensions cut along one", NESTED, lambda drawn: sum(any(g == 0 for g, _ in of_dim) for of_dim in drawn["shards"]) > 1, RARE),
    Promise("the last grid dimension outermost", NESTED, lambda drawn: any([g for g, _ in of_dim] == [1, 0] for of_dim in drawn["shards"])),
    Promise("an uneven nested cut", NESTED, lambda drawn: len(set(local_sizes(drawn["layout"]))) > 1),
    *(Promise(f"the mesh {mesh}", MESHES, lambda drawn, m=mesh: drawn == m) for mesh in ((4,), (2, 2), (4, 1), (1, 4))),
    Promise("a source among the destinations", BROADCASTS, lambda drawn: overlap(drawn) > 0),
    Promise("a source apart", BROADCASTS, lambda drawn: overlap(drawn) == 0),
    Promise("a source of lower order", BROADCASTS, lambda drawn: drawn["source"].order < drawn["destination"].order),
    Promise("several sources", strategies.broadcasting_partitions(8), lambda drawn: 1 < drawn["source"].size < drawn["destination"].size, RARE),
    Promise("as many sources as destinations", BROADCASTS, lambda drawn: drawn["source"].size == drawn["destination"].size > 1),
    Promise("inactive ranks of a broadcast", BROADCASTS, lambda drawn: len({*drawn["source"].ranks, *drawn["destination"].ranks}) < 4),
    *(Promise(f"the partition of {flag} alone is transposed", BROADCASTS, lambda drawn, f=flag: [drawn[each] for each in FLAGS] == [each == f for each in FLAGS]) for flag in FLAGS),
    *(Promise(f"{flag} {value}", BROADCASTS, lambda drawn, f=flag, v=value: drawn[f] is v) for flag in ("transpose_src", "transpose_dest") for value in (True, False)),
    # Element types.
    *(Promise(dtype, strategies.dtypes(), lambda drawn, d=dtype: drawn == d) for dtype in FLOATING),
    *(Promise(dtype, strategies.dtypes(integers=True), lambda drawn, d=dtype: drawn == d) for dtype in ("int32", "int64")),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_what_is_promised_is_drawn(promise: Promise, seed: int) -> None:
    assert any(map(promise.is_so, first_cases(promise.strategy, promise.within, seed)))


NEVER = [
    Promise("an uneven cut of a balanced layout", strategies.layouts(4, balanced=True), lambda layout: not is_balanced(layout)),
    Promise("an inactive rank of a whole partition", WHOLE, lambda grid: grid.ranks != (0, 1, 2, 3)),
    Promise("a rank twice", ORDERS, lambda ranks: len(set(ranks)) < 3),
    Promise("a shape that the grid does not divide", strategies.shapes(2, divisible_by=(3, 2)), lambda shape: shape[0] % 3 or shape[1] % 2),
    Promise("transposed partitions that were not asked for", strategies.broadcasting_partitions(4, transpose=False), lambda drawn: drawn["transpose_src"] or drawn["transpose_dest"]),
    Promise("integers that were not asked for", strategies.dtypes(), lambda drawn: drawn.startswith("int")),
]  # fmt: skip


@pytest.mark.parametrize("promise", NEVER, ids=lambda promise: promise.name)
def test_what_is_ruled_out_is_not_drawn(promise: Promise) -> None:
    assert not any(map(promise.is_so, first_cases(promise.strategy, 200)))


def test_a_source_has_a_dimension_at_least_and_may_have_any_number_up_to_that_of_its_target() -> None:
    drawn = first_cases(strategies.broadcasting_partitions(1), 300)  # of one rank, all sides are 1
    orders = {(each["source"].order, each["destination"].order) for each in drawn}
    assert orders == {(1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (3, 3)}


@pytest.mark.parametrize(
    ("side", "may_be_strided"), [(0, True), (4, True), (8, True), (5, False), (6, False)]
)
def test_shards_are_strided_where_both_mesh_dimensions_divide_the_side(
    side: int, may_be_strided: bool
) -> None:
    pytest.importorskip("torch")
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    drawn = set(first_cases(strategies.placements((2, 2), 2, strided=(side, 3)), 100))
    strided = {each for each in drawn if any(isinstance(placement, _StridedShard) for placement in each)}
    assert strided == ({(_StridedShard(0, split_factor=2), Shard(0))} if may_be_strided else set())
    assert {(Shard(0), Shard(0)), (Shard(1), Shard(1))} < drawn


def test_every_mesh_of_all_ranks_is_drawn_that_of_one_dimension_first() -> None:
    drawn = first_cases(strategies.meshes(4), 60)
    assert drawn[0] == (4,)
    assert set(drawn) == {(4,), (4, 1), (2, 2), (1, 4)}
    assert set(first_cases(strategies.meshes(6), 60)) == {(6,), (6, 1), (3, 2), (2, 3), (1, 6)}


@pytest.mark.parametrize("seed", range(2))
def test_ranks_keep_their_order_more_often_than_by_chance(seed: int) -> None:
    drawn = first_cases(strategies.rank_orders(6, 3), 300, seed)
    in_order = sum(list(each) == sorted(each) for each in drawn)
    assert 0.3 < in_order / len(drawn) < 0.6  # a permutation of three is in order once in six


def test_every_grid_of_a_size_is_listed_once() -> None:
    assert strategies.grids(4, 2) == ((1, 4), (2, 2), (4, 1))
    assert strategies.grids(6, 0) == ((),)
    by_definition = [shape for shape in product(range(1, 13), repeat=3) if math.prod(shape) == 12]
    assert list(strategies.grids(12, 3)) == by_definition


@pytest.mark.parametrize("schedule", strategies.SCHEDULES)
def test_every_schedule_of_a_pipeline_is_drawn_with_unequal_stages(schedule: str) -> None:
    drawn = [each for each in first_cases(strategies.pipelines(2), 120) if each["schedule"] == schedule]
    assert drawn
    assert any(len(set(sizes(each["cuts"]))) > 1 for each in drawn)
    assert len({each["microbatches"] for each in drawn}) > 1
    on_each = {(len(each["cuts"]) - 1) // 2 for each in drawn}
    assert on_each == ({1} if schedule in strategies.SCHEDULES[:2] else {2} if "V" in schedule else {2, 3})


@pytest.mark.parametrize(
    ("schedule", "taken"),
    [
        ("ScheduleGPipe", {1, 2, 3, 4, 5}),
        ("Schedule1F1B", {2, 3, 4, 5}),  # as many as stages, or more
        ("ScheduleInterleavedZeroBubble", {1, 2, 3, 4, 6, 8, 10, 12}),  # rounds of equal length
    ],
)
def test_numbers_of_microbatches_are_those_that_the_schedule_takes(schedule: str, taken: set[int]) -> None:
    drawn = first_cases(strategies.pipelines(2, schedules=(schedule,)), 150)
    assert {each["microbatches"] for each in drawn} == taken
