"""Strategy for a schedule."""

from __future__ import annotations

from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.simulated.schedules.pct import PriorityWalk
from adjointlab.worlds.simulated.schedules.random_walk import RandomWalk
from adjointlab.worlds.simulated.schedules.replay import Replay
from adjointlab.worlds.simulated.schedules.round_robin import RoundRobin
from adjointlab.worlds.simulated.schedules.strategy import Strategy

__all__ = ["strategy_for"]


def strategy_for(schedule: Schedule) -> Strategy:
    """Return a strategy for one run under `schedule`; raises `ValueError` if its decisions are no record."""
    strategy = _by_seed(schedule)
    return Replay(schedule.decisions, strategy) if schedule.decisions else strategy


def _by_seed(schedule: Schedule) -> Strategy:
    if schedule.strategy == "pct":
        return PriorityWalk(schedule.seed, schedule.depth)
    if schedule.strategy == "random":
        return RandomWalk(schedule.seed)
    return RoundRobin()
