"""The walk by priorities (PCT): the rank of the highest priority runs, and a few changes and vain polls lower it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest

from adjointlab.worlds.simulated.schedules.pct import PriorityWalk

CALLS = 2**12  # of a run: the changes of priority lie among the first so many


@dataclass(frozen=True)
class Rank:
    rank: int


RANKS = (Rank(0), Rank(1), Rank(2))


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_of_the_highest_priority_runs_until_it_polls_in_vain(seed: int) -> None:
    walk, ready = PriorityWalk(seed, depth=1), deque(RANKS)
    first, second = walk.next(ready), walk.next(ready)
    (third,) = ready

    assert not walk.preempts(first, deque([second, third]))
    assert walk.preempts(second, deque([third, first]))
    assert not walk.preempts(second, deque([third]))
    assert walk.preempts(third, deque([second]))
    assert not walk.preempts(third, deque())

    walk.polled(first)
    assert walk.preempts(first, deque([third]))
    walk.polled(third)
    assert walk.preempts(third, deque([first]))
    assert walk.next(deque(RANKS)) is second


def preemptions_of_two(seed: int, depth: int) -> int:
    """The number of times that the running one of two ranks is preempted."""
    walk, ready = PriorityWalk(seed, depth), deque(RANKS[:2])
    running, waiting = walk.next(ready), ready[0]
    preempted = 0
    for _ in range(CALLS):
        if walk.preempts(running, deque([waiting])):
            running, waiting = waiting, running
            preempted += 1
    return preempted


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_of_two_ranks_the_running_one_is_preempted_once_for_each_change_of_priority(
    seed: int, depth: int
) -> None:
    assert preemptions_of_two(seed, depth) == depth - 1


def test_ranks_that_were_lowered_are_in_an_order_of_their_own() -> None:
    """Of two ranks, the second one lowered is preempted where it comes below the first."""
    seen = {preemptions_of_two(seed, depth=3) for seed in range(40)}
    assert seen == {1, 2}


def test_changes_of_priority_lie_anywhere_among_the_first_4096_calls() -> None:
    at = [_step_of_the_change(seed) for seed in range(600)]

    assert min(at) == 1
    assert CALLS // 2 < max(at) <= CALLS


def _step_of_the_change(seed: int) -> int:
    walk, ready = PriorityWalk(seed, 2), deque(RANKS[:2])
    running, waiting = walk.next(ready), deque(ready)
    return next(step for step in range(1, CALLS + 1) if walk.preempts(running, waiting))
