"""The values of a run, where no rank raised."""

from __future__ import annotations

from typing import Any

from adjointlab.worlds.run import Raised, Run

__all__ = ["values_of"]


def values_of(done: Run) -> tuple[Any, ...]:
    """The values by rank, or the first exception that a rank raised."""
    for outcome in done.outcomes:
        if isinstance(outcome, Raised) and outcome.exception is not None:
            raise outcome.exception
    assert done.completed, (done.outcomes, done.findings)
    return done.values
