"""The smallest case is seen to be so: no case with one rank, one cut or one side less fails alike, or nothing is claimed."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status
from adjointlab.engine.case import Case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.single_steps import one_step_smaller, size, without_logs_of_shapes
from adjointlab.worlds.simulated.world import SimulatedWorld


def case_of(ranks: int, **parameters: Any) -> Case:
    return Case("subject", "adjoint", ranks, parameters, InputSetting(1, "numpy"), 1)


def steps(ranks: int, **parameters: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(case.ranks, dict(case.parameters)) for case in one_step_smaller(case_of(ranks, **parameters))]


def test_the_steps_from_an_uneven_cut_are_its_ranks_cuts_and_sides() -> None:
    layout = al.Layout.cut((4,), al.Partition((2,), [0, 2]), [(0, 1, 4)])

    def of(shape: tuple[int, ...], ranks: tuple[int, ...], *ends: int) -> al.Layout:
        return al.Layout.cut(shape, al.Partition((len(ranks),), ranks), [ends])

    assert steps(3, layout=layout) == [
        (2, {"layout": of((4,), (0,), 0, 4)}),  # without rank 2, whose part falls to rank 0
        (2, {"layout": of((4,), (0, 1), 0, 1, 4)}),  # without rank 1, which has nothing
        (2, {"layout": of((4,), (1,), 0, 4)}),  # without rank 0
        (3, {"layout": of((4,), (2,), 0, 4)}),
        (3, {"layout": of((4,), (0,), 0, 4)}),
        (3, {"layout": of((3,), (0, 2), 0, 1, 3)}),
        (3, {"layout": of((3,), (0, 2), 0, 0, 3)}),
    ]


def test_boundaries_roots_and_shapes_are_made_smaller_too() -> None:
    assert (2, {"cut": (0, 2, 7), "root": 1}) in steps(3, cut=(0, 2, 5, 7), root=1)
    assert (3, {"cut": (0, 2, 5, 7), "root": 0}) in steps(3, cut=(0, 2, 5, 7), root=1)
    grid = al.Partition((1, 2))
    assert (2, {"shape": (2, 4), "layout": al.Layout((2, 4), grid)}) in steps(
        2, shape=(3, 4), layout=al.Layout((3, 4), grid)
    )


def test_a_list_stays_a_list() -> None:
    assert steps(1, sides=[2, 3]) == [(1, {"sides": [1, 3]}), (1, {"sides": [2, 2]})]


def test_a_side_of_two_becomes_one_and_integers_come_nearer_to_zero() -> None:
    layout = al.Layout((2,), (1,))
    assert steps(1, layout=layout) == [(1, {"layout": al.Layout((1,), (1,))})]
    assert steps(1, layout=al.Layout((1,), (1,))) == []
    for number, smaller in ((-2, -1), (-1, 0), (1, 0), (3, 2)):
        assert steps(1, root=number) == [(1, {"root": smaller})]
    assert steps(1, root=0, flag=True) == []
    assert steps(1, a=2, flag=True, b=(-3, 0), c=1) == [
        (1, {"a": 1, "flag": True, "b": (-3, 0), "c": 1}),
        (1, {"a": 2, "flag": True, "b": (-2, 0), "c": 1}),
        (1, {"a": 2, "flag": True, "b": (-3, 0), "c": 0}),
    ]


def test_inputs_of_a_module_stay_of_one_side_where_they_have_one() -> None:
    queries, keys = (2, 3, 4), (2, 5, 4)
    smaller = [parameters["inputs"] for _, parameters in steps(1, inputs=[queries, keys, keys])]
    assert smaller == [
        [(1, 3, 4), (1, 5, 4), (1, 5, 4)],
        [(2, 2, 4), keys, keys],
        [queries, (2, 4, 4), (2, 4, 4)],
        [(2, 3, 3), (2, 5, 3), (2, 5, 3)],
    ]
    assert [parameters["inputs"] for _, parameters in steps(1, inputs=([1], [0, 1]))] == [
        ([0], [0, 1]),
        ([1], [0, 0]),
    ]
    assert steps(1, inputs=(1, 2)) == [(1, {"inputs": (0, 2)}), (1, {"inputs": (1, 1)})]
    assert steps(1, inputs=[(1, 2)]) == [(1, {"inputs": [(0, 2)]}), (1, {"inputs": [(1, 1)]})]
    assert steps(1, a=1, inputs=[(1,), (1,)], z=-1) == [
        (1, {"a": 1, "inputs": [(0,), (0,)], "z": -1}),
        (1, {"a": 0, "inputs": [(1,), (1,)], "z": -1}),
        (1, {"a": 1, "inputs": [(1,), (1,)], "z": 0}),
    ]


def test_a_rank_less_joins_its_part_of_a_cut_to_a_neighbour() -> None:
    for cut, smaller in (
        ((0, 2, 5, 7), [(0, 2, 7), (0, 5, 7), (0, 5, 7)]),  # without rank 2, 1, 0
        ((0, 0, 0, 0), [(0, 0, 0), (0, 0, 0), (0, 0, 0)]),
        (
            (1, 2, 5, 7),
            [(1, 2, 5, 7)],
        ),  # no boundaries of three parts: they begin elsewhere, go back, or are of two or of four
        ((-1, 2, 5, 7), [(-1, 2, 5, 7)]),
        ((0, 5, 2, 7), [(0, 5, 2, 7)]),
        ((0, 2, 7), [(0, 2, 7)]),
        ((0, 1, 2, 5, 7), [(0, 1, 2, 5, 7)]),
        ((0, 2, "5", 7), [(0, 2, "5", 7)]),
    ):
        found = [parameters["cut"] for ranks, parameters in steps(3, cut=cut) if ranks == 2]
        assert found == list(dict.fromkeys(smaller))


def test_a_worker_less_leaves_its_part_to_the_one_before_and_windows_with_gaps_as_they_are() -> None:
    cut = al.Layout.cut((9,), al.Partition((3,)), [(0, 2, 7, 9)])
    windows = al.Layout((9,), al.Partition((3,)), [[(0, 3), (2, 7), (6, 9)]])

    def of_workers_less(layout: al.Layout) -> list[Any]:
        found = [parameters["layout"] for ranks, parameters in steps(3, layout=layout) if ranks == 3]
        return [(each.partition.ranks, each.windows[0]) for each in found if each.partition.size == 2]

    assert of_workers_less(cut) == [
        ((1, 2), ((0, 7), (7, 9))),
        ((0, 2), ((0, 7), (7, 9))),
        ((0, 1), ((0, 2), (2, 9))),
    ]
    assert of_workers_less(windows) == [
        ((1, 2), ((2, 7), (6, 9))),
        ((0, 2), ((0, 3), (6, 9))),
        ((0, 1), ((0, 3), (2, 7))),
    ]


def test_an_index_less_moves_what_comes_behind_it() -> None:
    layout = al.Layout((3, 5), al.Partition((2,)), [[(0, 3)], [(0, 4), (2, 5)]], axes=(None, 0))
    shorter = [
        parameters["layout"].windows[1]
        for ranks, parameters in steps(2, layout=layout)
        if parameters["layout"].shape == (3, 4)
    ]
    assert shorter == [((0, 4), (2, 4)), ((0, 3), (2, 4)), ((0, 3), (1, 4))]  # without 4, 3 or 2, 1 or 0


def test_steps_leave_other_shapes_grids_and_texts_as_they_are() -> None:
    row, column = al.Partition((1, 2), (0, 4)), al.Partition((2, 1), (1, 3))
    wide, high = al.Layout((2, 3), row), al.Layout((3, 2), column)
    given: dict[str, Any] = {"kind": "same", "row": row, "column": column, "wide": wide, "high": high}

    def with_row(row: al.Partition) -> dict[str, Any]:
        return {**given, "row": row, "wide": al.Layout((2, 3), row)}

    def with_column(column: al.Partition) -> dict[str, Any]:
        return {**given, "column": column, "high": al.Layout((3, 2), column)}

    def numbered(row: tuple[int, ...], column: tuple[int, ...]) -> dict[str, Any]:
        grids = al.Partition((1, len(row)), row), al.Partition((len(column), 1), column)
        return with_row(grids[0]) | {"column": grids[1], "high": al.Layout((3, 2), grids[1])}

    assert steps(5, **given) == [
        (4, numbered((0,), (1, 3))),
        (4, numbered((0, 3), (1,))),
        (4, numbered((0, 3), (1, 2))),
        (4, numbered((0, 3), (2,))),
        (4, numbered((3,), (0, 2))),
        (5, with_row(al.Partition((1, 1), (4,)))),
        (5, with_row(al.Partition((1, 1), (0,)))),
        (5, with_column(al.Partition((1, 1), (3,)))),
        (5, with_column(al.Partition((1, 1), (1,)))),
        (5, given | {"wide": al.Layout((1, 3), row)}),
        (5, given | {"wide": al.Layout((2, 2), row)}),
        (5, given | {"high": al.Layout((2, 2), column)}),
        (5, given | {"high": al.Layout((3, 1), column)}),
    ]


def test_a_worker_less_of_many_leaves_its_part_to_its_neighbour() -> None:
    cut = al.Layout.cut((12,), (5,), [(0, 1, 3, 7, 8, 12)])
    assert [
        parameters["layout"].ends(0)
        for ranks, parameters in steps(5, layout=cut)
        if (ranks, parameters["layout"].partition.size) == (5, 4)
    ] == [(0, 3, 7, 8, 12), (0, 3, 7, 8, 12), (0, 1, 7, 8, 12), (0, 1, 3, 8, 12), (0, 1, 3, 7, 12)]


def test_a_worker_less_leaves_the_cut_of_the_other_dimension_as_it_is() -> None:
    rows, columns = (0, 1, 4), (0, 3, 4)
    layout = al.Layout.cut((4, 4), (2, 2), [rows, columns])
    assert [
        (parameters["layout"].ends(0), parameters["layout"].ends(1))
        for ranks, parameters in steps(4, layout=layout)
        if (ranks, parameters["layout"].partition.size) == (4, 2)
    ] == [((0, 4), columns), ((0, 4), columns), (rows, (0, 4)), (rows, (0, 4))]


def test_an_index_less_keeps_windows_beyond_it_in_their_length() -> None:
    layout = al.Layout((1, 9), (1, 2), [[(0, 1)], [(0, 6), (5, 9)]])
    assert [parameters["layout"].windows[1] for ranks, parameters in steps(2, layout=layout) if ranks == 2][
        2:
    ] == [((0, 6), (5, 8)), ((0, 5), (5, 8)), ((0, 5), (4, 8))]


def test_a_single_rank_and_single_workers_and_indices_stay() -> None:
    assert steps(1) == []
    assert steps(2, layout=al.Layout((1, 0), (1, 1)), grid=al.Partition((1,), (0,))) == [
        (1, {"layout": al.Layout((1, 0), (1, 1)), "grid": al.Partition((1,), (0,))})
    ]


def test_at_most_three_hundred_steps_are_made() -> None:
    assert len(steps(1, numbers=tuple(range(1, 310)))) == 300
    assert len(steps(1, numbers=tuple(range(1, 300)))) == 299


def test_the_size_of_a_case_is_counted() -> None:
    uneven = al.Layout.cut((4,), al.Partition((2,), [0, 2]), [(0, 1, 4)])
    even = al.Layout((5, 2), al.Partition((1, 2)))
    assert size(case_of(3, a=uneven, b=(even, -5), grid=al.Partition((2, 3)), n=2)) == (
        3,
        1,
        6 + 2 + 2,
        4 + 7,
        7,
    )
    assert size(case_of(2)) == (2, 0, 0, 0, 0)


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(st.data(), st.integers(1, 6))
def test_every_step_is_smaller_and_another(data: st.DataObject, ranks: int) -> None:
    layout = data.draw(al.strategies.layouts(ranks, whole=False))
    case = case_of(ranks, layout=layout, tensor=al.Tensor(layout), depth=data.draw(st.integers(-2, 3)))
    smaller = list(one_step_smaller(case))
    assert len({each.key() for each in smaller} | {case.key()}) == len(smaller) + 1
    for each in smaller:
        sizes = list(zip(size(each), size(case), strict=True))
        # An uneven cut that loses an index or a part may become a balanced one, and never the reverse.
        assert all(own <= before for own, before in sizes)
        assert any(own < before for own, before in sizes)
        assert max(each.parameters["layout"].partition.ranks, default=0) < each.ranks


# Bugs


class Halves(al.LinearOperator):
    """Every worker keeps its local tensor."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm, self.layout = comm, layout
        self.domain = self.codomain = al.Space(layout)

    def forward(self, x: Any) -> Any:
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        return np.array(y) * (2 if self.is_wrong() else 1)

    def is_wrong(self) -> bool:
        return False


class WrongOnStridedRanks(Halves):
    """Takes the ranks of a group for consecutive ones."""

    def is_wrong(self) -> bool:
        ranks = sorted(self.layout.partition.ranks)
        return len(ranks) > 1 and ranks != list(range(ranks[0], ranks[0] + len(ranks)))


class WrongOnStridedGrids(Halves):
    """The same, of the sub-grids along dimension 1: where there is one of two workers at least, which needs no second one."""

    def is_wrong(self) -> bool:
        groups = self.layout.partition.subpartitions([1])
        return any(len(g.ranks) > 1 and max(g.ranks) - min(g.ranks) >= len(g.ranks) for g in groups)


def any_ranks(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": draw(al.strategies.layouts(ranks, whole=False))}


def grids(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": draw(al.strategies.layouts(ranks, 2, whole=False))}


@pytest.mark.parametrize(("bug", "draws"), [(WrongOnStridedRanks, any_ranks), (WrongOnStridedGrids, grids)])
@pytest.mark.parametrize("seed", range(2))
def test_a_bug_of_strided_groups_shrinks_to_three_ranks(bug: type[Halves], draws: Any, seed: int) -> None:
    result = investigate(SimulatedWorld(8), al.subject(bug)(draws), "adjoint", Budget(100, seed=seed))
    assert result.status is Status.INCOHERENT
    assert result.case is not None
    assert result.case.ranks == 3
    assert result.case.parameters["layout"].partition.size == 2
    assert result.is_smallest


def test_a_result_that_changes_from_run_to_run_is_not_called_smallest() -> None:
    calls = []

    class WrongAtFirst(Halves):
        def is_wrong(self) -> bool:
            calls.append(self.layout)
            return len(calls) < 40 and self.layout.partition.size > 1

    result = investigate(
        SimulatedWorld(4), al.subject(WrongAtFirst)(any_ranks), "adjoint", Budget(50, seed=1)
    )
    assert result.status is Status.UNJUDGED
    assert not result.is_smallest


class NeedsTwoRows(Halves):
    """Wrong wherever there is an element, also in cases that its strategy does not draw."""

    def is_wrong(self) -> bool:
        return True


def test_a_case_that_the_strategy_does_not_draw_is_not_reported_and_nothing_is_claimed() -> None:
    def two_rows(draw: Any, ranks: int) -> dict[str, Any]:
        return {"layout": al.Layout((2 * draw(st.integers(1, 3)),), al.Partition((ranks,)))}

    result = investigate(SimulatedWorld(4), al.subject(NeedsTwoRows)(two_rows), "adjoint", Budget(50, seed=1))
    assert result.case is not None
    assert result.case.parameters["layout"].shape == (2,)
    assert not result.is_smallest  # one row fails too


def test_without_time_nothing_is_claimed() -> None:
    subject = al.subject(WrongOnStridedRanks)(any_ranks)
    result = investigate(SimulatedWorld(8), subject, "adjoint", Budget(100, seed=1, shrinking=0.0))
    assert result.status is Status.INCOHERENT
    assert not result.is_smallest


def test_shapes_that_do_not_fit_are_not_logged_in_cases_that_no_strategy_draws(
    caplog: pytest.LogCaptureFixture,
) -> None:
    of_shapes, of_users = logging.getLogger("torch._subclasses.fake_tensor"), logging.getLogger("users")
    with without_logs_of_shapes():
        of_shapes.error("first")
        of_users.error("second")
    of_shapes.error("third")
    assert [record.message for record in caplog.records] == ["second", "third"]
