"""The strategies for users draw always what they say, sometimes what hurts, and simple cases where these are enough."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.core import kept_strategies, strategies
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.drawing import first_examples

QUICK = settings(max_examples=60, deadline=None, database=None, derandomize=True)
FINDS = settings(max_examples=2000, deadline=None, database=None, derandomize=True)
SHRINKS = settings(FINDS, phases=(Phase.generate, Phase.shrink))


@QUICK
@given(st.data(), st.integers(0, 20), st.integers(1, 5), st.integers(0, 3))
def test_a_cut_has_the_least_part(data: st.DataObject, spare: int, parts: int, least: int) -> None:
    ends = data.draw(strategies.cuts(spare + least * parts, parts, least=least))
    assert (ends[0], ends[-1], len(ends)) == (0, spare + least * parts, parts + 1)
    assert all(stop - start >= least for start, stop in pairwise(ends))


def test_every_cut_with_a_least_part_is_drawn_and_the_balanced_one_is_the_simplest() -> None:
    possible = {(0, a, b, 6) for a, b in product(range(7), repeat=2) if a >= 1 and b - a >= 1 and b <= 5}
    for ends in possible:
        assert find(strategies.cuts(6, 3, least=1), lambda drawn, e=ends: drawn == e, settings=FINDS) == ends  # type: ignore[misc]
    assert find(strategies.cuts(6, 3, least=1), lambda _: True, settings=SHRINKS) == (0, 2, 4, 6)


def test_the_simplest_ranks_are_the_first_in_their_order() -> None:
    for size in range(5):
        assert find(strategies.rank_orders(4, size), lambda _: True, settings=SHRINKS) == tuple(range(size))


@pytest.mark.parametrize(
    ("make", "arguments", "named"),
    [
        ("partitions", (4.0, 1), "ranks: 4.0 is not a whole number"),
        ("partitions", (3, -1), "order: at least 0, not -1"),
        ("partitions", (0,), "ranks: at least 1, not 0"),
        ("rank_orders", ("4",), "ranks: '4' is not a whole number"),
        ("cuts", (8.0, 2), "length: 8.0 is not a whole number"),
        ("cuts", (8, 0), "parts: at least 1, not 0"),
        ("layouts", (2, 1.0), "ndim: 1.0 is not a whole number"),
        ("layouts", (2.0,), "ranks: 2.0 is not a whole number"),
        ("meshes", (4.0,), "ranks: 4.0 is not a whole number"),
        ("nested_shards", (4.0,), "ranks: 4.0 is not a whole number"),
        ("placements", (2, 2), "mesh: 2 is not a sequence of integers"),
        ("placements", (("dp",), 2), "mesh: ('dp',) is not a sequence of integers"),
        ("placements", ((2,), "2"), "ndim: '2' is not a whole number"),
        ("placements", ((2,), -1), "ndim: at least 0, not -1"),
        ("broadcasting_partitions", (4.0,), "ranks: 4.0 is not a whole number"),
        ("pipelines", (None,), "ranks: None is not a whole number"),
        ("shapes", ((2, 3),), "order: (2, 3) is not a whole number"),
    ],
)
def test_arguments_that_are_no_whole_numbers_are_refused_by_their_names(
    make: str, arguments: tuple[Any, ...], named: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(named)):
        find(getattr(strategies, make)(*arguments), lambda _: True, settings=FINDS)
    # What is remembered of the refused one is not drawn for the number that equals it.
    assert find(strategies.layouts(4, 1), lambda _: True, settings=FINDS).local_shape(0)


def test_named_arguments_are_refused_as_users_write_them() -> None:
    make: Any = strategies.layouts
    with pytest.raises(TypeError, match=r"^layouts\(\) got an unexpected keyword argument 'dims'"):
        make(2, dims=1)
    with pytest.raises(ValueError, match=r"^shape: a side of a tensor is at least 0, not \(-3,\)"):
        find(strategies.layouts(2, shape=(-3,)), lambda _: True, settings=FINDS)
    given: Any
    for given in ("ScheduleGPipe", []):
        with pytest.raises(ValueError, match=r"^schedules: .* is not a list of names of schedules, such as"):
            find(strategies.pipelines(2, schedules=given), lambda _: True, settings=FINDS)


def test_placements_are_drawn_on_a_mesh_with_names_too() -> None:
    drawn = find(strategies.placements({"dp": 2, "tp": 2}, 1), lambda _: True, settings=FINDS)
    assert len(drawn) == 2


def test_a_shape_is_rounded_up_to_numbers_above_0_for_each_dimension() -> None:
    for parts in ((0,), (2, 2), 2):
        with pytest.raises((TypeError, ValueError), match="divisible_by"):
            strategies.shapes(1, divisible_by=parts)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="shape: 5 is not a sequence"):
        find(strategies.layouts(2, shape=5), lambda _: True, settings=FINDS)  # type: ignore[arg-type]


def test_parts_that_do_not_fit_are_refused() -> None:
    for strategy in (strategies.cuts(5, 3, least=2), strategies.layouts(3, shape=(5,), least=2)):
        with pytest.raises(ValueError, match="least"):
            find(strategy, lambda _: True, settings=FINDS)
    for shape, balanced in (((5,), True), ((5,), False)):
        strategy = strategies.layouts(3, shape=shape, least=2, partition=(3,), balanced=balanced)
        with pytest.raises(ValueError, match="leave fewer than 2 for some worker"):
            find(strategy, lambda _: True, settings=FINDS)
    fits = strategies.layouts(3, shape=(6,), least=2, partition=(3,), balanced=True)
    assert find(fits, lambda _: True, settings=FINDS) == al.Layout((6,), (3,))
    with pytest.raises(ValueError, match="does not divide"):
        find(strategies.layouts(3, shape=(5,), divisible=True), lambda _: True, settings=FINDS)
    with pytest.raises(ValueError, match="divisible_by"):
        strategies.shapes(2, divisible_by=(2,))


@QUICK
@given(st.data(), st.integers(1, 8), st.integers(0, 2))
def test_layouts_hold_the_least_part_and_equal_ones_where_the_grid_divides(
    data: st.DataObject, ranks: int, least: int
) -> None:
    layout = data.draw(strategies.layouts(ranks, whole=False, least=least))
    assert all(min(layout.local_shape(rank)) >= least for rank in layout.partition.ranks)
    equal = data.draw(strategies.layouts(ranks, whole=False, least=least, divisible=True))
    assert len({equal.local_shape(rank) for rank in equal.partition.ranks}) == 1
    assert all(min(equal.local_shape(rank)) >= least for rank in equal.partition.ranks)


def test_sides_that_the_grid_divides_are_drawn_with_more_than_one_element_each_and_with_none() -> None:
    for wanted in ((3, 4), (6, 4), (0, 2)):
        strategy = strategies.shapes(2, divisible_by=(3, 2))
        assert find(strategy, lambda shape, w=wanted: shape == w, settings=FINDS) == wanted  # type: ignore[misc]


# Nested shards


def window_by_definition(shards: Any, layout: al.Layout, grid_index: tuple[int, ...]) -> list[set[int]]:
    """For each tensor dimension, the innermost part that a worker holds, found from its grid index cut by cut."""
    digits: dict[tuple[int, int], int] = {}
    for grid_dim, index in enumerate(grid_index):
        # The last tensor dimension has the minor part of the index.
        for dim in reversed(range(len(shards))):
            for of_grid_dim, parts in shards[dim]:
                if of_grid_dim == grid_dim:
                    index, digits[dim, grid_dim] = divmod(index, parts)
    held = []
    for dim, of_dim in enumerate(shards):
        part = 0
        for grid_dim, parts in of_dim:
            part = part * parts + digits[dim, grid_dim]
        ends = layout.ends(dim)
        assert ends is not None
        held.append(set(range(ends[part], ends[part + 1])))
    return held


@QUICK
@given(st.data(), st.integers(1, 8), st.integers(0, 1))
def test_a_worker_of_nested_shards_holds_the_part_of_its_grid_index(
    data: st.DataObject, ranks: int, least: int
) -> None:
    drawn = data.draw(strategies.nested_shards(ranks, whole=False, least=least))
    grid, shards, layout = drawn["grid"], drawn["shards"], drawn["layout"]
    assert sorted(layout.partition.ranks) == sorted(grid.ranks)
    for rank in grid.ranks:
        held = [set(range(*window)) for window in layout.window(rank) or ()]
        assert held == window_by_definition(shards, layout, grid.index(rank))
        assert all(len(indices) >= least for indices in held)
    assert from_data(to_data(drawn)) == drawn  # as a reproducer stores it


NESTED = {
    "one tensor dimension along two grid dimensions": (lambda d: len(d["shards"][0]) > 1, 4),
    "the same, the last grid dimension outermost": (lambda d: d["shards"][0][:1] == ((1, 2),), 2),
    "two tensor dimensions along one grid dimension": (
        lambda d: {g for g, _ in d["shards"][0]} & {g for of_dim in d["shards"][1:] for g, _ in of_dim},
        4,
    ),
    "outer parts cut at different places": (
        lambda d: (
            d["shards"] == (((0, 2), (1, 2)),)
            and len({tuple(b - a for a, b in d["layout"].windows[0][i : i + 2]) for i in (0, 2)}) > 1
        ),
        4,
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_shards_of_each_kind_are_drawn_and_are_small(name: str) -> None:
    wanted, ranks = NESTED[name]
    smallest = find(
        st.integers(1, 4).flatmap(strategies.nested_shards),
        lambda drawn: bool(wanted(drawn)),
        settings=SHRINKS,
    )
    assert smallest["grid"].size == ranks
    assert max(smallest["layout"].shape) <= 2


class GatherShards(al.LinearOperator):
    """Gathers a tensor of order 1 on rank 0 from shards that are described by dimensions of a grid."""

    def __init__(self, comm: Any, grid: al.Partition, shards: Any, layout: al.Layout) -> None:
        self.comm, self.grid, self.layout = comm, grid, layout
        self.domain = al.Space(layout)
        self.codomain = al.Space(al.Layout(layout.shape, al.Partition((1,))), name="y")

    def order_of_shards(self) -> tuple[int, ...]:
        return self.layout.partition.ranks

    def forward(self, x: Any) -> Any:
        shards = self.comm.gather(np.array(x), root=0)
        if self.comm.Get_rank():
            return np.zeros(0)
        return np.concatenate([shards[rank] for rank in self.order_of_shards()])

    def adjoint(self, y: Any) -> Any:
        ranks = range(self.comm.Get_size())
        shards = [np.array(y[slice(*(self.layout.window(rank) or ((0, 0),))[0])]) for rank in ranks]
        return self.comm.scatter(shards if self.comm.Get_rank() == 0 else None, root=0)


class IgnoresTheNesting(GatherShards):
    """Takes the shards in the order of the grid, as if its first dimension were always the outermost."""

    def order_of_shards(self) -> tuple[int, ...]:
        return self.grid.ranks


def nested(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(draw(strategies.nested_shards(ranks, 1)))


def plain(draw: Any, ranks: int) -> dict[str, Any]:
    layout = draw(strategies.layouts(ranks, 1))
    return {"grid": layout.partition, "shards": (((0, ranks),),), "layout": layout}


def test_a_bug_of_nested_shards_is_found_with_them_only_and_shrinks_to_two_by_two() -> None:
    world, budget = SimulatedWorld(4), Budget(60, seed=1)
    for operator, draw in ((GatherShards, nested), (GatherShards, plain), (IgnoresTheNesting, plain)):
        passed = investigate(world, al.subject(operator)(draw), "adjoint", budget)
        assert passed.status is Status.COHERENT, passed
    found = investigate(world, al.subject(IgnoresTheNesting)(nested), "adjoint", budget)
    assert found.case is not None
    assert found.status is Status.INCOHERENT
    assert found.case.parameters["grid"] == al.Partition((2, 2))
    assert found.case.parameters["shards"] == (((1, 2), (0, 2)),)
    assert found.case.parameters["layout"].shape <= (3,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: strategies.broadcasting_partitions(4),
        lambda: strategies.layouts(4, partition=al.Partition((2,))),
        lambda: strategies.cuts(7, 3, least=1),
        lambda: strategies.rank_orders(4, 2),
        lambda: strategies.partitions(4, whole=False),
        lambda: strategies.shapes(2),
        lambda: strategies.dtypes(),
    ],
)
def test_a_search_asks_hypothesis_once_for_each_strategy(make: Callable[[], object]) -> None:
    assert make() is make()


def test_arguments_that_cannot_be_hashed_serve_as_well() -> None:
    assert find(strategies.layouts(2, shape=[3]), lambda _: True, settings=SHRINKS).shape == (3,)


# What is left out, and what is made once


def test_arguments_of_strategies_that_are_left_out_are_these() -> None:
    left_out = {
        name: {
            argument.name: argument.default
            for argument in inspect.signature(getattr(strategies, name)).parameters.values()
            if argument.default is not argument.empty
        }
        for name in strategies.__all__
    }
    assert left_out == {
        "broadcasting_partitions": {"max_order": 3, "transpose": True},
        "cuts": {"least": 0},
        "dtypes": {"names": None, "bfloat16": False, "integers": False},
        "layouts": {
            "ndim": None,
            "partition": None,
            "whole": True,
            "balanced": False,
            "shape": None,
            "least": 0,
            "divisible": False,
        },
        "meshes": {"max_dims": 2},
        "nested_shards": {"ndim": None, "whole": True, "least": 0},
        "partitions": {"order": None, "whole": True, "max_order": 3},
        "pipelines": {"schedules": strategies.SCHEDULES},
        "placements": {"partial": False, "strided": None},
        "rank_orders": {"size": None},
        "shapes": {"largest": None, "divisible_by": None, "least": 0},
    }


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (strategies.broadcasting_partitions, (3,)),
        (strategies.cuts, (5, 2)),
        (strategies.layouts, (3, 2)),
        (strategies.meshes, (4,)),
        (strategies.nested_shards, (4, 2)),
        (strategies._nested_cuts, (4, (2, 2), 0)),
        (strategies.partitions, (4,)),
        (strategies.placements, ((2, 2), 2)),
        (strategies.rank_orders, (4,)),
        (strategies.shapes, (2,)),
        (kept_strategies.integers, (0, 2)),
        (kept_strategies.choices, ((1, 2),)),
        (kept_strategies._orders, (3,)),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_a_strategy_is_made_once_for_equal_arguments(make: Any, arguments: tuple[Any, ...]) -> None:
    """Hypothesis examines a strategy at its first draw, which takes as long as the draw."""
    assert make(*arguments) is make(*arguments)


@pytest.mark.parametrize("entries", [[], [None], [None, 0, None, (1, 2)]])
def test_an_order_is_drawn_as_hypothesis_draws_it(entries: list[Any]) -> None:
    @st.composite
    def orders(draw: st.DrawFn) -> list[Any]:
        return kept_strategies.permuted(draw, entries)

    assert first_examples(orders(), 20) == first_examples(st.permutations(entries), 20)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("largest", [0, 1, 2, 3, 7])
def test_no_side_is_above_the_largest_that_is_given(order: int, largest: int) -> None:
    @QUICK
    @given(strategies.shapes(order, largest))
    def sides(shape: tuple[int, ...]) -> None:
        assert len(shape) == order
        assert all(0 <= side <= largest for side in shape)

    sides()


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (lambda: strategies.shapes(1, -1), "largest: at least 0, not -1"),
        (lambda: strategies.shapes(1, least=-1), "least: at least 0, not -1"),
        (lambda: strategies.shapes(1, 2, least=3), "least: 3 is above the largest side, 2"),
        (lambda: strategies.rank_orders(2, 5), "size: 5 of 2 ranks cannot be drawn"),
        (lambda: strategies.layouts(2, ndim=3, shape=(4,)), "ndim: 3, but the shape (4,) has 1 dimension"),
        (lambda: strategies.layouts(2, ndim=3, partition=(2,)), "partition: 2 cuts 1 dimension, not 3"),
        (
            lambda: strategies.dtypes("float32"),
            "names: 'float32' is not a list of element types, such as ['float32']",
        ),
        (lambda: strategies.dtypes(["f8"]), "dtype: 'f8' is not one of float64"),
    ],
)
def test_arguments_that_fit_nothing_are_refused(strategy: Callable[[], Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        find(strategy(), lambda _: True, settings=FINDS)


def test_of_three_dimensions_grids_that_cut_all_are_drawn_more_often_than_there_are_such() -> None:
    """A corner between eight workers is in these alone."""
    drawn: Counter[bool] = Counter()

    @settings(max_examples=200, database=None, derandomize=True, deadline=None)
    @given(strategies.partitions(8, 3), st.integers(0, 10**6))  # Hypothesis draws nothing twice
    def count(partition: al.Partition, _: int) -> None:
        drawn[partition.shape == (2, 2, 2)] += 1

    count()
    assert drawn[True] > sum(drawn.values()) / 4
    assert len(drawn) == 2
    assert find(strategies.partitions(8, 3), lambda _: True, settings=SHRINKS).shape == (1, 1, 8)


def test_a_grid_may_be_given_as_a_list() -> None:
    @QUICK
    @given(strategies.shapes(2, divisible_by=[2, 3]))
    def sides(shape: tuple[int, ...]) -> None:
        assert (shape[0] % 2, shape[1] % 3) == (0, 0)

    sides()


def test_most_shapes_have_different_sides_above_one_and_few_have_no_element() -> None:
    shapes: list[tuple[int, ...]] = []

    @settings(FINDS, max_examples=200)
    @given(strategies.shapes(4))
    def collect(shape: tuple[int, ...]) -> None:
        shapes.append(shape)

    collect()
    different = [shape for shape in shapes if len(set(shape)) == 4 and min(shape) > 1]
    empty = [shape for shape in shapes if 0 in shape]
    assert len(different) > len(shapes) / 3
    assert 0 < len(empty) < len(shapes) / 6


@pytest.mark.parametrize("parts", [None, (2, 3)])
def test_shapes_without_empty_parts_are_drawn_where_these_are_asked_for(
    parts: tuple[int, ...] | None,
) -> None:
    @QUICK
    @given(strategies.shapes(2, divisible_by=parts, least=2))
    def sides(shape: tuple[int, ...]) -> None:
        assert all(side >= 2 * count for side, count in zip(shape, parts or (1, 1), strict=True))

    sides()
