"""Everything in which cases are promised to differ is drawn within a stated number of cases of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.context import INPUT_VALUES
from adjointlab.checks.layers.passes import PassPlan
from adjointlab.checks.memory_orders import MIXED_ORDERS, ORDERS, unmixed
from adjointlab.engine.case import Case, cases
from adjointlab.engine.subject import Subject
from adjointlab.worlds.schedule import schedules_from
from tests.drawing import first_cases


class Kept(al.LinearOperator):
    """Every worker keeps its local tensor."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(layout)

    def forward(self, x: Any) -> Any:
        return np.array(x)

    adjoint = forward


def lines(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": draw(al.strategies.layouts(ranks, ndim=1))}


KEPT = al.subject(Kept, arrays=("numpy", "torch"))(lines)
LAYER = al.subject.layer(lambda comm, layout: None, lambda layout: None, name="Layer")(lines)
assert isinstance(KEPT, Subject)
assert isinstance(LAYER, Subject)


@dataclass(frozen=True)
class Promise:
    """Something that is drawn in a search of so many cases, for each of two seeds."""

    name: str
    strategy: Any
    is_so: Callable[[Case], bool]
    within: int = 100


OPERATOR_CASES = cases(KEPT, "adjoint", (1, 8))
LAYER_CASES = cases(LAYER, "gradients", (1, 8))
SCHEDULED = cases(KEPT, "adjoint", (1, 4), schedules=5)

RARE = 300
"""Cases of a search in which one of many possibilities is drawn; a search of 100 misses it sometimes."""

PROMISES = [
    *(Promise(library, OPERATOR_CASES, lambda case, name=library: case.setting.library == name) for library in ("numpy", "torch")),
    *(Promise(f"{order} arguments", OPERATOR_CASES, lambda case, o=order: case.setting.primal_order == o, RARE) for order in ORDERS),
    *(Promise(f"{order} arguments", OPERATOR_CASES, lambda case, o=order: case.setting.primal_order == o, 4 * RARE) for order in MIXED_ORDERS),
    *(Promise(f"{order} cotangents", OPERATOR_CASES, lambda case, o=order: case.setting.dual_order == o, RARE) for order in ORDERS),
    *(Promise(f"{order} cotangents", OPERATOR_CASES, lambda case, o=order: case.setting.dual_order == o, 4 * RARE) for order in MIXED_ORDERS),
    *(Promise(f"{values} values", LAYER_CASES, lambda case, v=values: case.values == v, RARE) for values in INPUT_VALUES),
    Promise("even seeds", OPERATOR_CASES, lambda case: case.setting.seed % 2 == 0),
    Promise("odd seeds", OPERATOR_CASES, lambda case: case.setting.seed % 2 == 1),
    *(Promise(f"powers of two {exponents}", OPERATOR_CASES, lambda case, e=exponents: (case.setting.seed % 4, case.setting.seed // 4 % 4) == e, RARE) for exponents in product(range(4), repeat=2)),
    *(Promise(f"gradients of {which}", LAYER_CASES, lambda case, w=which: PassPlan.of(case.setting.seed, backward=True).requires_grad == w) for which in ("all", "some", "others on each rank")),
    *(Promise(f"passes {'together' if together else 'apart'}, gradients {'added' if added else 'fresh'}", LAYER_CASES, lambda case, t=together, a=added: (PassPlan.of(case.setting.seed, backward=True).together, PassPlan.of(case.setting.seed, backward=True).accumulated) == (t, a)) for together, added in product((True, False), repeat=2)),
    *(Promise(f"outputs {'left out' if some else 'all used'}", LAYER_CASES, lambda case, s=some: bool(PassPlan.of(case.setting.seed, backward=True).left_out) == s) for some in (True, False)),
    Promise("messages that are buffered", OPERATOR_CASES, lambda case: case.schedule == 0),
    Promise("another interleaving", OPERATOR_CASES, lambda case: case.schedule > 0),
    Promise("an uneven cut", OPERATOR_CASES, lambda case: case.parameters["layout"] != al.Layout(case.parameters["layout"].shape, case.parameters["layout"].partition)),
    *(Promise(f"a {strategy} schedule", SCHEDULED, lambda case, s=strategy: any(each.strategy == s for each in case.schedules)) for strategy in ("random", "pct")),
    *(Promise(f"a schedule of depth {depth}", SCHEDULED, lambda case, d=depth: any(each.depth == d for each in case.schedules)) for depth in (2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_what_is_promised_is_drawn(promise: Promise, seed: int) -> None:
    assert any(map(promise.is_so, first_cases(promise.strategy, promise.within, seed)))


def test_small_integers_are_the_commonest_values_of_a_layer_and_all_of_an_operators() -> None:
    drawn = first_cases(LAYER_CASES, 300)
    share = sum(case.values == INPUT_VALUES[0] for case in drawn) / len(drawn)
    assert 0.4 < share < 0.9  # half of the choices, and Hypothesis repeats the simplest one
    assert {case.values for case in first_cases(OPERATOR_CASES, 100)} == {INPUT_VALUES[0]}


@pytest.mark.parametrize("check", ["gradients", "sequential", "jacobian", "training", "double_backward"])
def test_inputs_of_all_values_are_drawn_where_one_pass_is_held_against_the_sequential_layer(
    check: str,
) -> None:
    drawn = {case.values for case in first_cases(cases(LAYER, check, (1, 4)), 60)}
    assert (
        (drawn > {INPUT_VALUES[0]})
        if check in ("gradients", "sequential", "training")
        else (drawn == {INPUT_VALUES[0]})
    )


def test_frozen_parameters_and_the_mode_of_a_parallel_module_are_drawn_unless_the_strategy_says_which() -> (
    None
):
    def drawn(name: str, parameters: dict[str, Any]) -> list[Any]:
        declare: Any = al.subject.parallel(lambda: None, lambda module, mesh: module, name="Parallel")
        subject = declare(lambda draw, ranks: parameters)
        found = first_cases(cases(subject, "gradients", (1, 2)), 60)
        return [case.parameters.get(name) for case in found]

    patterns = drawn("frozen", {"inputs": (2, 3)})
    assert 0 in patterns
    assert len(set(patterns)) > 8
    assert set(drawn("frozen", {"inputs": (2, 3), "frozen": 0})) == {0}
    modes = drawn("evaluated", {"inputs": (2, 3)})
    assert set(modes) == {None, True}
    assert modes.count(True) < 30
    assert set(drawn("evaluated", {"inputs": (2, 3), "training": True})) == {None}
    assert set(drawn("evaluated", {"inputs": (2, 3), "evaluated": False})) == {False}


def test_cases_are_drawn_on_the_ranks_that_are_asked_for() -> None:
    assert {case.ranks for case in first_cases(cases(KEPT, "adjoint", (2, 4)), 60)} == {2, 3, 4}


def test_transposed_memory_comes_more_often_than_other_orders() -> None:
    drawn = [case.setting for case in first_cases(OPERATOR_CASES, 300)]
    pairs = [(unmixed(each.primal_order), unmixed(each.dual_order)) for each in drawn]
    often = {order: sum(order in pair for pair in pairs) for order in ORDERS}
    assert all(often["column-major"] > 1.4 * often[order] for order in ("strided", "offset", "reversed"))


def test_seeds_are_drawn_from_the_whole_of_their_range() -> None:
    drawn = first_cases(OPERATOR_CASES, 300)
    for most, numbers in (
        (2**31 - 1, {case.setting.seed for case in drawn}),
        (2**16 - 1, {case.schedule for case in drawn}),
    ):
        assert len(numbers) > 50  # Hypothesis repeats itself
        assert most / 2 < max(numbers) <= most


def test_a_case_has_as_many_schedules_as_are_asked_for_and_none_where_one_is_enough() -> None:
    drawn = first_cases(SCHEDULED, 30)
    assert {len(case.schedules) for case in drawn} == {5}
    assert all(case.schedules == schedules_from(case.schedule, 5) for case in drawn)
    assert all(len(set(case.schedules)) > 3 for case in drawn)
    assert {case.schedules for case in first_cases(OPERATOR_CASES, 30)} == {()}


def test_the_simplest_case_comes_first() -> None:
    first = first_cases(OPERATOR_CASES, 100)[0]
    assert first.ranks == 1
    assert (first.setting.seed, first.setting.library, first.schedule) == (0, "numpy", 0)
    assert (first.setting.primal_order, first.setting.dual_order) == ("row-major", "row-major")
