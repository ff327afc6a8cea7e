"""Hints of retries follow from how many keys show a fault, and on which ranks; scripted judgements stand for the runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

import adjointlab as al
from adjointlab.checks.check import check_named
from adjointlab.checks.context import FRACTIONS, InputSetting
from adjointlab.checks.evidence import Evidence, Place
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.verdict import Verdict, coherent, incoherent, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.retries import _Retries, with_hints_of_retries
from adjointlab.engine.run_case import NO_RETURN, Judgement
from adjointlab.pictures.model import Grid
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
    assert (case.setting.seed - SEED) % 240 == 0
    return (case.setting.seed - SEED) // 240 - 1


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
        (6, {0: {1}, 1: {3}, 2: {1, 3}}, "on ranks 1, 3 it stays"),
        (6, {0: {2}, 3: {2}, 5: {2}}, "on rank 2 it stays"),
        (6, {0: {2}, 5: {2}}, None),
        (6, {0: {4}, 1: {4}, 2: {4}, 3: {5}}, None),  # four ranks are looked at
        (2, {0: {0, 1}, 1: {0, 1}, 2: {0, 1}}, "on ranks 0, 1 it stays"),
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
        (unjudged("late", kind=NO_RETURN), CASE, True, False),
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
