"""Passes of a layer: what requires a gradient in them, what is compared after them, and how far it may be off."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import adjointlab as al
from adjointlab.checks.check import check_named
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.elements import Tolerance, WhereNotFinite
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.layers.compared_passes import Comparison, PassObservation, _compared, first_wrong
from adjointlab.checks.layers.drawn_values import pass_keys
from adjointlab.checks.layers.modules import ModuleUnderTest
from adjointlab.checks.layers.passes import (
    BUFFERS,
    INPUT_GRADIENT,
    ONE_PASS,
    OUTPUTS,
    PARAMETER_GRADIENT,
    PARAMETERS,
    PassPlan,
    gradients,
    plainer_seeds,
)
from adjointlab.checks.layers.sensitivity import Allowances
from adjointlab.checks.layers.twin import (
    _comparison,
    _frozen_and_trained,
    is_measured,
    results_of_twin,
    tolerance_of,
    twin_passes,
    with_expected,
)
from adjointlab.checks.verdict import Inapplicable, Measurement, NotMeasured
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import Layer
from tests.checks.looks.harness import WORLD
from tests.checks.looks.layers import Weights
from tests.checks.looks.layers import layer as weights

pytestmark = pytest.mark.mpi_skip

CUT = al.Layout((4,), (2,))
COPIES = al.Layout((4,), (2,), axes=[None])
ALL, SOME, OTHERS = "all", "some", "others on each rank"


def tensor(name: str, layout: al.Layout = CUT, dtype: str = "float64", *types: str) -> Any:
    return al.Tensor(layout, dtype, types or (), name)  # type: ignore[arg-type]


def layer(**given: Any) -> Layer:
    spaces: dict[str, Any] = {
        "domain": al.Space(tensor("a"), tensor("b")),
        "codomain": al.Space(tensor("y")),
        "parameters": al.Space(
            tensor("w"), tensor("c", COPIES, "float64", "invariant"), tensor("n", CUT, "int64")
        ),
        "buffers": al.Space(tensor("calls")),
        "module": None,
    }
    return Layer(None, **spaces | given)  # type: ignore[arg-type]


def context(of: Layer, seed: int = 0, rank: int = 0, values: str = "integers", memory: str = "torch") -> Any:
    setting = InputSetting(seed, memory)
    return SimpleNamespace(layer=of, rank=rank, values=values, setting=setting, beyond=None)


# Plans.


def test_a_plan_follows_from_the_seed() -> None:
    for seed in range(24):
        plan = PassPlan.of(seed, backward=True)
        assert plan == PassPlan(
            True, (ALL, SOME, OTHERS)[seed % 3], (seed // 3) % 2 == 0, (seed // 6) % 2 == 1, 0
        )
        later = PassPlan.of(seed + 12 * 40, backward=True)
        assert later == replace(plan, left_out=(seed + 12 * 40) // 12 - 32)
        forward = PassPlan.of(seed, backward=False)
        assert forward == PassPlan(False, plan.requires_grad, False, False)
        for block in range(20):
            other = PassPlan.of(seed % 12 + 12 * block, backward=True)
            plain = PassPlan.of(seed % 12, backward=True)
            size = "larger" if block in (12, 13, 17, 18) else "smaller" if block in (14, 19) else ""
            before = "" if block < 12 else "training" if block < 15 else "evaluation"
            mode = block in (15, 17, 18)
            assert other == replace(plain, before=before, other_batch=size, in_evaluation_mode=mode)
        reversed_plan = PassPlan.of(seed + 3840, backward=True)
        assert reversed_plan == replace(plan, last_first=plan.together)


@pytest.mark.parametrize("alternates", [True, False])
@pytest.mark.parametrize("accumulates", [True, False])
def test_a_layer_may_not_allow_all_of_a_plan(alternates: bool, accumulates: bool) -> None:
    plan = PassPlan(True, ALL, together=True, accumulated=True)
    allowed = plan.for_layer(layer(alternates=alternates, accumulates=accumulates))
    assert allowed == PassPlan(True, ALL, not alternates, accumulates)
    joining = layer(alternates=alternates, accumulates=accumulates, joins_passes=True)
    assert plan.for_layer(joining) == replace(allowed, joined=True)
    assert not replace(plan, accumulated=False).for_layer(joining).joined
    last_first = replace(plan, last_first=True)
    assert last_first.for_layer(layer(alternates=alternates)).last_first == (not alternates)
    evaluated = PassPlan(True, ALL, together=False, accumulated=False, before="evaluation")
    for needs_all in (True, False):
        of = layer(alternates=alternates, needs_all_outputs=needs_all)
        assert evaluated.for_layer(of).before == ("evaluation" if alternates or not needs_all else "")
    in_mode = replace(evaluated, in_evaluation_mode=True)
    for takes in (True, False):
        of = layer(takes_evaluation_mode=lambda takes=takes: takes)
        assert in_mode.for_layer(of).in_evaluation_mode == takes
        assert not replace(in_mode, before="").for_layer(of).in_evaluation_mode
    of = layer(other_batch=lambda is_larger: al.Space(tensor("x")) if is_larger else None)
    for size, of_plan in (("larger", "larger"), ("smaller", ""), ("", "")):
        assert replace(evaluated, other_batch=size).for_layer(of).other_batch == of_plan
        assert not replace(evaluated, before="", other_batch=size).for_layer(of).other_batch
        trained = replace(evaluated, before="training", other_batch=size).for_layer(of)
        assert (trained.before, trained.other_batch) == ("training" if of_plan else "", of_plan)
    neither = PassPlan(True, ALL, together=False, accumulated=False)
    assert neither.for_layer(layer(alternates=alternates, accumulates=accumulates)) == neither


TWO = al.Space(tensor("y"), tensor("z"))
THREE = al.Space(tensor("y"), tensor("n", CUT, "int64"), tensor("z"))


@pytest.mark.parametrize("codomain", [TWO, THREE])
def test_any_output_with_a_gradient_may_be_left_out_of_the_loss_but_not_all(codomain: al.Space) -> None:
    plans = {PassPlan.of(seed, backward=True).left_out for seed in range(0, 12 * 64, 12)}
    drawn = [PassPlan(True, ALL, together=False, accumulated=False, left_out=each) for each in plans]
    of = layer(codomain=codomain)
    left_out = {
        tuple(each.name for each, kept in zip(codomain.tensors, plan.in_loss(of), strict=True) if not kept)
        for plan in drawn
    }
    assert len(plans) == 32
    assert left_out == {(), ("y",), ("z",)}


@pytest.mark.parametrize(
    ("of", "is_left_out"),
    [(layer(codomain=TWO), True), (layer(codomain=TWO, needs_all_outputs=True), False), (layer(), False)],
)
def test_no_output_is_left_out_where_all_are_needed_or_there_is_one(of: Layer, is_left_out: bool) -> None:
    plan = PassPlan(True, ALL, together=True, accumulated=True, left_out=7)
    assert plan.for_layer(of).left_out == (7 if is_left_out else 0)
    assert not PassPlan.of(12 * 40, backward=False).left_out


@pytest.mark.parametrize("seed", [*range(24), *range(12 * 12, 12 * 18), 12 * (40 + 15), 2304, 3840, 3843])
def test_a_plainer_seed_takes_one_thing_from_the_plan(seed: int) -> None:
    plan = PassPlan.of(seed, backward=True)
    told = [(hint.kind, hint.text, PassPlan.of(other, backward=True)) for hint, other in plainer_seeds(seed)]
    kept = (
        FaultKind.KEPT,
        "right if each pass runs backward before the next one runs forward, and wrong if both run forward first",
        replace(plan, together=False, last_first=False),
    )
    added = (
        FaultKind.ACCUMULATED,
        "right if there are no gradients before, and wrong if they are added to earlier ones; for a parallel module, "
        "accumulates=False says that they never are",
        replace(plan, accumulated=False),
    )
    how = {"evaluation": "forward without gradients", "training": "forward and backward"}.get(plan.before)
    how = f"{how}{' in evaluation mode' * plan.in_evaluation_mode}"
    with_another = ", for a parallel module with another batch unless it says one_batch_size=True"
    before = (
        FaultKind.KEPT,
        f"right if nothing comes before, and wrong if the instance has gone {how}{with_another * bool(plan.other_batch)}",
        replace(plan, before="", other_batch="", in_evaluation_mode=False),
    )
    ordered = (
        FaultKind.KEPT,
        "right if the first pass runs backward first, and wrong if the last one does",
        replace(plan, last_first=False),
    )
    assert told == [ordered] * plan.last_first + [kept] * plan.together + [added] * plan.accumulated + [
        before
    ] * bool(plan.before)
    assert all(other >= 0 for _, other in plainer_seeds(seed))


SOME_OF_ALL = ["bcw", "anw", "abc", "abcn", "bc", "cnw"]
OTHERS_ON_THE_LAST = ["bcn", "aw", "cnw", "abcnw", "bcw", "bcn"]


def required(kind: str, seed: int, rank: int, of: Layer) -> str:
    plan = PassPlan(True, kind, together=False, accumulated=False)
    return "".join(sorted(plan.differentiated(context(of, seed, rank))))


def test_some_tensors_require_a_gradient_on_all_ranks_or_others_on_each() -> None:
    of = layer()
    some = [required(SOME, seed, 0, of) for seed in range(6)]
    # A stored case is replayed with the same ones.
    assert some == SOME_OF_ALL
    assert [required(SOME, seed, 1, of) for seed in range(6)] == some
    assert [required(OTHERS, seed, 0, of) for seed in range(6)] == some
    on_the_last = [required(OTHERS, seed, 1, of) for seed in range(6)]
    assert on_the_last == OTHERS_ON_THE_LAST
    uniform = layer(uniform_requires_grad=True)
    assert [required(OTHERS, seed, 1, uniform) for seed in range(6)] == some
    # Of copies that are equal all require one, or none.
    assert [("c" in one, "c" in last) for one, last in zip(some, on_the_last, strict=True)] == [
        ("c" in one,) * 2 for one in some
    ]
    assert required(ALL, 0, 0, of) == required(ALL, 0, 1, of) == "abcnw"


def test_what_is_frozen_requires_none_and_other_parameters_do() -> None:
    frozen = layer(frozen=frozenset({"w", "a"}))
    assert required(ALL, 0, 0, frozen) == "bcn"
    for seed in range(6):
        for kind in (SOME, OTHERS):
            found = set(required(kind, seed, 1, frozen))
            assert found - {"b"} == {"c", "n"}
    assert {required(SOME, seed, 0, frozen) for seed in range(6)} == {"bcn", "cn"}
    assert required(ALL, 0, 0, layer(frozen=frozenset({"z"}))) == "abcnw"


@pytest.mark.parametrize(
    ("differentiated", "found"),
    [
        (frozenset("wcn"), [True, True, False]),
        (frozenset("wn"), [True, False, False]),
        (frozenset(), [False] * 3),
    ],
)
def test_parameters_require_a_gradient_if_they_are_named_and_no_integers(
    differentiated: frozenset[str], found: list[bool]
) -> None:
    parameters = [
        nn.Parameter(torch.ones(2), requires_grad=False),
        nn.Parameter(torch.ones(2)),
        nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False),
    ]
    version: Any = SimpleNamespace(layer=layer(), parameters=lambda: parameters)
    ModuleUnderTest.require_gradients(version, differentiated)
    assert [each.requires_grad for each in parameters] == found


def test_what_has_no_gradient_has_one_of_zero() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    (2 * y).sum().backward()  # type: ignore[no-untyped-call]
    found = gradients([x, y])
    assert [each.tolist() for each in found] == [[0, 0, 0], [2, 2]]


# Comparisons.


PLAIN = PassPlan(True, ALL, together=False, accumulated=False)
ADDED = replace(PLAIN, accumulated=True)
LOCAL = (np.ones(2), np.ones(2))
MIXED = layer(
    domain=al.Space(tensor("a"), tensor("b", CUT, "float32"), tensor("i", CUT, "int64")),
    rounding=2.0**-10,
    reach=3.0,
)


@pytest.mark.parametrize("values", ["integers", "infinite", "equal", "large"])
@pytest.mark.parametrize("kind", [OUTPUTS, BUFFERS, PARAMETERS])
def test_results_are_compared_within_the_declared_tolerance(kind: Any, values: str) -> None:
    not_finite = WhereNotFinite.ALIKE if values == "infinite" else WhereNotFinite.WRONG
    for plan in (PLAIN, ADDED):
        found = _comparison(context(MIXED, values=values), kind, LOCAL, frozenset(), plan)
        tolerance = Tolerance(2.0**-10, 3.0)
        assert found == Comparison(kind.name, kind.space(MIXED), LOCAL, tolerance, not_finite=not_finite)


@pytest.mark.parametrize("memory", ["torch-cuda", "torch+torch-cuda"])
def test_a_device_may_multiply_zero_and_infinity_where_the_host_does_not(memory: str) -> None:
    for values, expected in (("infinite", WhereNotFinite.THERE_UNJUDGED), ("integers", WhereNotFinite.WRONG)):
        found = _comparison(context(MIXED, values=values, memory=memory), OUTPUTS, LOCAL, frozenset(), PLAIN)
        assert found.not_finite is expected


@pytest.mark.parametrize(
    ("plan", "values", "of", "tolerance"),
    [
        (PLAIN, "integers", MIXED, Tolerance(2.0**-10, 3.0)),
        # Where gradients are added to others, which are 4 at most, their sum is 8.
        (ADDED, "integers", MIXED, Tolerance(2.0**-10, 8.0)),
        (ADDED, "integers", replace(MIXED, reach=9.0), Tolerance(2.0**-10, 9.0)),
        (ADDED, "large", replace(MIXED, rounding=2.0**-30), Tolerance(2.0**-22, 8.0)),
        (ADDED, "integers", replace(MIXED, rounding=2.0**-30), Tolerance(2.0**-30, 8.0)),
        (ADDED, "integers", replace(MIXED, rounding=None), Tolerance(2.0**-22, 8.0)),
        # The earlier gradients of all ranks, where the mean is multiplied by their number.
        (ADDED, "integers", replace(MIXED, rounding=None, averaged=7), Tolerance(7 * 2.0**-22, 8.0)),
        (ADDED, "integers", replace(MIXED, rounding=0.0), Tolerance(0.0, 8.0)),
        (PLAIN, "integers", replace(MIXED, rounding=None), Tolerance(0.0, 3.0)),
    ],
)
def test_gradients_are_compared_where_they_are_required(
    plan: PassPlan, values: str, of: Layer, tolerance: Tolerance
) -> None:
    found = _comparison(context(of, values=values), INPUT_GRADIENT, LOCAL, frozenset("ai"), plan)
    is_own = plan.accumulated and not of.rounding
    assert found == Comparison(
        "input gradient", of.domain.dual, LOCAL, tolerance, frozenset("bi"), is_own=is_own
    )
    infinite = _comparison(context(of, values="infinite"), PARAMETER_GRADIENT, LOCAL, frozenset("w"), PLAIN)
    assert infinite.not_finite is WhereNotFinite.UNJUDGED
    assert infinite.without == frozenset("cn")


def test_rounding_is_measured_unless_it_is_declared_for_such_values() -> None:
    for values in ("integers", "thirds", "negative", "equal", "large", "tiny", "infinite", "fractions"):
        assert is_measured(context(MIXED, values=values)) == (values != "integers")
        assert is_measured(context(replace(MIXED, rounding=None), values=values))
    assert (
        tolerance_of(replace(MIXED, rounding=0.0))
        == tolerance_of(replace(MIXED, rounding=None))
        == Tolerance(0.0, 3.0)
    )


def test_a_tolerance_that_is_measured_is_tried_after_the_least() -> None:
    comparison = Comparison("outputs", MIXED.codomain, LOCAL, Tolerance(0.5, 2.0))
    assert list(comparison.tolerances(0)) == [Tolerance(0.5, 2.0)]
    allowances = Allowances({"r": (1.0, 2.0)}, lambda: {"r": (2.0, 3.0)}, lambda: {"r": (3.0, 4.0)})
    measured = replace(comparison, allowances=allowances, result="r")
    for position in (0, 1):
        tolerances = [Tolerance(0.5, 2.0, absolute + position) for absolute in (1.0, 2.0, 3.0)]
        assert list(measured.tolerances(position)) == tolerances


def test_the_twins_results_are_cut_into_the_parts_of_all_ranks() -> None:
    allowances = Allowances({}, dict, dict)
    (found,) = with_expected(
        [Comparison("outputs", MIXED.codomain, LOCAL, Tolerance(0.0))],
        {"pass 1, outputs": (np.arange(4.0),), "outputs": (np.zeros(4),)},
        allowances,
        3,
        "pass 1, ",
    )
    assert found.expected is not None
    assert [[array.tolist() for array in local] for local in found.expected] == [[[0, 1]], [[2, 3]], [[]]]
    assert (found.allowances, found.result) == (allowances, "pass 1, outputs")


def test_a_gradient_that_is_not_required_is_not_compared_nor_a_sum_with_it() -> None:
    space = al.Space(tensor("a"), tensor("p", COPIES, "float64", "partial"))
    expected = ((np.zeros(2), np.zeros(4)),) * 2

    def compared(*without: str) -> list[list[bool]]:
        ranks = [
            Comparison("gradient", space, (np.ones(2), np.ones(4)), Tolerance(0.0), frozenset(names))
            for names in without
        ]
        seen = [PassObservation((replace(each, expected=expected),)) for each in ranks]
        of_tensors = [[bool(part.any()) for part in each.got] for each in _compared(seen)]
        return list(map(list, zip(*of_tensors, strict=True)))

    assert compared("", "") == [[True, True]] * 2
    assert compared("a", "") == [[False, True], [True, True]]
    assert compared("", "a") == [[True, True], [False, True]]
    assert compared("p", "") == [[True, False]] * 2
    assert compared("", "p") == [[True, False]] * 2


def test_parameters_of_which_a_rank_has_elements_are_trained_or_frozen() -> None:
    third = al.Layout((4,), (3,), windows=[[(0, 2), (2, 4), (4, 4)]])
    of = layer(parameters=al.Space(tensor("u"), tensor("v"), tensor("e", third)), trained=frozenset("vx"))
    assert _frozen_and_trained(of, 0) == (frozenset("ue"), frozenset("v"))
    assert _frozen_and_trained(of, 2) == (frozenset(), frozenset())
    assert _frozen_and_trained(layer(), 0) == (frozenset(), frozenset())


# Verdicts.


def observed(
    actual: list[float],
    what: str = "outputs",
    *,
    number: int = 2,
    wrong: int = 0,
    accumulated: bool = False,
    without: frozenset[str] | None = None,
    **given: Any,
) -> list[tuple[PassObservation, ...]]:
    """Passes of two ranks whose results are 1, but those of the last rank in the pass that is wrong."""
    space = al.Space(tensor("y"))
    expected = ((np.ones(2),), (np.ones(2),))

    def seen(values: Any) -> PassObservation:
        compared = Comparison(what, space, (np.asarray(values),), Tolerance(0.0), without, expected)
        parameters = Comparison("parameters", space, (np.ones(2),), Tolerance(0.0), None, expected)
        return PassObservation(
            (parameters, compared), plan=replace(ONE_PASS, accumulated=accumulated), **given
        )

    right = seen(np.ones(2))
    return [(right,) * number, tuple(seen(actual) if each == wrong else right for each in range(number))]


ELEMENT = "y[3] (rank 1)"


@pytest.mark.parametrize(
    ("seen", "headline", "lines"),
    [
        (observed([1.0, 3.5]), "outputs are not the sequential ones", {}),
        (observed([1.0, 3.5], "input gradient"), "input gradient is not the sequential one", {}),
        (
            observed([1.0, 3.5], wrong=1),
            "outputs are not the sequential ones",
            {
                "pass": "the second one, with other data; the first was right: its data hide the fault, or something is kept from it"
            },
        ),
        (
            observed([1.0, np.nan]),
            "outputs are not the sequential ones",
            {
                "perhaps": "it reads uninitialised memory, or the result of a message that has not been waited for, which are filled with "
                "NaN here; or a formula has no value there, such as 0/0"
            },
        ),
        (
            observed([1.0, 3.5], "input gradient", accumulated=True, without=frozenset()),
            "input gradient is not the sequential one",
            {"accumulated": ".grad held other gradients before, which are subtracted here"},
        ),
        (observed([1.0, 3.5], accumulated=True), "outputs are not the sequential ones", {}),
    ],
)
def test_the_first_difference_from_the_twin_is_told_with_its_pass(
    seen: Any, headline: str, lines: dict[str, str]
) -> None:
    verdict = first_wrong(seen)
    assert verdict.headline == f"the layer's {headline}"
    got = "nan" if "perhaps" in lines else "3.5"
    what = headline.split(" is ")[0].split(" are ")[0]
    assert dict(verdict.lines) == {what: ELEMENT, "distributed": got, "sequential": "1"} | lines
    assert verdict.kind == what


def test_parameters_are_trained_on_both_sides_or_on_none() -> None:
    right = [1.0, 1.0]
    so = ("so", "an optimiser would train one and not the other; freeze both, or neither")
    for frozen, in_twin, headline, lines in (
        ("", None, "", ()),
        ("ab", None, "", ()),
        ("ab", "ab", "", ()),
        (
            "ab",
            "b",
            "the layer's parameter a does not require a gradient as it is made, the sequential one's does",
            (("rank", "0"), so),
        ),
        (
            "b",
            "ab",
            "the sequential layer's parameter a does not require a gradient as it is made, the distributed one's does",
            (so,),
        ),
    ):
        twin = None if in_twin is None else frozenset(in_twin)
        given = {
            "frozen": frozenset(frozen),
            "trained": frozenset("ab") - frozenset(frozen),
            "frozen_in_twin": twin,
        }
        verdict = first_wrong(observed(right, **given))
        assert verdict.is_coherent == (not headline)
        if headline:
            assert (verdict.headline, verdict.lines, verdict.kind) == (headline, lines, "requires_grad")


def test_a_parameter_that_the_outputs_have_once_more_is_told_where_the_values_tell_nothing() -> None:
    space, bias = al.Space(tensor("y")), np.array([1234.5678, -4321.125, 777.0625 + 1 / 3, 31.25 + 1 / 7])
    values = np.array([10000.25, 20000.5, 30000.125, 40000.75])
    named = al.Space(tensor("bias"))

    def halves(whole: Any) -> tuple[Any, ...]:
        return ((whole[:2],), (whole[2:],))

    def seen(rank: int, got: Any, what: str, want: Any = values) -> tuple[PassObservation, ...]:
        outputs = Comparison(what, space, halves(got)[rank], Tolerance(0.0), None, halves(want))
        parameters = Comparison("parameters", named, halves(bias)[rank], Tolerance(0.0), None, halves(bias))
        return (PassObservation((parameters, outputs)),)

    def hint(got: Any, what: str = "outputs", want: Any = values) -> tuple[Any, str] | None:
        verdict = first_wrong([seen(rank, got, what, want) for rank in (0, 1)])
        assert verdict.evidence is not None
        assert verdict.evidence.place is not None
        found = verdict.evidence.place.hint
        return None if found is None else (found.kind, found.text)

    again = "the expected value plus {}bias: the parameter bias is counted again"
    assert hint(values + bias) == (FaultKind.REPEATED, again.format(""))
    assert hint(values + 2 * bias) == (FaultKind.REPEATED, again.format("2 times "))
    assert hint(values - bias) == (
        FaultKind.REPEATED,
        "the expected value less bias: the parameter bias is left out",
    )
    assert hint(values + bias, "buffers") is None
    assert hint(values + bias * [1, 1, 1, 1.5]) is None
    zero = values.copy()
    zero[2:] = 0
    assert hint(zero) == (FaultKind.ZERO_RANK, "all is zero on rank 1, and right elsewhere")
    assert hint(2 * values) == (FaultKind.DOUBLED, "twice the expected value, on 2 ranks")
    # Something where zero is expected may be the parameter.
    assert hint(bias, want=np.zeros(4)) == (FaultKind.REPEATED, again.format(""))


def test_keys_of_passes_are_those_of_the_context() -> None:
    assert pass_keys(context(layer(), 4), 1)["inputs"].seed == 4


# What the twin gives.


class Twin(nn.Module):
    def __init__(self, dtype: Any = torch.float64) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, dtype=dtype))


RESULTS = {"y": (np.array([1.0, 3.0]), np.array([1, 2]))}


def given(values: str = "integers", rounding: float | None = 0.0, dtype: Any = torch.float64) -> Any:
    of = context(layer(rounding=rounding), values=values)
    of.reference, of.needs_run, of.alone = lambda: Twin(dtype), False, nullcontext
    return of


def raising(error: Exception) -> Any:
    def run() -> Any:
        raise error

    return run


@pytest.mark.parametrize("needs_run", [False, True])
@pytest.mark.parametrize("measurement", Measurement)
def test_rounding_is_measured_later_or_where_the_twin_needs_a_run_at_once_or_not_at_all(
    needs_run: bool, measurement: Measurement
) -> None:
    runs: list[bool] = []

    def run() -> Any:
        runs.append(True)
        return RESULTS

    assert results_of_twin(given(), run) == (RESULTS, None)
    for values, rounding in (("integers", None), ("large", 0.0), ("subnormal", None), ("infinite", 0.0)):
        runs.clear()
        of = given(values, rounding)
        of.needs_run, of.measurement = needs_run, measurement
        results, allowances = results_of_twin(of, run)
        assert results is RESULTS
        assert allowances is not None
        tiny = float(np.finfo(float).tiny) if values == "subnormal" else 0.0
        assert allowances.least == {"y": (8 * 2.0**-52 * 3 + tiny, 0.0)}
        assert (len(runs) > 1) == (needs_run and measurement > Measurement.NONE)
        needed = {
            "of_one_sample": Measurement.ONE_SAMPLE,
            "most": Measurement.ALL,
            "is_random": Measurement.ALL,
        }
        for name, least_measurement in needed.items():
            is_told = needs_run and measurement < least_measurement
            with pytest.raises(NotMeasured) if is_told else nullcontext():
                getattr(allowances, name)


@pytest.mark.parametrize(("rounding", "values"), [(0.0, "integers"), (None, "integers")])
def test_of_small_integers_an_exception_is_noted_as_the_twins(rounding: float | None, values: str) -> None:
    note = "raised by the sequential twin, not by the layer"
    for dtype, more in (
        (torch.float64, ""),
        (torch.float32, "; its parameter w is float32, and parameter_space declares float64"),
    ):
        with pytest.raises(KeyError) as raised:
            results_of_twin(given(values, rounding, dtype), raising(KeyError("x")))
        assert raised.value.__notes__ == [f"{note}{more}"]
    for own in (SubjectError("x"), Inapplicable("x")):
        with pytest.raises(type(own)) as of_the_lab:
            results_of_twin(given(values, rounding), raising(own))
        assert not hasattr(of_the_lab.value, "__notes__")


def test_parameters_that_the_twin_has_frozen_are_those_of_the_layer_that_it_does_not_train() -> None:
    class Frozen(Weights):
        def __init__(self) -> None:
            super().__init__()
            self.weight.requires_grad_(False)

    def frozen(twin: Any, trained: frozenset[str] | None) -> Any:
        comm: Any = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1)
        of = CheckContext(partial(weights, comm, trained=trained), InputSetting(0, "torch"), comm, twin)
        return twin_passes(of, backward=True)[0].frozen_in_twin

    assert frozen(Weights, frozenset({"weight"})) == frozenset()
    assert frozen(Frozen, frozenset({"weight"})) == frozenset({"weight"})
    assert frozen(Frozen, None) is None


def test_values_that_are_too_much_for_the_twin_are_not_judged() -> None:
    text = "the sequential layer does not take large values"
    with pytest.raises(Inapplicable, match=text):
        results_of_twin(given("large"), raising(OverflowError()))
    for wrong in (np.inf, np.nan, complex(0, np.inf)):
        results = {"x": RESULTS["y"], "y": (np.array([1]), np.array([1.0, wrong]))}
        with pytest.raises(Inapplicable, match=text):
            results_of_twin(given("large"), lambda results=results: results)  # type: ignore[misc]
        assert results_of_twin(given("infinite"), lambda results=results: results)[0] is results  # type: ignore[misc]
    for own in (SubjectError("x"), Inapplicable("x")):
        with pytest.raises(type(own), match=r"^x$"):
            results_of_twin(given("large"), raising(own))


@pytest.mark.parametrize("check", ["sequential", "gradients", "double_backward", "training"])
def test_rank_0_alone_runs_the_twin(check: str) -> None:
    made_on: list[int] = []

    def observe(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm

        def reference() -> Any:
            made_on.append(comm.Get_rank())
            return Weights()

        of = partial(weights, comm, optimizer=lambda parameters: torch.optim.SGD(parameters, 0.5), steps=1)
        return check_named(check).observe(CheckContext(of, InputSetting(0, "torch"), comm, reference))

    with check_named(check).surroundings():
        run = WORLD.run(observe, None, 2)
    assert run.completed, run
    assert set(made_on) == {0}
    first, second = run.values
    assert all(each.expected is not None for seen in first for each in seen.comparisons)
    assert all(each.expected is None for seen in second for each in seen.comparisons)
