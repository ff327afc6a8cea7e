"""A soak counts what a process holds by kinds, whatever these are called."""

from __future__ import annotations

import importlib

import pytest

import adjointlab as al
from adjointlab.worlds.simulated.communicator import CartesianCommunicator
from adjointlab.worlds.simulated.requests import SimulatedRequest
from benchmarks.__main__ import FOLDER


def test_communicators_with_a_topology_and_requests_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    held = importlib.import_module("soak").Held
    world = al.SimulatedWorld(2)

    before = held.now(world, 0)
    kept = [kind.__new__(kind) for kind in (CartesianCommunicator, SimulatedRequest)]
    after = held.now(world, 0)

    assert len(kept) == 2
    assert after.communicators == before.communicators + 1
    assert after.requests == before.requests + 1
    world.close()
