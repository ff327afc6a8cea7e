"""Redistribute: distributions, the cheapest plan, the notation, local types, errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjointlab.core import arrays
from adjointlab.core.bases import basis_vector
from adjointlab.core.layout import balanced_cut
from adjointlab.core.notation import explain
from adjointlab.core.partition import Partition
from adjointlab.primitives.assignment import Assignment, layout_of, nested_cut
from adjointlab.primitives.redistribute import Redistribute
from adjointlab.primitives.redistribution_plan import Cost, cheapest
from adjointlab.primitives.repartition import Repartition

# ------------------------------------------------------------------------------------------------ distributions


@pytest.mark.parametrize("sides", [(2,), (3,), (2, 2), (2, 3), (3, 2), (2, 2, 2), (4, 3), (1, 3)])
def test_a_nested_cut_is_balanced(sides: tuple[int, ...]) -> None:
    """Its parts have the sizes of the balanced cut into as many, in another order."""
    for length in range(40):
        nested, balanced = nested_cut(length, sides), balanced_cut(length, math.prod(sides))
        assert sorted(np.diff(nested)) == sorted(np.diff(balanced))
        assert len(sides) > 1 or nested == balanced


@pytest.mark.parametrize("sides", [(2, 2), (2, 3), (3, 2), (2, 2, 3)])
def test_over_fewer_grid_dimensions_lie_unions_of_whole_parts(sides: tuple[int, ...]) -> None:
    for length in range(30):
        assert set(nested_cut(length, sides[:-1])) <= set(nested_cut(length, sides))


def test_a_layout_has_the_windows_of_its_assignment() -> None:
    """[Dryden19], section 2.3.2: what a worker holds of a dimension depends on its index in that dimension's part of the
    grid alone, and it holds all of a dimension that is not distributed.
    """
    grid = Partition([2, 3, 2], [7, 11, 3, 5, 0, 1, 2, 4, 6, 8, 9, 10])
    layout = layout_of(grid, (10, 4, 7), Assignment(((2, 0), (), (1,))))
    ends = {0: nested_cut(10, (2, 2)), 2: balanced_cut(7, 3)}
    for rank in grid.ranks:
        a, b, c = grid.index(rank)
        part = 2 * c + a
        assert layout.window(rank) == (
            (ends[0][part], ends[0][part + 1]),
            (0, 4),
            (ends[2][b], ends[2][b + 1]),
        )
    assert layout.partition.shape == (4, 3)
    assert set(layout.partition.ranks) == set(grid.ranks)


# --------------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("grid", "shape", "source", "partial", "target", "kinds"),
    [
        # the four basic cases of section 2.3.4, with * ← Σ̃ * and ◦ ← Σ̃ * of section 2.3.5
        ((4,), (8,), [[0]], (), [[]], ["all-gather"]),
        ((4,), (8,), [[]], (), [[0]], ["discard"]),
        ((4,), (8,), [[0]], (), [[0]], []),
        ((4,), (8,), [[]], (), [[]], []),
        ((4,), (8,), [[]], (0,), [[]], ["all-reduce"]),
        ((4,), (8,), [[]], (0,), [[0]], ["reduce-scatter"]),
        # ◦_d ← ◦_{d'} and the other way round
        ((2, 3), (12,), [[0, 1]], (), [[0]], ["all-gather"]),
        ((2, 3), (12,), [[0]], (), [[0, 1]], ["discard"]),
        ((2, 3), (12,), [[0]], (1,), [[0, 1]], ["reduce-scatter"]),
        ((2, 3), (12,), [[0]], (1,), [[0]], ["all-reduce"]),
        # from one dimension of the tensor to another
        ((4,), (8, 8), [[0], []], (), [[], [0]], ["all-to-all"]),
        ((2, 3), (12,), [[0]], (), [[1]], ["all-to-all"]),
        # dimension by dimension, with fewer messages than all at once
        ((4, 4), (8, 8), [[0], [1]], (), [[], []], ["all-gather", "all-gather"]),
        # redundant workers share the work of an all-reduce
        ((4, 2), (16,), [[]], (0,), [[]], ["discard", "reduce-scatter", "all-gather"]),
        ((4, 2, 3), (15,), [[]], (1, 2), [[]], ["discard", "reduce-scatter", "reduce-scatter", "all-gather"]),
        # a side of 1 distributes nothing
        ((1, 2), (6,), [[0]], (), [[]], []),
        ((1, 2), (6,), [[]], (0,), [[1]], ["discard"]),
    ],
)
def test_the_redistributions_of_dryden19_take_its_steps(
    grid: Any, shape: Any, source: Any, partial: Any, target: Any, kinds: list[str]
) -> None:
    plan = cheapest(grid, shape, _assigned(source, partial), _assigned(target))
    assert [step.kind.value for step in plan.steps] == kinds


@st.composite
def _redistributions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], Assignment, Assignment]:
    grid = draw(st.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (4, 2), (2, 4)]))
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=2)))
    every = list(_states(grid, len(shape)))
    return (
        grid,
        shape,
        draw(st.sampled_from(every)),
        draw(st.sampled_from([state for state in every if not state.summed])),
    )


@given(_redistributions())
def test_no_chain_is_cheaper_than_the_plan(case: Any) -> None:
    """Compared with all chains, whose steps are recognised by their ends and charged by counting missing elements."""
    grid, shape, source, target = case
    plan = cheapest(grid, shape, source, target)
    assert plan.cost == _cheapest_of_all(grid, shape, source, target)


def test_nor_on_a_grid_of_three_dimensions() -> None:
    grid, shape = (2, 2, 2), (5,)
    goal = _assigned([[1]])
    for source in (_assigned([[2, 0]], (1,)), _assigned([[]], (0, 2)), _assigned([[0, 1, 2]])):
        assert cheapest(grid, shape, source, goal).cost == _cheapest_of_all(grid, shape, source, goal)


@given(_redistributions())
def test_the_steps_lead_from_the_source_to_the_target(case: Any) -> None:
    grid, shape, source, target = case
    here = source
    for step in cheapest(grid, shape, source, target).steps:
        assert step.source == here
        here = step.target
    assert here == target


def _assigned(dims: Any, summed: Any = ()) -> Assignment:
    return Assignment(tuple(map(tuple, dims)), tuple(summed))


def _states(grid: tuple[int, ...], order: int) -> Iterator[Assignment]:
    """Every assignment with every set of summands."""
    axes = range(len(grid))
    for used in chain.from_iterable(permutations(axes, size) for size in range(len(grid) + 1)):
        rest = [axis for axis in axes if axis not in used]
        for ends in product(range(len(used) + 1), repeat=order - 1):
            if list(ends) == sorted(ends):
                bounds = (0, *ends, len(used))
                dims = tuple(used[bounds[k] : bounds[k + 1]] for k in range(order))
                for size in range(len(rest) + 1):
                    for summed in combinations(rest, size):
                        yield Assignment(dims, summed)


def _cheapest_of_all(
    grid: tuple[int, ...], shape: tuple[int, ...], source: Assignment, target: Assignment
) -> Cost:
    """Bellman and Ford's relaxation over all pairs of assignments."""
    edges = _edges(grid, shape, target)
    best = {source: Cost()}
    while True:
        before = dict(best)
        for one, other, cost in edges:
            if one in best:
                total = best[one].plus(cost)
                best[other] = min(best.get(other, total), total)
        if best == before:
            return best[target]


@lru_cache
def _edges(
    grid: tuple[int, ...], shape: tuple[int, ...], target: Assignment
) -> list[tuple[Assignment, Assignment, Cost]]:
    every = list(dict.fromkeys(_states(grid, len(shape))))
    return [
        (one, other, cost)
        for one, other in permutations(every, 2)
        for cost in _costs(grid, shape, one, other, other == target)
    ]


def _costs(
    grid: tuple[int, ...], shape: tuple[int, ...], one: Assignment, other: Assignment, is_target: bool
) -> Iterator[Cost]:
    """Cost of each kind of step that leads from one assignment to another."""
    changed = [dim for dim in range(len(shape)) if one.dims[dim] != other.dims[dim]]
    summed = set(one.summed) - set(other.summed)
    held, needed = _held(grid, shape, one), _held(grid, shape, other)
    missing = max(len(mine - had) for mine, had in zip(needed, held, strict=True))
    largest = max(map(len, needed))
    if len(changed) == 1 and set(other.summed) <= set(one.summed):
        before, after = one.dims[changed[0]], other.dims[changed[0]]
        if not summed and before[: len(after)] == after:
            yield _cost(missing, _rounds(grid, before[len(after) :]))
        if not summed and after[: len(before)] == before:
            yield Cost(0, 0, 1)
        if summed and after[: len(before)] == before and set(after[len(before) :]) == summed:
            workers = math.prod(grid[axis] for axis in summed)
            yield _cost((workers - 1) * largest, _rounds(grid, summed))
    if not changed and summed and set(other.summed) < set(one.summed):
        workers = math.prod(grid[axis] for axis in summed)
        received = (workers - 1) * -(-largest // workers) + largest - largest // workers
        yield _cost(received, 2 * _rounds(grid, summed))
    if is_target and not one.summed:
        senders = max(
            len({frozenset(theirs) for theirs in held if theirs & mine}) - bool(had & mine)
            for mine, had in zip(needed, held, strict=True)
        )
        yield _cost(missing, senders)._replace(all_to_alls=1)


def _cost(elements: int, messages: int) -> Cost:
    return Cost(elements, messages if elements else 0, 1)


def _rounds(grid: tuple[int, ...], along: Any) -> int:
    return math.ceil(math.log2(math.prod(grid[axis] for axis in along)))


def _held(grid: tuple[int, ...], shape: tuple[int, ...], given: Assignment) -> list[set[Any]]:
    """The elements that each worker holds."""
    partition = Partition(grid)
    layout = layout_of(partition, shape, given)
    return [
        set(product(*(range(*window) for window in layout.window(rank) or ()))) for rank in partition.ranks
    ]


# ------------------------------------------------------------------------------------------------- the operator


@pytest.mark.parametrize("copies", ["replicated", "invariant"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("source", "partial", "target"),
    [
        ([[0], []], (), [[], []]),
        ([[0, 1], []], (), [[0], []]),
        ([[], []], (), [[1, 0], []]),
        ([[0], []], (), [[], [0]]),
        ([[0], [1]], (), [[], []]),
        ([[], [1]], (0,), [[], [1]]),
        ([[], [1]], (0,), [[0], [1]]),
        ([[], []], (0,), [[], []]),
        ([[], []], (0, 1), [[], [0]]),
        ([[], []], (1, 0), [[], []]),
        ([[1], []], (0,), [[], [1]]),
        ([[1], []], (), [[1], []]),
    ],
)
def test_every_kind_of_step_and_its_adjoint_do_what_the_specification_says(
    source: Any, partial: Any, target: Any, library: str, copies: Any, apply_both: Any
) -> None:
    grid = Partition([3, 2], [6, 1, 4, 0, 3, 2])

    def make(comm: Any) -> Redistribute:
        return Redistribute(comm, grid, [5, 4], source, target, partial=partial, copies=copies)

    apply_both(7, make, library, "column-major")


def test_as_a_map_it_is_a_sum_and_a_repartition(spmd: Any) -> None:
    """Whatever the plan: here a discard, a reduce-scatter and an all-gather against one exchange of messages."""

    def body(comm: Any) -> Any:
        grid = Partition([4, 2])
        redistribute = Redistribute(comm, grid, [17], [[]], [[]], partial=[0])
        x, y = redistribute.domain.tensors[0], redistribute.codomain.tensors[0]
        repartition = Repartition(comm, x.layout, y.layout, types=x.types, target_types=y.types)
        assert len(redistribute.plan.steps) == 3
        return redistribute.matrix(), redistribute.H.matrix(), repartition.matrix()

    for matrix, adjoint, repartition in spmd(8, body):
        np.testing.assert_array_equal(matrix, repartition)
        np.testing.assert_array_equal(adjoint, repartition.T)


def test_there_and_back_again_is_the_identity(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        grid, shape = Partition([2, 3]), [7, 5]
        there = Redistribute(comm, grid, shape, [[0, 1], []], [[1], [0]])
        back = Redistribute(comm, grid, shape, [[1], [0]], [[0, 1], []])
        return (back @ there).matrix()

    np.testing.assert_array_equal(spmd(6, body)[0], np.eye(35))


def test_it_composes_where_a_grid_dimension_of_side_1_lies_between(spmd: Any) -> None:
    """Spaces fit if all workers hold the same windows, whatever the grids of their partitions."""

    def body(comm: Any) -> Any:
        first = Redistribute(comm, Partition([2, 1]), [4], [[0]], [[]])
        second = Redistribute(comm, Partition([2]), [4], [[]], [[0]])
        return (second @ first).matrix()

    np.testing.assert_array_equal(spmd(2, body)[0], np.eye(4))


@pytest.mark.parametrize("target", [[[0]], [[]]])
def test_the_result_is_fresh_even_if_nothing_is_to_be_done(target: Any, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        operator = Redistribute(comm, Partition([1]), [3], [[0]], target)
        assert operator.plan.steps == ()
        x = np.arange(3.0)
        y, z = operator.forward(x), operator.adjoint(x)
        return np.shares_memory(x, y) or np.shares_memory(x, z), y, z

    shared, y, z = spmd(1, body)[0]
    assert not shared
    np.testing.assert_array_equal(y, np.arange(3.0))
    np.testing.assert_array_equal(z, np.arange(3.0))


def test_the_memory_between_steps_is_used_again_and_never_handed_out(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        operator = Redistribute(comm, Partition([2, 2]), [4, 4], [[0], [1]], [[], []])
        assert len(operator.plan.steps) == 2
        first = operator.forward(np.full((2, 2), 1.0))
        back = operator.adjoint(np.full((4, 4), 3.0))
        second = operator.forward(np.full((2, 2), 2.0))
        return first, second, back

    for first, second, back in spmd(4, body):
        np.testing.assert_array_equal(first, np.full((4, 4), 1.0))
        np.testing.assert_array_equal(second, np.full((4, 4), 2.0))
        np.testing.assert_array_equal(back, np.full((2, 2), 12.0))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_go_into_given_memory(library: str, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        for source, target in (([[0], []], [[], [0]]), ([[0], []], [[], []]), ([[], []], [[], []])):
            operator = Redistribute(comm, Partition([2]), [3, 4], source, target)
            for apply, domain, codomain in (
                (operator.forward, operator.domain, operator.codomain),
                (operator.adjoint, operator.codomain.dual, operator.domain.dual),
            ):
                x = basis_vector(domain, 2, rank, library)
                out = arrays.empty(codomain.tensors[0].layout.local_shape(rank), "float64", library)
                given = apply(*x, out=out)
                assert given is out
                np.testing.assert_array_equal(arrays.to_numpy(given), arrays.to_numpy(apply(*x)))

    spmd(2, body)


# ------------------------------------------------------------------------------------------------- the notation


def test_it_is_explained_in_the_notation_of_dryden19(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        grid = Partition([2, 2])
        return (
            explain(Redistribute(comm, grid, [4, 4], [[], [0]], [[0], []])),
            explain(Redistribute(comm, grid, [4, 4], [[], [0]], [[1], [0]], partial=[1])),
            explain(Redistribute(comm, grid, [4], [[0, 1]], [[0]])),
            explain(Redistribute(comm, grid, [4], [[]], [[]], partial=[1, 0])),
            explain(Redistribute(comm, grid, [4], [[1]], [[1]])),
        )

    swapped, scattered, segmented, summed, nothing = spmd(4, body)[0]
    assert "\n  y[◦_0, *] ← x[*, ◦_0] on a grid of 2x2\n  1. x[◦_0, *] ← x[*, ◦_0]: all-to-all\n" in swapped
    assert "\n  y[◦_1, ◦_0] ← Σ̃_1 x[*, ◦_0] on a grid of 2x2\n" in scattered
    assert "1. x[◦_1, ◦_0] ← Σ̃_1 x[*, ◦_0]: reduce-scatter along grid dimension 1" in scattered
    assert "1. x[◦_0] ← x[◦_{0,1}]: all-gather along grid dimension 1" in segmented
    assert "1. x[*] ← Σ̃_{0,1} x[*]: all-reduce along grid dimensions 0, 1" in summed
    assert "y[◦_1] ← x[◦_1] on a grid of 2x2\n  nothing to be done" in nothing


# ------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": [[0]]}, "source: a tensor of order 2 needs 2 entries"),
        ({"target": [[0], [2]]}, "target: 2 is not a dimension of the grid 2x1, which has 2 dimensions"),
        ({"target": [[0], [0]]}, "target: dimension 0 of the grid stands more than once"),
        ({"partial": [0]}, r"partial: the tensor is distributed over dimension 0 of the grid, x\[◦_0, \*\]"),
        ({"partial": [-1]}, "partial: -1 is not a dimension of the grid"),
        ({"partial": [1, 1]}, "partial: dimension 1 of the grid stands more than once"),
        ({"grid": Partition([3])}, r"grid: the partition 3 uses ranks \[2\]"),
        ({"shape": [4, -1]}, "shape: a side of a tensor is at least 0"),
        ({"copies": "varying"}, "copies: 'varying' is not one of replicated, invariant"),
        ({"dtype": "float8"}, "dtype: 'float8' is not one of"),
    ],
)
def test_what_cannot_be_assigned_is_refused_alike_on_all_ranks(
    arguments: dict[str, Any], message: str, spmd: Any
) -> None:
    whole = {"grid": Partition([2, 1]), "shape": [4, 4], "source": [[0], []], "target": [[], []], **arguments}

    def body(comm: Any) -> Any:
        with pytest.raises(ValueError, match=message) as raised:
            Redistribute(comm, **whole)
        return str(raised.value)

    assert len(set(spmd(2, body))) == 1


def test_a_wrong_argument_is_named_before_the_first_message(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        operator = Redistribute(comm, Partition([2]), [4], [[0]], [[]])
        with pytest.raises(ValueError, match=r"x: shape \(4,\) on rank"):
            operator.forward(np.zeros(4))
        with pytest.raises(ValueError, match=r"out: shape \(2,\) on rank"):
            operator.forward(np.zeros(2), out=np.zeros(2))

    spmd(2, body)
