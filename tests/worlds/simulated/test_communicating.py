"""A run knows which ranks have communicated: those on which user code has sent, received, or joined a collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab.worlds.simulated.world import SimulatedWorld


def exchange(comm: Any) -> None:
    if comm.rank == 0:
        comm.Send(np.ones(1), 2)
    if comm.rank == 2:
        comm.Recv(np.ones(1), 0)


def objects(comm: Any) -> None:
    if comm.rank < 2:
        comm.sendrecv("x", 1 - comm.rank)


BODIES: dict[str, tuple[Callable[[Any], object], set[int]]] = {
    "nothing": (lambda comm: None, set()),
    "asking for the size": (lambda comm: comm.size, set()),
    "a barrier": (lambda comm: comm.Barrier(), {0, 1, 2}),
    "a sum of objects": (lambda comm: comm.allreduce(1), {0, 1, 2}),
    "one message": (exchange, {0, 2}),
    "objects": (objects, {0, 1}),
    "a request": (lambda comm: comm.Ibarrier().Wait(), {0, 1, 2}),
}


@pytest.mark.parametrize("name", BODIES)
def test_the_ranks_that_have_communicated(name: str) -> None:
    body, ranks = BODIES[name]
    run = SimulatedWorld(3).run(lambda context, _: body(context.comm), None, 3)
    assert run.completed
    assert run.communicating == ranks
