"""A torch built with CUDA, on a machine without a device: what it makes in a thread must not go with the thread of a rank."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from adjointlab.worlds.simulated import device_guards
from adjointlab.worlds.simulated.world import SimulatedWorld


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The threads in which torch has been asked for its replacement; it counts as built with CUDA."""
    asked: list[int] = []
    monkeypatch.setattr(torch._C, "_ensureCUDADeviceGuardSet", lambda: asked.append(threading.get_ident()))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    device_guards._hold.cache_clear()
    yield asked
    device_guards._hold.cache_clear()


def run(world: SimulatedWorld) -> None:
    assert world.run(lambda context, _: None).completed


def test_guards_of_absent_devices_are_replaced_once_in_the_thread_that_starts_the_ranks(
    threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    world = SimulatedWorld(2)
    run(world)
    run(world)
    world.close()
    assert threads == [threading.get_ident()]


def test_guards_of_devices_that_are_there_stay(threads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    world = SimulatedWorld(2)
    run(world)
    world.close()
    assert threads == []


def test_fake_tensors_of_one_world_do_no_harm_to_those_of_the_next() -> None:
    def enter() -> None:
        from torch._subclasses import FakeTensorMode

        with FakeTensorMode():
            torch.ones(2)

    for _ in range(3):
        world = SimulatedWorld(2)
        assert world.run(lambda context, _: enter()).completed
        world.close()
    enter()
