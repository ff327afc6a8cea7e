"""Hints of retries follow from how many keys show a fault, and on which ranks; scripted judgements stand for the runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

import adjointlab as al
from adjointlab.checks.check import Spaces, check_named
from adjointlab.checks.context import FRACTIONS, InputSetting
from adjointlab.checks.evidence import Evidence, Place
from adjointlab.checks.fresh_memory import fill_by
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.layers.drawn_values import has_small_cotangents
from adjointlab.checks.layers.passes import PassPlan
from adjointlab.checks.seed_digits import SEED_PERIOD
from adjointlab.checks.verdict import Verdict, coherent, incoherent, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import RankObservation
from adjointlab.engine.failed_runs import NO_RETURN
from adjointlab.engine.interleavings import DEPENDS
from adjointlab.engine.retries import _Retries, with_hints_of_retries
from adjointlab.engine.run_case import NONDETERMINISTIC, Judgement
from adjointlab.pictures.model import Grid
from adjointlab.worlds.run import Finding, FindingKind, Returned, Run
from adjointlab.worlds.schedule import Schedule
from tests.samples import right

SEED = 1000
CASE = Case("s", "gradients", 6, {}, InputSetting(SEED, "torch", dual_order="column-major"), 0)
WRONG = incoherent("wrong", kind="wrong")
OTHER = incoherent("other", kind="other")


def of_kind(kind: FaultKind, text: str = "text") -> Verdict:
    place = Place(Grid("y", "", (1,), (), ()), "[0]", (("got", "1"), ("due", "2")), Hint(kind, text))
    return replace(WRONG, evidence=Evidence(place))


@dataclass(frozen=True)
class Scripted(_Retries):
    """Judges a case by a script instead of a run."""

    script: Callable[[Case], Verdict | None] = lambda case: None
    stays: Callable[[int, int], bool | None] = lambda key, rank: None

    def _judged(self, case: Case) -> Judgement | None:
        verdict = self.script(case)
        return None if verdict is None else Judgement(verdict, None)


def key(case: Case) -> int:
    """The number of the key, from 0."""
    assert (case.setting.seed - SEED) % SEED_PERIOD == 0
    return (case.setting.seed - SEED) // SEED_PERIOD - 1


def scripted(verdicts: Sequence[Verdict | None], case: Case = CASE, *, is_layer: bool = False) -> Scripted:
    def run(*given: Any, **named: Any) -> Any:
        raise AssertionError(given)

    subject: Any = LAYER if is_layer else right
    return Scripted(run, case, WRONG, subject, float("inf"), lambda each: verdicts[key(each)])


def no_cases(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


LAYER = al.subject.layer(lambda comm: None, lambda: None, name="s")(no_cases)


ONE, ANOTHER = FaultKind.UNEVEN, FaultKind.EMPTY


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        ([of_kind(ONE, "first"), of_kind(ONE), of_kind(ONE), of_kind(ANOTHER)], "first"),
        ([None, coherent(), unjudged("no"), of_kind(ONE, "first"), of_kind(ONE), of_kind(ONE)], "first"),
        ([of_kind(ONE), of_kind(ONE), coherent(), coherent(), coherent(), coherent()], None),
        ([of_kind(ONE), of_kind(ANOTHER), of_kind(ONE), of_kind(ONE), of_kind(ONE), of_kind(ONE)], None),
        ([of_kind(ANOTHER), of_kind(ONE), of_kind(ANOTHER), of_kind(ANOTHER), WRONG, WRONG], None),
        ([of_kind(ONE), WRONG, of_kind(ONE), of_kind(ONE), of_kind(ONE), of_kind(ONE)], None),
    ],
)
def test_a_relation_is_told_that_three_keys_show_and_none_contradicts(
    verdicts: list[Verdict | None], told: str | None
) -> None:
    hint = scripted(verdicts)._relation(CASE)
    assert (None if hint is None else hint.text) == told


@pytest.mark.parametrize(
    ("changed", "control", "vanishes"),
    [
        ([coherent()] * 6, [WRONG, coherent(), WRONG, OTHER, WRONG, None], True),
        ([coherent()] * 6, [WRONG, coherent(), WRONG, OTHER, OTHER, None], False),
        ([coherent()] * 5 + [WRONG], [WRONG] * 6, False),
        ([coherent()] * 5 + [None], [WRONG] * 6, False),
    ],
)
def test_a_fault_vanishes_where_no_key_shows_it_and_half_of_them_do_in_the_control(
    changed: list[Verdict | None], control: list[Verdict | None], vanishes: bool
) -> None:
    plainer = structs.replace(CASE, check="purity")
    retries = replace(
        scripted([]), script=lambda case: (changed if case.check == "purity" else control)[key(case)]
    )
    assert retries._vanishes(plainer, CASE) is vanishes


@pytest.mark.parametrize(
    ("ranks", "stays", "told"),
    [
        (6, {0: {1}, 1: {3}, 2: {1, 3}}, "on ranks 1, 3 it does not change"),
        (6, {0: {2}, 3: {2}, 5: {2}}, "on rank 2 it does not change"),
        (6, {0: {2}, 5: {2}}, None),
        (6, {0: {4}, 1: {4}, 2: {4}, 3: {5}}, None),  # four ranks are looked at
        (2, {0: {0, 1}, 1: {0, 1}, 2: {0, 1}}, "on ranks 0, 1 it does not change"),
        (1, {0: {0}, 1: {0}, 2: {0}}, None),
    ],
)
@pytest.mark.parametrize("contradicts", ["no key", "the first key", "the key after three"])
def test_a_result_is_of_the_own_part_where_three_keys_show_it_and_no_rank_denies_it(
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    stays: dict[int, set[int]],
    told: str | None,
    contradicts: str,
) -> None:
    looked_at: set[int] = set()
    contradicting = {"the first key": min(stays), "the key after three": sorted(stays)[-1] + 1}.get(
        contradicts
    )

    def observed(self: _Retries, case: Case) -> tuple[int, int | None]:
        if case.same_on is not None:
            looked_at.add(case.same_on)
        return key(case), case.same_on

    def is_of_own_part(self: Any, one: Any, other: Any, rank: int) -> bool | None:
        number, same_on = other
        assert (one[1], same_on) == (None, rank)
        if rank == 0 and number == contradicting:
            return False
        return True if rank in stays.get(number, ()) else None

    monkeypatch.setattr(_Retries, "_observed", observed)
    monkeypatch.setattr(type(check_named("gradients")), "is_of_own_part", is_of_own_part)
    hint = scripted([], structs.replace(CASE, ranks=ranks))._own_part(structs.replace(CASE, ranks=ranks))
    assert looked_at == (set(range(min(ranks, 4))) if ranks > 1 else set())
    if told is None or contradicts == "the first key":
        assert hint is None
    else:
        assert hint is not None
        assert hint.kind is FaultKind.OWN_PART
        assert told in hint.text


def test_values_of_a_layer_are_told_of_fractions() -> None:
    cases: list[Case] = []

    def script(case: Case) -> Verdict:
        cases.append(case)
        return of_kind(ONE)

    for is_layer in (True, False):
        cases.clear()
        assert replace(scripted([], is_layer=is_layer), script=script).of_values() is not None
        assert {case.values == FRACTIONS for case in cases} == {is_layer}


def test_nothing_is_learnt_after_the_end() -> None:
    calls: list[int] = []

    def run(*given: Any, **named: Any) -> Any:
        calls.append(1)
        raise ZeroDivisionError

    retries = _Retries(run, CASE, WRONG, right, time.process_time() - 1.0)
    assert retries._judged(CASE) is None
    assert retries._observed(CASE) == ()
    assert not calls
    in_time = replace(retries, ends=time.process_time() + 60)
    for method in (in_time._judged, in_time._observed):
        with pytest.raises(ZeroDivisionError):
            method(CASE)


@pytest.mark.parametrize(
    ("verdict", "case", "simulated", "is_retried"),
    [
        (WRONG, CASE, False, True),
        (unjudged("raised", kind="raised"), CASE, True, True),
        (unjudged("raised", kind="raised"), CASE, False, False),
        *(
            (incoherent("no", kind=kind), CASE, True, False)
            for kind in (DEPENDS, NO_RETURN, NONDETERMINISTIC)
        ),
        (unjudged("livelock", kind=FindingKind.LIVELOCK), CASE, True, False),
        (WRONG, structs.replace(CASE, schedules=(Schedule(),)), True, False),
    ],
)
def test_failures_that_cost_little_are_retried(
    verdict: Verdict, case: Case, simulated: bool, is_retried: bool
) -> None:
    class Begun(Exception):
        pass

    def run(*given: Any, **named: Any) -> Any:
        raise Begun

    def retry() -> Verdict:
        return with_hints_of_retries(run, case, verdict, right, may_change_parameters=simulated)

    if is_retried:
        with pytest.raises(Begun):
            retry()
    else:
        assert retry() is verdict


# Cuts


RIGHT: Sequence[Verdict | None] = [coherent()] * 6
HALF: Sequence[Verdict | None] = [WRONG, coherent(), WRONG, None, WRONG, OTHER]
FEW: Sequence[Verdict | None] = [WRONG, coherent(), WRONG, None, OTHER, OTHER]
ONCE: Sequence[Verdict | None] = [*RIGHT[:5], WRONG]
UNEVEN = al.Layout.cut((2,), (2,), [(0, 2, 2)])
CUT = structs.replace(CASE, ranks=2, parameters={"layout": UNEVEN})
OF_UNEVEN = Hint(FaultKind.UNEVEN, "right with even cuts, and wrong with uneven ones of the same sides")
OF_EMPTY = Hint(
    FaultKind.EMPTY, "right where every rank holds elements, and wrong where the part of one is empty"
)


@dataclass(frozen=True)
class ScriptedCuts(Scripted):
    """Judges a case by its cut, and tells its spaces."""

    by_cut: tuple[tuple[tuple[int, ...], Sequence[Verdict | None]], ...] = ()
    without_spaces: tuple[tuple[int, ...], ...] = ()
    declared: al.Layout | None = None  # for every case

    def _judged(self, case: Case) -> Judgement | None:
        layout: Any = case.parameters["layout"]
        ends = layout.ends(0)
        if case.setting.seed == SEED:
            spaces = Spaces(al.Space(al.Layout((3,), (1,))), al.Space(self.declared or layout))
            return (
                None if ends == (0, 0) else Judgement(WRONG, None if ends in self.without_spaces else spaces)
            )
        verdict = dict(self.by_cut)[ends][key(case)]
        return None if verdict is None else Judgement(verdict, None)


E, L, M, W = (0, 2, 4), (0, 3, 6), (0, 1, 4), (0, 4, 4)


@pytest.mark.parametrize(
    ("even", "longer", "moved", "with_empty", "told"),
    [
        (RIGHT, RIGHT, HALF, HALF, [OF_UNEVEN]),
        (RIGHT, RIGHT, HALF, RIGHT, [OF_UNEVEN]),
        (RIGHT, RIGHT, FEW, HALF, []),
        (RIGHT, ONCE, HALF, HALF, []),
        (ONCE, RIGHT, HALF, HALF, []),
        (RIGHT, HALF, RIGHT, HALF, [OF_EMPTY]),
        (RIGHT, RIGHT, RIGHT, HALF, [OF_EMPTY]),
        (RIGHT, RIGHT, RIGHT, FEW, []),
        (RIGHT, RIGHT, ONCE, HALF, []),
        (ONCE, RIGHT, RIGHT, HALF, []),
    ],
)
def test_a_fault_of_cuts_is_right_with_other_cuts_of_the_same_and_of_longer_sides(
    even: Any, longer: Any, moved: Any, with_empty: Any, told: list[Hint]
) -> None:
    verdicts = tuple(zip((E, L, M, W), (even, longer, moved, with_empty), strict=True))
    retries = ScriptedCuts(run, CUT, WRONG, right, float("inf"), by_cut=verdicts)
    assert list(retries.of_cuts()) == told
    # Nothing is told where the operator does not say how it cuts its tensors, or cuts them unevenly all the same.
    for unknown in ((0, 2, 2), E):
        assert list(replace(retries, without_spaces=(unknown,)).of_cuts()) == []
    assert list(replace(retries, declared=UNEVEN).of_cuts()) == []
    assert list(replace(retries, declared=al.Layout((2,), (2,))).of_cuts()) == []
    elsewhere = structs.replace(CUT, parameters={"layout": al.Layout((2,), (2,))})
    assert list(replace(retries, case=elsewhere, declared=al.Layout((3,), (2,))).of_cuts()) == []


def run(*given: Any, **named: Any) -> Any:
    raise AssertionError(given)


# Values


def test_the_memory_order_and_the_course_of_the_passes_are_told_where_the_fault_vanishes_without_them() -> (
    None
):
    # With this key, gradients that were there before are added to.
    case = structs.replace(CASE, setting=replace(CASE.setting, seed=9))
    settings = list(check_named("gradients").plainer_settings(case.setting))
    assert len(settings) > 1
    seen: list[tuple[Case, Case]] = []

    class Vanishing(Scripted):
        def _vanishes(self, changed: Case, control: Case) -> bool:
            seen.append((changed, control))
            return len(seen) != 1

    assert list(Vanishing(run, case, WRONG, right, 0.0).of_settings()) == [hint for hint, _ in settings[1:]]
    assert seen == [(structs.replace(case, setting=setting), case) for _, setting in settings]


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("is_layer", [False, True])
def test_a_root_asks_for_the_other_direction_and_nothing_there_for_the_own_part(
    kind: FaultKind, is_layer: bool
) -> None:
    class Asked(Scripted):
        def _in_both_directions(self, hint: Hint) -> Hint:
            return replace(hint, text="of both")

        def _own_part(self, case: Case) -> Hint | None:
            assert case.values == FRACTIONS
            return Hint(kind, "own") if case.ranks > 1 else None

    subject: Any = LAYER if is_layer else right
    retries = Asked(run, CASE, WRONG, subject, 0.0, script=lambda case: of_kind(kind))
    expected = "text"
    if kind in (FaultKind.TIMES_ROOT, FaultKind.BY_ROOT):
        expected = "of both"
    elif is_layer and kind in (FaultKind.MISSING, FaultKind.ZERO_RANK):
        expected = "own"
    assert retries.of_values() == Hint(kind, expected)
    nothing = replace(retries, script=lambda case: WRONG)
    assert nothing.of_values() == (Hint(kind, "own") if is_layer else None)
    if expected == "own":
        assert replace(retries, case=structs.replace(CASE, ranks=1)).of_values() == Hint(kind, "text")


def test_a_root_is_told_of_operators_whose_matrices_are_adjoint() -> None:
    hint = Hint(FaultKind.BY_ROOT, "divided")
    asked: list[Case] = []

    def retries(verdict: Verdict | None, *, is_layer: bool = False) -> Scripted:
        def script(case: Case) -> Verdict | None:
            asked.append(case)
            return verdict

        return replace(scripted([], is_layer=is_layer), script=script)

    both = Hint(hint.kind, "divided, and the adjoint is its transpose: both directions have the factor")
    assert retries(coherent())._in_both_directions(hint) == both
    assert retries(WRONG)._in_both_directions(hint) is None
    assert retries(None)._in_both_directions(hint) is None
    assert asked == [structs.replace(CASE, check="matrix")] * 3
    assert retries(coherent(), is_layer=True)._in_both_directions(hint) is None
    assert len(asked) == 3


@pytest.mark.parametrize("fails_alone", [False, True])
@pytest.mark.parametrize("failures", [0, 3, 4])
def test_a_run_that_could_not_be_judged_tells_nothing_of_the_own_part(
    monkeypatch: pytest.MonkeyPatch, fails_alone: bool, failures: int
) -> None:
    def observed(self: _Retries, case: Case) -> tuple[int, ...]:
        fails = (case.same_on is None) == fails_alone
        return () if fails and key(case) < failures else (key(case),)

    monkeypatch.setattr(_Retries, "_observed", observed)
    monkeypatch.setattr(type(check_named("gradients")), "is_of_own_part", lambda self, *given: True)
    text = "of the rank's own part only: on ranks 0, 1, 2 it does not change when the other ranks hold other values, and should"
    told = scripted([])._own_part(structs.replace(CASE, ranks=3))
    assert told == (Hint(FaultKind.OWN_PART, text) if failures < 4 else None)


def test_observations_are_those_of_all_ranks_of_a_run_that_can_be_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spaces = Spaces(al.Space(UNEVEN), al.Space(UNEVEN))
    returned = tuple(Returned(RankObservation(rank * 10, spaces)) for rank in range(2))
    case = structs.replace(CUT, schedule=7)
    ran: list[Any] = []

    def retries(result: Run) -> _Retries:
        def run(*given: Any, **named: Any) -> Run:
            ran.append((given, named))
            return result

        return _Retries(run, case, WRONG, right, float("inf"))

    verdicts: dict[str, Judgement | None] = {"judged": Judgement(WRONG, None)}
    monkeypatch.setattr("adjointlab.engine.run_case.judgement_of", lambda case, run: verdicts["judged"])
    assert retries(Run(returned))._observed(case) == [0, 10]
    assert ran == [((case, 2), {"seed": 7, "schedule": None})]
    assert retries(Run(returned, (Finding(FindingKind.BLOCKED, ""),)))._observed(case) == ()
    verdicts["judged"] = None
    assert retries(Run(returned))._observed(case) == ()


# Verdicts


KNOWN, FOUND, OF_SETTING, OF_CUT = (
    Hint(kind, kind.value)
    for kind in (FaultKind.SIGN, FaultKind.DOUBLED, FaultKind.STRIDES, FaultKind.UNEVEN)
)
PLACE = Place(Grid("y", "", (1,), (), ()), "[0]", (("got", "1"), ("due", "2")), KNOWN)
MATRICES: Any = SimpleNamespace(hint=None)


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        (None, Evidence(retried=(OF_SETTING, OF_CUT))),
        (Evidence(PLACE), Evidence(replace(PLACE, hint=FOUND), retried=(OF_SETTING, OF_CUT))),
        (Evidence(PLACE, MATRICES), Evidence(PLACE, MATRICES, retried=(OF_SETTING, OF_CUT))),
        (Evidence(hint=KNOWN), Evidence(hint=KNOWN, retried=(OF_SETTING, OF_CUT))),
        (Evidence(hint=OF_SETTING), Evidence(hint=OF_SETTING, retried=(OF_CUT,))),
        (Evidence(hint=OF_CUT), Evidence(hint=OF_CUT, retried=(OF_SETTING,))),
    ],
)
def test_a_verdict_has_the_hints_that_it_had_not(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence | None, told: Evidence
) -> None:
    monkeypatch.setattr(_Retries, "of_values", lambda self: FOUND)
    monkeypatch.setattr(_Retries, "of_settings", lambda self: iter([OF_SETTING]))
    monkeypatch.setattr(_Retries, "of_cuts", lambda self: iter([OF_CUT]))
    monkeypatch.setattr(_Retries, "of_schedule", lambda self: iter([]))
    verdict = replace(WRONG, evidence=evidence)

    def retried(*, may_change_parameters: bool) -> Verdict:
        return with_hints_of_retries(run, CASE, verdict, right, may_change_parameters=may_change_parameters)

    found = retried(may_change_parameters=True)
    assert (found, found.evidence) == (WRONG, told)
    without_cuts = replace(told, retried=tuple(hint for hint in told.retried if hint is not OF_CUT))
    expected = None if without_cuts == Evidence() else without_cuts
    assert retried(may_change_parameters=False).evidence == expected


def test_a_verdict_without_hints_has_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Retries, "of_settings", lambda self: iter([]))
    retried = with_hints_of_retries(run, CASE, WRONG, right, may_change_parameters=False)
    assert retried == WRONG
    assert retried.evidence is None


@pytest.mark.parametrize(("seconds", "is_begun"), [(5.0, True), (0.0, True), (-1.0, False)])
def test_retries_begin_until_so_many_seconds_of_processor_time_have_passed(
    monkeypatch: pytest.MonkeyPatch, seconds: float, is_begun: bool
) -> None:
    class Begun(Exception):
        pass

    def run(*given: Any, **named: Any) -> Any:
        raise Begun

    monkeypatch.setattr("adjointlab.engine.retries.time", SimpleNamespace(process_time=lambda: 100.0))
    retries = _Retries(run, CASE, WRONG, right, 100.0 + seconds)
    for begin in (
        lambda: with_hints_of_retries(run, CASE, WRONG, right, may_change_parameters=True, seconds=seconds),
        lambda: retries._judged(CASE),
        lambda: retries._observed(CASE),
    ):
        if is_begun:
            with pytest.raises(Begun):
                begin()
        else:
            assert not begin() or begin() == WRONG


@pytest.mark.parametrize("seed", [0, 7, 239, 767, 3839, 7680, 15359, 15360, 2**31 - 1])
def test_other_values_leave_all_else_that_a_seed_decides(seed: int) -> None:
    other = seed + SEED_PERIOD
    assert PassPlan.of(other, backward=True) == PassPlan.of(seed, backward=True)
    assert str(fill_by(other)) == str(fill_by(seed))  # NaN is not equal to itself
    space = al.Space(al.Layout((3,), (1,)))
    of: Any = SimpleNamespace(
        domain=space, codomain=space, parameters=space, rounding=None, reach=0.0, computes_in=""
    )
    assert has_small_cotangents(other, of) == has_small_cotangents(seed, of)
    # The field of scalars, directions of derivatives.
    assert (other - seed) % 2 == 0
