"""A run knows which ranks have communicated: those on which user code has sent, received, or joined a collective."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.worlds.simulated.world import SimulatedWorld


def exchange(comm: Any) -> None:
    if comm.rank == 0:
        comm.Send(np.ones(1), 2)
    if comm.rank == 2:
        comm.Recv(np.ones(1), 0)


def objects(comm: Any) -> None:
    if comm.rank < 2:
        comm.sendrecv("x", 1 - comm.rank)


def in_a_thread(comm: Any) -> None:
    """No line of user code calls the method that the thread is given."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(comm.allreduce, 1).result()


class Silent(al.LinearOperator):
    """Sends nothing itself."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(al.Layout((3,), (3,)))

    def forward(self, x: Any) -> Any:
        return np.array(x)

    adjoint = forward


BODIES: dict[str, tuple[Callable[[Any], object], set[int]]] = {
    "nothing": (lambda comm: None, set()),
    "asking for the size": (lambda comm: comm.size, set()),
    "a barrier": (lambda comm: comm.Barrier(), {0, 1, 2}),
    "a sum of objects": (lambda comm: comm.allreduce(1), {0, 1, 2}),
    "one message": (exchange, {0, 2}),
    "objects": (objects, {0, 1}),
    "a sum in a thread": (in_a_thread, {0, 1, 2}),
    "a request": (lambda comm: comm.Ibarrier().Wait(), {0, 1, 2}),
}


@pytest.mark.parametrize("name", BODIES)
def test_the_ranks_that_have_communicated(name: str) -> None:
    act, ranks = BODIES[name]
    run = SimulatedWorld(3).run(lambda context, _: act(context.comm), None, 3)
    assert run.completed
    assert run.communicating == ranks


def test_collectives_of_the_lab_itself_do_not_count() -> None:
    @al.subject(Silent)
    def silent(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    # Its gain is read off its matrix, which ranks put together.
    case = Case("Silent", "adjoint", 3, {}, InputSetting(), 0)
    run = SimulatedWorld(3).run(body(silent), case, 3)
    assert run.completed
    assert run.communicating == set()
