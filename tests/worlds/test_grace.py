"""A wait goes on for a moment after another rank has failed: what that rank and others have sent may be on its way."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mpi4py")

from adjointlab.worlds.mpi import guard as guards
from adjointlab.worlds.mpi.calls import GuardedCall
from adjointlab.worlds.mpi.control_channel import Notice
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.run import PeerFailed
from adjointlab.worlds.world import Cancelled

pytestmark = pytest.mark.mpi_skip

POLLS = 16
"""Polls between two looks at the notices of others."""


def looks_until_given_up(monkeypatch: pytest.MonkeyPatch, *, seconds: float, is_crowded: bool) -> int:
    """Looks of a wait that nothing ends, of which two are so many seconds apart, before it is given up after a failure."""
    clock, polls = count(0.0, seconds), count(1)
    monkeypatch.setattr(guards, "perf_counter", lambda: next(clock))
    control: Any = SimpleNamespace(notices=lambda run: [Notice(run, 1, is_blocked=False)])
    comm: Any = SimpleNamespace(Get_name=str, ranks=(0, 1), rank=0)
    guard = Guard(control, patience=10.0, is_crowded=is_crowded)
    with pytest.raises(Cancelled):
        guard.wait_until(lambda: next(polls) < 0, GuardedCall(comm, "Barrier"))
    assert isinstance(guard.cancelled_as, PeerFailed)
    return next(polls) // POLLS


def test_a_wait_goes_on_longer_where_ranks_wait_for_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [
        looks_until_given_up(monkeypatch, seconds=1e-3, is_crowded=is_crowded) for is_crowded in (False, True)
    ]
    assert looks[0] >= 10
    assert looks[1] >= 4 * looks[0]


def test_a_wait_that_has_no_processor_itself_looks_several_times_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert looks_until_given_up(monkeypatch, seconds=1.0, is_crowded=False) >= 5
