"""Each strategy decides as often, and among as many, as it promises; a replay asks it only where the record ends."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import pytest

from adjointlab.worlds.schedule import DecisionKind, Schedule, append, encode
from adjointlab.worlds.simulated.schedules.pct import PriorityWalk
from adjointlab.worlds.simulated.schedules.replay import Replay
from adjointlab.worlds.simulated.schedules.strategies import RandomWalk, RoundRobin, strategy_for

pytestmark = pytest.mark.mpi_skip


@dataclass(frozen=True)
class Rank:
    rank: int


RANKS = tuple(Rank(rank) for rank in range(4))
RECORD = bytearray()
append(RECORD, DecisionKind.NEXT, 2)


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [(Schedule(), RoundRobin), (Schedule("random", 5), RandomWalk), (Schedule("pct", 5, 2), PriorityWalk)],
)
def test_a_schedule_has_the_strategy_of_its_name_with_or_without_a_record(schedule: Any, kind: type) -> None:
    strategy = strategy_for(schedule)
    assert type(strategy) is kind
    assert strategy.orderly is (kind is RoundRobin)

    record = Schedule(schedule.strategy, schedule.seed, schedule.depth, encode(bytes(RECORD)))
    replay, alone = strategy_for(record), strategy_for(schedule)
    assert not replay.orderly
    assert replay.next(deque(RANKS)) is RANKS[2]
    ready, same = deque(RANKS), deque(RANKS)
    assert [replay.next(ready).rank for _ in RANKS[1:]] == [alone.next(same).rank for _ in RANKS[1:]]


@pytest.mark.parametrize(
    ("walk", "chances"),
    [(RandomWalk, (0.25, 0.5, 1.0)), (lambda seed: PriorityWalk(seed, 1), (0.0, 0.25, 0.5, 1.0))],
)
def test_a_run_deviates_with_one_of_a_few_chances_each_of_which_is_drawn_as_often(
    walk: Any, chances: tuple[float, ...]
) -> None:
    seeds, draws = 100 * len(chances), 120
    drawn = Counter[float]()
    for seed in range(seeds):
        strategy = walk(seed)
        share = sum(strategy.deviates() for _ in range(draws)) / draws
        nearest = min(chances, key=lambda chance: abs(chance - share))
        assert abs(nearest - share) < 0.2
        drawn[nearest] += 1
    assert all(70 < drawn[chance] < 130 for chance in chances)


def test_a_random_walk_preempts_a_rank_in_a_quarter_of_its_calls() -> None:
    walk = RandomWalk(3)
    preempted = sum(walk.preempts(RANKS[0], deque(RANKS[1:])) for _ in range(4000))
    assert 900 < preempted < 1100


def test_a_random_walk_runs_each_ready_rank_as_often_and_leaves_the_others_ready() -> None:
    walk, drawn = RandomWalk(4), Counter[Rank]()
    for _ in range(4000):
        ready = deque(RANKS)
        chosen = walk.next(ready)
        assert sorted(each.rank for each in (*ready, chosen)) == [0, 1, 2, 3]
        drawn[chosen] += 1
    assert all(900 < drawn[rank] < 1100 for rank in RANKS)


@pytest.mark.parametrize("walk", [RandomWalk(5), PriorityWalk(5, 2)])
def test_a_walk_chooses_each_option_as_often(walk: Any) -> None:
    drawn = Counter(walk.choose("abcd") for _ in range(4000))
    assert all(900 < drawn[option] < 1100 for option in "abcd")


def test_ranks_in_turn_are_never_preempted_deviate_never_and_take_the_usual_option() -> None:
    strategy, ready = RoundRobin(), deque(RANKS)
    assert not strategy.preempts(RANKS[0], ready)
    assert not strategy.deviates()
    assert strategy.choose("abcd") == "a"
    strategy.polled(RANKS[0])
    assert [strategy.next(ready).rank for _ in RANKS] == [0, 1, 2, 3]


@pytest.mark.parametrize("depth", range(1, 5))
def test_a_rank_that_has_polled_in_vain_comes_after_all_others_whatever_the_depth(depth: int) -> None:
    for seed in range(5):
        walk = PriorityWalk(seed, depth)
        first = walk.next(deque(RANKS))
        walk.polled(first)
        ready = deque(RANKS)
        order = [walk.next(ready) for _ in RANKS]
        assert order[-1] is first
        walk.polled(order[0])
        ready = deque(RANKS)
        assert [walk.next(ready) for _ in RANKS] == [*order[1:], order[0]]


@pytest.mark.parametrize("depth", range(1, 5))
def test_a_rank_that_has_polled_in_vain_comes_after_those_whose_priority_has_been_lowered_too(
    depth: int,
) -> None:
    for seed in range(5):
        walk = PriorityWalk(seed, depth)
        for _ in range(2**12):  # all changes of priority lie among so many calls
            walk.preempts(RANKS[0], deque())
        walk.polled(RANKS[1])
        ready = deque(RANKS)
        order = [walk.next(ready) for _ in RANKS]
        assert order[-1] is RANKS[1]
        assert (order[-2] is RANKS[0]) or depth == 1


def test_the_number_of_calls_among_which_priorities_change_is_drawn_from_4_on() -> None:
    """With a chance of 1 / 2**k for each k from 2 to 12, the change comes with the very first call: in 4.5 of 100 runs."""
    first = 0
    for seed in range(2000):
        walk, ready = PriorityWalk(seed, 2), deque(RANKS[:2])
        running = walk.next(ready)
        first += walk.preempts(running, ready)
    assert 70 < first < 115


KINDS = {
    DecisionKind.NEXT: lambda replay: replay.next(deque(RANKS)).rank,
    DecisionKind.PREEMPTION: lambda replay: replay.preempts(RANKS[0], deque(RANKS[1:])),
    DecisionKind.DEVIATION: lambda replay: replay.deviates(),
    DecisionKind.CHOICE: lambda replay: replay.choose("abc"),
}
AS_IN_TURN = {
    DecisionKind.NEXT: 0,
    DecisionKind.PREEMPTION: False,
    DecisionKind.DEVIATION: False,
    DecisionKind.CHOICE: "a",
}
FOLLOWED = {
    DecisionKind.NEXT: 1,
    DecisionKind.PREEMPTION: True,
    DecisionKind.DEVIATION: True,
    DecisionKind.CHOICE: "b",
}


@pytest.mark.parametrize("recorded", KINDS)
@pytest.mark.parametrize("asked", KINDS)
def test_a_replay_leaves_its_record_at_the_first_question_that_was_another_one_then(
    recorded: DecisionKind, asked: DecisionKind
) -> None:
    numbers = bytearray()
    append(numbers, recorded, 1)
    append(numbers, recorded, 1)
    replay = Replay(encode(bytes(numbers)), RoundRobin())
    assert KINDS[recorded](replay) == FOLLOWED[recorded]
    assert replay.left_at is None
    fits = asked is recorded
    assert KINDS[asked](replay) == (FOLLOWED if fits else AS_IN_TURN)[asked]
    assert replay.left_at == (None if fits else 1)
    # From there on the record is not looked at any more.
    assert KINDS[recorded](replay) == AS_IN_TURN[recorded]
    assert replay.left_at == (2 if fits else 1)


@pytest.mark.parametrize("index", [0, 1, 2, 3, 4])
def test_a_recorded_choice_is_taken_where_there_are_as_many_options(index: int) -> None:
    numbers = bytearray()
    append(numbers, DecisionKind.CHOICE, index)
    replay = Replay(encode(bytes(numbers)), RoundRobin())
    assert replay.choose("xyz") == ("xyz"[index] if index < 3 else "x")
    assert replay.left_at == (None if index < 3 else 1)


def test_a_recorded_rank_runs_where_it_is_ready() -> None:
    numbers = bytearray()
    append(numbers, DecisionKind.NEXT, 7)
    replay, ready = Replay(encode(bytes(numbers)), RoundRobin()), deque(RANKS)
    assert replay.next(ready) is RANKS[0]
    assert replay.left_at == 1
    assert list(ready) == list(RANKS[1:])


@pytest.mark.parametrize("count", [0, 1, 2, 256, 257, 300])
def test_a_replay_leaves_its_record_at_its_end_however_long_it_is(count: int) -> None:
    numbers = bytearray()
    for number in range(count):
        append(numbers, DecisionKind.DEVIATION, number % 2)
    replay = Replay(encode(bytes(numbers)), RoundRobin())
    assert [replay.deviates() for _ in range(count)] == [bool(number % 2) for number in range(count)]
    assert replay.left_at is None
    assert not replay.deviates()
    assert replay.left_at == count
    assert not replay.deviates()
    assert replay.left_at == count
