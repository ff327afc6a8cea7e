"""Of two runs of a case under several schedules, the call that was answered otherwise is told and shown."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import coherent, incoherent
from adjointlab.engine.case import Case
from adjointlab.engine.interleavings import judge_all
from adjointlab.worlds.schedule import schedules_from
from adjointlab.worlds.world import Matched, Run

CASE = Case("Ring", "adjoint", 3, {}, InputSetting(), 5, schedules_from(5, 2))
WRONG = incoherent("wrong")


@dataclass(frozen=True)
class AnyCall:
    where: str = "here.py:3"

    def __str__(self) -> str:
        return "Recv(ANY_SOURCE)"


def run(*calls: tuple[int, int]) -> Run:
    """A run with calls of these ranks, answered by these senders."""
    matched = (Matched(rank, AnyCall(), f"has {sender}", sender) for rank, sender in calls)
    return Run((), matched=tuple(matched))


@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_first_call_of_the_first_rank_that_was_answered_otherwise_is_told(is_swapped: bool) -> None:
    # Ranks 0 and 2 are answered alike at first, and rank 0 makes a call more.
    same = [(2, 4)] * 9
    runs = [run(*same, (2, 0), (0, 1), (0, 5), (2, 1)), run((0, 1), *same, (2, 3), (2, 0))]
    one, other = runs[::-1] if is_swapped else runs
    verdict = judge_all(CASE, [one, other], [coherent(), WRONG], lambda case, run: {})
    first, second = (3, 0) if is_swapped else (0, 3)
    text = f"rank 2 in Recv(ANY_SOURCE) at here.py:3 has {first}\nand has {second} under the other schedule (its call number 10 that may)"
    assert ("because", text) in verdict.lines


@pytest.mark.parametrize(("at", "start"), [(0, 0), (5, 0), (10, 4), (None, 0)])
def test_a_picture_shows_the_calls_around_the_first_that_was_answered_otherwise(
    at: int | None, start: int
) -> None:
    def run_with(other: int) -> Run:
        return run(*((number, other if number == at else 1) for number in range(20)))

    verdict = judge_all(CASE, [run_with(2), run_with(3)], [coherent(), WRONG], lambda case, run: {})
    assert verdict.evidence is not None
    for shown, sender, schedule in zip(verdict.evidence.matched, (2, 3), CASE.schedules, strict=False):
        ranks = [each.rank for each in shown.calls]
        assert ranks == list(range(start, start + 12))
        assert shown.schedule == str(schedule)
        assert shown.different == (None if at is None else at - start)
        assert [each.sender for each in shown.calls] == [sender if each == at else 1 for each in ranks]
