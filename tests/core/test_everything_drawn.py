"""Small strategies draw exactly what their definition lists, and nothing twice where there is nothing else to choose."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import combinations_with_replacement, pairwise, permutations, product
from typing import Any

import pytest
from hypothesis import find, settings

import adjointlab as al
from adjointlab.core import strategies
from adjointlab.core.partition import Partition
from tests.drawing import first_examples

pytestmark = pytest.mark.mpi_skip

FINDS = settings(max_examples=500, deadline=None, database=None, derandomize=True)


def grids_by_definition(size: int, orders: Iterable[int]) -> list[tuple[int, ...]]:
    sides = range(1, size + 1)
    return [g for order in orders for g in product(sides, repeat=order) if math.prod(g) == size]


def partitions_by_definition(ranks: int, orders: Iterable[int]) -> set[Partition]:
    return {
        Partition(shape, chosen)
        for size in range(1, ranks + 1)
        for shape in grids_by_definition(size, orders)
        for chosen in permutations(range(ranks), size)
    }


def cuts_by_definition(length: int, parts: int, least: int) -> set[tuple[int, ...]]:
    inner = combinations_with_replacement(range(length + 1), parts - 1)
    every = ((0, *ends, length) for ends in inner)
    return {ends for ends in every if all(b - a >= least for a, b in pairwise(ends))}


def broadcasts_by_definition(ranks: int, max_order: int) -> set[tuple[Partition, Partition]]:
    """A side of the source is 1 or the destination's, and it may lack leading sides that would be 1."""
    every = partitions_by_definition(ranks, range(1, max_order + 1))
    return {
        (source, destination)
        for source, destination in product(every, repeat=2)
        if source.order <= destination.order
        and all(
            side in (1, whole)
            for side, whole in zip(source.shape[::-1], destination.shape[::-1], strict=False)
        )
    }


def cut_layouts(side: int, parts: int, least: int = 0) -> set[al.Layout]:
    return {al.Layout.cut((side,), (parts,), [ends]) for ends in cuts_by_definition(side, parts, least)}


FLOATING_OF_TORCH = (*strategies.FLOATING, *(["bfloat16"] if find_spec("torch") else []))

EVERYTHING: dict[str, tuple[Callable[[], Any], set[Any], int]] = {
    "orders of three ranks": (lambda: strategies.rank_orders(3), {*permutations(range(3))}, 100),
    "orders of two ranks of three": (lambda: strategies.rank_orders(3, 2), {*permutations(range(3), 2)}, 100),
    "orders of two ranks": (lambda: strategies.rank_orders(2), {(0, 1), (1, 0)}, 20),
    "grids": (
        lambda: strategies.partitions(4),
        {Partition(g) for g in grids_by_definition(4, (1, 2, 3))},
        100,
    ),
    "grids of order 2 at most": (
        lambda: strategies.partitions(4, max_order=2),
        {Partition(g) for g in grids_by_definition(4, (1, 2))},
        60,
    ),
    "grids of order 2": (
        lambda: strategies.partitions(6, 2),
        {Partition(g) for g in grids_by_definition(6, (2,))},
        60,
    ),
    "partitions of some ranks": (
        lambda: strategies.partitions(2, whole=False),
        partitions_by_definition(2, (1, 2, 3)),
        150,
    ),
    "partitions of some of three ranks": (
        lambda: strategies.partitions(3, 1, whole=False),
        partitions_by_definition(3, (1,)),
        150,
    ),
    "partitions of order 0": (
        lambda: strategies.partitions(3, 0, whole=False),
        {Partition((), (r,)) for r in range(3)},
        60,
    ),
    "shapes of order 1": (lambda: strategies.shapes(1), {(side,) for side in range(13)}, 200),
    "shapes of order 1 and sides up to 2": (lambda: strategies.shapes(1, 2), {(0,), (1,), (2,)}, 60),
    "shapes of order 2 and sides up to 2": (
        lambda: strategies.shapes(2, 2),
        set(product(range(3), repeat=2)),
        200,
    ),
    "shapes of order 2 and sides up to 1": (
        lambda: strategies.shapes(2, 1),
        set(product(range(2), repeat=2)),
        200,
    ),
    "shapes of order 2": (lambda: strategies.shapes(2), {*product(range(7), repeat=2)}, 200),
    "shapes of order 3": (lambda: strategies.shapes(3), {*product(range(5), repeat=3)}, 400),
    "shapes in parts": (lambda: strategies.shapes(1, 4, divisible_by=(3,)), {(0,), (3,), (6,)}, 60),
    "cuts into two": (lambda: strategies.cuts(5, 2), cuts_by_definition(5, 2, 0), 100),
    "cuts into two of at least one": (
        lambda: strategies.cuts(4, 2, least=1),
        cuts_by_definition(4, 2, 1),
        60,
    ),
    "cuts into three": (lambda: strategies.cuts(3, 3), cuts_by_definition(3, 3, 0), 150),
    "cuts into three of at least two": (
        lambda: strategies.cuts(8, 3, least=2),
        cuts_by_definition(8, 3, 2),
        150,
    ),
    "layouts of a shape": (lambda: strategies.layouts(2, shape=(3,)), cut_layouts(3, 2), 60),
    "layouts of at least one": (lambda: strategies.layouts(2, shape=(4,), least=1), cut_layouts(4, 2, 1), 60),
    "layouts of some ranks": (
        lambda: strategies.layouts(2, shape=(2,), whole=False, balanced=True),
        {al.Layout((2,), partition) for partition in partitions_by_definition(2, (1,))},
        60,
    ),
    "layouts along a grid of least sides": (
        lambda: strategies.layouts(3, partition=(3,), least=2, balanced=True),
        {al.Layout((side,), (3,)) for side in range(6, 13)},
        200,
    ),
    "layouts in equal parts": (
        lambda: strategies.layouts(3, partition=(3,), divisible=True),
        {al.Layout((side,), (3,)) for side in (0, 3, 6, 9, 12)},
        200,
    ),
    "meshes of order 3": (lambda: strategies.meshes(4, 3), {*grids_by_definition(4, (1, 2, 3))}, 100),
    "element types": (lambda: strategies.dtypes(), {*strategies.FLOATING}, 60),
    "element types with integers": (
        lambda: strategies.dtypes(integers=True),
        {*strategies.FLOATING, "int64", "int32"},
        80,
    ),
    "element types of torch": (lambda: strategies.dtypes(bfloat16=True), {*FLOATING_OF_TORCH}, 60),
    "given element types": (lambda: strategies.dtypes(["int32", "float32"]), {"int32", "float32"}, 20),
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_everything_that_the_definition_lists_is_drawn_and_nothing_else(name: str) -> None:
    make, expected, within = EVERYTHING[name]
    assert set(first_examples(make(), within)) == expected


def test_every_broadcast_of_two_ranks_is_drawn_and_nothing_else() -> None:
    drawn = first_examples(strategies.broadcasting_partitions(2, 2, transpose=False), 700)
    assert {(each["source"], each["destination"]) for each in drawn} == broadcasts_by_definition(2, 2)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (strategies.rank_orders(2, 1), [(0,), (1,)]),
        (strategies.rank_orders(1), [(0,)]),
        (strategies.rank_orders(3, 0), None),
        (strategies.partitions(6, 1), [Partition((6,))]),
        (strategies.partitions(2, 0), [Partition((), (r,)) for r in range(2)]),
        (strategies.partitions(1, 2, whole=False), [Partition((1, 1))]),
        (strategies.cuts(5, 1), [(0, 5)]),
        (strategies.cuts(5, 1, least=5), [(0, 5)]),
        (strategies.layouts(3, shape=(4,), balanced=True), [al.Layout((4,), (3,))]),
        (strategies.layouts(3, shape=(6,), divisible=True), [al.Layout((6,), (3,))]),
        (strategies.layouts(1, shape=(6,)), [al.Layout((6,), (1,))]),
        (strategies.meshes(6, 1), [(6,)]),
        (strategies.meshes(3, 2), [(3,), (3, 1), (1, 3)]),
        (strategies.shapes(0), None),
    ],
)
def test_nothing_is_chosen_that_makes_no_difference(strategy: Any, expected: list[Any] | None) -> None:
    drawn = first_examples(strategy, 30)
    if expected is None:
        assert set(drawn) == {()}
    else:
        assert sorted(drawn, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(("order", "sides"), [(2, range(7)), (3, range(5)), (4, range(6)), (5, range(7))])
def test_sides_of_tensors_of_higher_order_go_up_to_their_bound(order: int, sides: range) -> None:
    drawn = first_examples(strategies.shapes(order), 400)
    assert {side for shape in drawn for side in shape} == set(sides)
    assert all(len(shape) == order for shape in drawn)
    assert any(len(set(shape)) == order and min(shape) > 1 for shape in drawn)


@pytest.mark.parametrize("divisible_by", [(2,), (2, 2, 2)])
def test_a_divisor_is_given_for_each_dimension(divisible_by: tuple[int, ...]) -> None:
    message = f"divisible_by: {divisible_by} is not 2 numbers above 0, one for each dimension"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        strategies.shapes(2, divisible_by=divisible_by)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (strategies.cuts(5, 3, least=2), "least: 3 parts of at least 2 elements do not fit into 5"),
        (strategies.cuts(5, 3, least=-1), "least: at least 0, not -1"),
        (
            strategies.layouts(2, shape=(4, 3), partition=(1, 2), divisible=True),
            "divisible: the 1x2 partition does not divide the sides (4, 3)",
        ),
        (
            strategies.layouts(2, shape=(4, 3), partition=(1, 2), least=2),
            "least: the sides (4, 3) leave fewer than 2 for some worker of 1x2",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_figures(strategy: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}(\n|$)"):
        find(strategy, lambda _: True, settings=FINDS)


# Nested shards


def test_grids_of_nested_shards_are_all_those_of_three_dimensions_at_most() -> None:
    for ranks, within in ((1, 60), (4, 300)):
        grids = {each["grid"] for each in first_examples(strategies.nested_shards(ranks), within)}
        assert grids == {Partition(grid) for grid in grids_by_definition(ranks, (1, 2, 3))}


def test_grids_of_nested_shards_have_mostly_several_dimensions_and_no_side_of_1() -> None:
    drawn = Counter(each["grid"].shape for each in first_examples(strategies.nested_shards(4), 300))
    assert drawn[2, 2] > drawn[(4,)]
    assert drawn[2, 2] + drawn[(4,)] > 0.5 * drawn.total()


def test_nested_shards_are_of_tensors_of_up_to_three_dimensions_or_of_those_that_are_asked_for() -> None:
    assert {each["layout"].order for each in first_examples(strategies.nested_shards(2), 100)} == {1, 2, 3}
    assert {each["layout"].order for each in first_examples(strategies.nested_shards(2, 2), 50)} == {2}


def test_nested_shards_are_over_all_ranks_in_order_or_over_some_in_any() -> None:
    whole = {each["grid"].ranks for each in first_examples(strategies.nested_shards(3, 1), 50)}
    assert whole == {(0, 1, 2)}
    some = {each["grid"].ranks for each in first_examples(strategies.nested_shards(2, 1, whole=False), 150)}
    assert some == {(0,), (1,), (0, 1), (1, 0)}


def test_all_cuts_of_a_dimension_along_a_grid_of_two_by_two_are_drawn() -> None:
    drawn = first_examples(strategies.nested_shards(4, 1), 120)
    shards = {each["shards"] for each in drawn if each["grid"].shape == (2, 2)}
    assert shards == {(((0, 2), (1, 2)),), (((1, 2), (0, 2)),)}
    held = [[each["layout"].local_size(rank) for rank in each["grid"].ranks] for each in drawn]
    assert any(min(sizes) == 0 < max(sizes) for sizes in held)
    drawn = first_examples(strategies.nested_shards(4, 2), 120)
    shards = {each["shards"] for each in drawn if each["grid"].shape == (4,)}
    assert shards == {(((0, 4),), ()), ((), ((0, 4),)), (((0, 2),), ((0, 2),))}


# Placements


def test_placements_are_sharded_replicated_and_where_it_is_asked_for_partial() -> None:
    tensor = pytest.importorskip("torch.distributed.tensor")
    kinds = {tensor.Shard(0), tensor.Shard(1), tensor.Replicate()}
    for partial in (False, True):
        if partial:
            kinds.add(tensor.Partial())
        drawn = first_examples(strategies.placements((2, 2), 2, partial=partial), 200)
        assert set(drawn) == {*product(kinds, repeat=2)}


def test_of_two_mesh_dimensions_that_cut_a_side_the_first_is_strided_by_the_second() -> None:
    torch = pytest.importorskip("torch.distributed.tensor")
    from torch.distributed.tensor.placement_types import _StridedShard

    drawn = first_examples(strategies.placements((2, 3, 5), 2, strided=(30, 30)), 400)
    strided = {each for each in drawn if any(isinstance(placement, _StridedShard) for placement in each)}
    expected = set()
    for dim in range(2):
        for other in (torch.Shard(1 - dim), torch.Replicate()):
            shard = torch.Shard(dim)
            expected |= {
                (_StridedShard(dim, split_factor=3), shard, other),
                (_StridedShard(dim, split_factor=5), other, shard),
                (other, _StridedShard(dim, split_factor=5), shard),
            }
    assert strided == expected


# Pipelines


@pytest.mark.parametrize("schedule", strategies.SCHEDULES)
def test_stages_of_a_pipeline_have_a_layer_at_least_and_two_are_left_to_spread(schedule: str) -> None:
    drawn = first_examples(strategies.pipelines(3, schedules=[schedule]), 250)
    several = {"ScheduleGPipe": {1}, "Schedule1F1B": {1}, "ScheduleZBVZeroBubble": {2}}.get(schedule, {2, 3})
    found = Counter((len(each["cuts"]) - 1, each["cuts"][-1]) for each in drawn)
    assert set(found) == {(3 * on_each, 3 * on_each + more) for on_each in several for more in range(3)}
    for each in drawn:
        assert all(b > a for a, b in pairwise(each["cuts"]))
    legal = {
        stages: [
            n
            for n in range(1, 2 * stages + 2)
            if (schedule != "Schedule1F1B" or n >= stages)
            and ("Interleaved" not in schedule or n < 3 or n % (n // 3) == 0)
        ]
        for stages, _ in found
    }
    for stages, numbers in legal.items():
        taken = {each["microbatches"] for each in drawn if len(each["cuts"]) - 1 == stages}
        assert taken == set(numbers)
