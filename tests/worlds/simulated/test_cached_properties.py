"""Cached properties whose computation communicates, which every rank has to come to: also where Python locks them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest

import adjointlab as al
from adjointlab.worlds.watchdog import Watchdog

pytestmark = pytest.mark.mpi_skip


class Summing:
    """A communicator of its own, and the number of its ranks, each made when it is first asked for."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm

    @cached_property
    def own(self) -> Any:
        return self.comm.Dup()

    @cached_property
    def size(self) -> int:
        return int(self.own.allreduce(1))


@pytest.mark.parametrize("seed", range(4))
def test_a_cached_property_may_wait_for_the_other_ranks(seed: int) -> None:
    def body(context: Any, _: object) -> tuple[int, int]:
        summing = Summing(context.comm)
        sizes = summing.size, summing.size
        summing.own.Free()
        return sizes

    world = al.SimulatedWorld(3, watchdog=Watchdog(5))
    assert world.run(body, seed=seed).values == ((3, 3),) * 3


def test_a_property_that_is_made_in_a_run_is_an_ordinary_one_afterwards() -> None:
    made = al.SimulatedWorld(1).run(lambda context, _: type("Made", (), {"one": cached_property(len)})).values
    (kind,) = made
    kind.__len__ = lambda self: 1
    kind.one.__set_name__(kind, "one")
    assert kind().one == 1
    assert vars(cached_property).get("lock") is None
