"""Waits that poll: no rest at first, and after each rest as much polling as the pace of the wait asks for."""

from __future__ import annotations

import pytest

from adjointlab.worlds import polling
from adjointlab.worlds.polling import RESTFUL, Pace, poll_until

POLL = 1e-5
"""Seconds that a poll takes by the clock of these tests."""


class Clock:
    """Time that passes in polls and rests alone; notes the polls before each rest, and how long that was."""

    def __init__(self) -> None:
        self.now, self.polls = 0.0, 0
        self.before_rests: list[int] = []
        self.rests: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def poll(self, total: int) -> bool:
        self.polls += 1
        self.now += POLL
        return self.polls == total

    def sleep(self, seconds: float) -> None:
        self.before_rests.append(self.polls)
        self.rests.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polling, "perf_counter", clock.perf_counter)
    monkeypatch.setattr(polling.time, "sleep", clock.sleep)
    return clock


@pytest.mark.parametrize("pace", [RESTFUL, Pace(5e-2, 1.0), Pace(1e-3, 0.25), Pace(0.0, 2.0)])
def test_a_wait_rests_after_a_while_and_then_polls_for_a_share_of_each_rest(clock: Clock, pace: Pace) -> None:
    looks: list[float] = []
    assert poll_until(lambda: clock.poll(20_000), looks.append, 16, pace)
    first, *_ = clock.before_rests
    assert pace.before <= first * POLL <= pace.before + 17 * POLL
    for rest, one, other in zip(clock.rests, clock.before_rests, clock.before_rests[1:], strict=False):
        assert pace.after * rest <= (other - one) * POLL <= pace.after * rest + 17 * POLL
    assert max(clock.rests) == 1e-3
    assert sorted(looks) == looks
    assert len(looks) == 20_000 // 16 - (20_000 % 16 == 0)


def test_what_is_ready_within_the_first_polls_needs_no_rest_and_no_look(clock: Clock) -> None:
    looks: list[float] = []
    assert poll_until(lambda: clock.poll(16), looks.append, 16)
    assert (clock.rests, looks) == ([], [])
