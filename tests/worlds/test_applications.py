"""Calls of different applications of an operator do not match, even where all that is called is matched in the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.applications import ApplicationMarks, crossed_message
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.run import FindingKind, Run
from adjointlab.worlds.world import World


@pytest.fixture(scope="module")
def world() -> World:
    # Not closed: messages of a run that was ended may be on their way, and MPI gives a communicator's number to the next.
    return al.MPIWorld(patience=0.5) if is_launched() else al.SimulatedWorld(3)


def collective(comm: Any) -> None:
    comm.Allreduce(np.ones(2), np.empty(2))


def message(comm: Any) -> None:
    """To the next rank, and from the one before."""
    comm.Sendrecv(np.ones(2), (comm.rank + 1) % comm.size, 3, np.empty(2), (comm.rank - 1) % comm.size, 3)


def first_in_application(world: World, call: Any, number: Any) -> Run:
    """Three applications; each rank makes its first call in that of the `number` for its rank, and its second in the last."""

    def body(context: Any, _: object) -> None:
        for application in range(3):
            if application in (number(context.rank), 2):
                call(context.comm)
            context.comm.note_application()

    return world.run(body, ranks=2)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (collective, FindingKind.MISMATCHED_COLLECTIVE, "application 1 of the operator on one and in application 2 "),
        (message, FindingKind.MISMATCHED_MESSAGE, "sent in application 1 of the operator is received in application 2,"),
    ],
)  # fmt: skip
def test_what_matches_across_applications_is_found(world: World, call: Any, kind: str, text: str) -> None:
    assert first_in_application(world, call, lambda rank: 1).findings == ()
    findings = first_in_application(world, call, lambda rank: rank).findings
    assert {finding.kind for finding in findings} == {kind}
    assert any(text in finding.text for finding in findings)


def test_an_entry_of_a_log_is_of_the_applications_that_ended_before_it() -> None:
    marks = ApplicationMarks()
    for position, ended in ((0, 1), (0, 2), (3, 3), (3, 4), (4, 5)):
        marks.mark(position, ended)
    assert [marks.ended_before(position) for position in range(6)] == [2, 2, 2, 4, 5, 5]
    assert ApplicationMarks().ended_before(7) == 0


class Sum(al.LinearOperator):
    """The sum over all ranks, on all ranks."""

    def __init__(self, comm: Any, length: int) -> None:
        self.comm = comm
        layout = al.Layout((length,), (comm.Get_size(),), axes=(None,))
        self.domain, self.codomain = al.Space(layout), al.Space(layout, name="y")

    def forward(self, x: Any) -> Any:
        total = np.zeros_like(x)
        if self.takes_part(x):
            self.comm.Allreduce(np.ascontiguousarray(x), total)
        return total

    adjoint = forward

    def takes_part(self, x: Any) -> bool:
        return True


class SumOfWhatThereIs(Sum):
    """Skips the collective where there is nothing to add: the others wait, or take the next application's."""

    def takes_part(self, x: Any) -> bool:
        return bool(x.any())


def lengths(draw: Any, ranks: int) -> dict[str, Any]:
    return {"length": draw(st.integers(1, 3))}


sums = al.subject(Sum)(lengths)
sums_of_what_there_is = al.subject(SumOfWhatThereIs)(lengths)


def test_a_collective_that_hangs_on_the_values_of_a_rank_is_found(world: World) -> None:
    budget = Budget(20, seed=1)
    assert investigate(world, sums, "matrix", budget).verdict.is_coherent
    found = investigate(world, sums_of_what_there_is, "matrix", budget)
    assert found.verdict.kind == FindingKind.MISMATCHED_COLLECTIVE
    assert found.case is not None
    assert found.case.ranks == 2


def test_a_message_of_a_later_application_may_have_overtaken_another() -> None:
    assert crossed_message(1, 1) == crossed_message(None, 1) == ""
    assert crossed_message(0, 1).endswith("is received in application 2, which by itself would wait for ever")
    assert "is received in application 1: it overtakes another message" in crossed_message(1, 0)
