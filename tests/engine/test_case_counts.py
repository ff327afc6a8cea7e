"""The counts of a search add up what was judged and rejected, and say in one sentence where that is too little for a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.counts import CaseCounts
from adjointlab.worlds.run import Run

pytestmark = pytest.mark.mpi_skip


def space(workers: int) -> al.Space:
    return al.Space(al.Layout((4,), (workers,)))


KEPT, SENT = Spaces(space(2), space(2)), Spaces(space(1), space(2))
"""Spaces of an operator that can do without messages, and of one that cannot."""


def judged(ranks: int, communicating: tuple[int, ...] = (), spaces: Spaces | None = None) -> CaseCounts:
    counts = CaseCounts(9, judged=3, on_several_ranks=2, communicating=1, most_ranks=2, lacking_messages=1)
    case = Case("Ring", "adjoint", ranks, {}, InputSetting(), 0)
    counts.judge(case, Run((), communicating=frozenset(communicating)), spaces)
    return counts


@pytest.mark.parametrize(
    ("ranks", "communicating", "spaces", "numbers"),
    [
        (1, (), SENT, (4, 2, 1, 2, 1)),
        (2, (), None, (4, 3, 1, 2, 1)),
        (2, (), KEPT, (4, 3, 1, 2, 1)),
        (2, (), SENT, (4, 3, 1, 2, 2)),
        (2, (1,), SENT, (4, 3, 1, 2, 2)),
        (2, (0, 1), SENT, (4, 3, 2, 2, 1)),
        (4, (0, 1, 3), SENT, (4, 3, 2, 3, 1)),
    ],
)
def test_a_judged_case_is_counted_by_its_ranks_and_by_those_that_communicated(
    ranks: int, communicating: tuple[int, ...], spaces: Spaces | None, numbers: tuple[int, ...]
) -> None:
    assert judged(ranks, communicating, spaces) == CaseCounts(9, *numbers)


def test_the_cases_of_another_search_are_added_but_for_the_larger_number_of_ranks() -> None:
    counts = CaseCounts(50, 10, 6, 4, 3, 2, {"why": 5})
    counts.add(CaseCounts(70, 7, 5, 3, 2, 1, {"not": 1}, is_cut_short=True))
    assert counts == CaseCounts(50, 17, 11, 7, 3, 3, {"why": 5})
    counts.add(CaseCounts(0, most_ranks=8))
    assert counts.most_ranks == 8


def test_a_search_that_ends_early_has_asked_for_those_that_were_judged() -> None:
    counts = CaseCounts(50, judged=10)
    assert counts == CaseCounts(50, 10, 0, 0, 0, 0, {}, is_cut_short=False)
    counts.end()
    assert counts == CaseCounts(10, judged=10, is_cut_short=True)


def test_rejected_cases_are_counted_by_reason_up_to_eight_for_each_that_is_asked_for() -> None:
    counts = CaseCounts(2)
    for _ in range(10):
        counts.reject("one")
    for _ in range(6):
        counts.reject("other")
    assert counts.rejected == {"one": 10, "other": 6}
    assert not counts.is_hopeless
    counts.reject("other")
    assert counts.is_hopeless


REJECTED = {"rare": 1, "often": 5, "never told": 0, "seldom": 2}
WHY = (("rejected", "5: often"), ("rejected", "2: seldom"), ("rejected", "1: rare"))
NO_OTHERS = (("because", "the subject's strategy draws no others"),)
FULL = CaseCounts(4, judged=4, on_several_ranks=1)


@pytest.mark.parametrize(
    ("counts", "several", "headline", "lines"),
    [
        (CaseCounts(4), True, "no case could be drawn: the subject's strategy rejects them all", None),
        (CaseCounts(4, rejected=REJECTED), True, "no case could be judged of 8 that were drawn", WHY),
        (replace(FULL, on_several_ranks=0, rejected=REJECTED), True, "no case of several ranks could be judged, only 4 of one rank", WHY),
        (replace(FULL, on_several_ranks=0), True, "no case of several ranks could be judged, only 4 of one rank", NO_OTHERS),
        (replace(FULL, on_several_ranks=0), False, None, None),
        (replace(FULL, judged=3), True, "only 3 of 4 cases could be judged", NO_OTHERS),
        (replace(FULL, judged=3, on_several_ranks=0), False, "only 3 of 4 cases could be judged", NO_OTHERS),
        (replace(FULL, rejected=REJECTED), True, None, None),
        (replace(FULL, judged=5), True, None, None),
        (CaseCounts(10, 10, 5, undecided=1, rejected=REJECTED), True, None, None),
        (CaseCounts(10, 10, 5, undecided=2, rejected=REJECTED), True, "2 cases could be called neither right nor wrong, besides 10 that were judged", WHY),
    ],
)  # fmt: skip
def test_too_few_cases_are_no_verdict_and_the_commonest_reasons_come_first(
    counts: CaseCounts, several: bool, headline: str | None, lines: Any
) -> None:
    found = counts.shortfall(needs_several_ranks=several)
    if headline is None:
        assert found is None
    elif lines is None:
        assert found == unjudged(headline)
    else:
        assert found == unjudged(headline, *lines, kind="too few cases judged")
