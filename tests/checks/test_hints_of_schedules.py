"""A fault that needs another order of ranks and messages than the simplest has a hint that says so, with the calls that were pending."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.told import hints_told
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class Shift(al.LinearOperator):
    """Moves each rank's number to the next rank; reads it before the wait, where it is early."""

    def __init__(self, comm: Any, early: bool, factor: int) -> None:
        self.comm, self.early, self.factor = comm, early, factor
        layout = al.Layout((comm.Get_size(),), al.Partition((comm.Get_size(),)))
        self.domain, self.codomain = al.Space(layout), al.Space(layout, name="y")

    def _moved(self, x: Any, step: int) -> Any:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        got = np.zeros(1)
        receive = self.comm.Irecv(got, (rank - step) % size, 0)
        self.comm.Send(np.ascontiguousarray(x), (rank + step) % size, 0)
        if self.early:
            self.comm.Barrier()
        early = got.copy()
        receive.Wait()
        return early if self.early else got

    def forward(self, x: Any) -> Any:
        return self._moved(x, 1) * self.factor

    def adjoint(self, y: Any) -> Any:
        return self._moved(y, -1)


class Hasty(Shift):
    """The same, but forward reads before another rank need have sent, so that it is wrong in every order of the ranks."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm, True, 1)

    def _moved(self, x: Any, step: int) -> Any:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        got = np.zeros(1)
        receive = self.comm.Irecv(got, (rank - step) % size, 0)
        early = got.copy()
        self.comm.Send(np.ascontiguousarray(x), (rank + step) % size, 0)
        receive.Wait()
        return early if step == 1 and size > 1 else got


class Asserting(Shift):
    """The same, but it raises where nothing has arrived before the wait."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm, True, 1)

    def _moved(self, x: Any, step: int) -> Any:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        got = np.full(1, np.nan)
        receive = self.comm.Irecv(got, (rank - step) % size, 0)
        self.comm.Send(np.ascontiguousarray(x), (rank + step) % size, 0)
        self.comm.Barrier()
        assert not np.isnan(got[0])
        receive.Wait()
        return got


class Arrived(al.LinearOperator):
    """Gathers a number of each rank on the first one: in the order in which they arrive, or of the ranks, times a factor."""

    def __init__(self, comm: Any, by_rank: bool, factor: int) -> None:
        self.comm, self.by_rank, self.factor, size = comm, by_rank, factor, comm.Get_size()
        self.domain = al.Space(al.Layout((size,), al.Partition((size,))))
        self.codomain = al.Space(al.Layout((size,), al.Partition((1,), [0])), name="y")

    def forward(self, x: Any) -> Any:
        size, status = self.comm.Get_size(), al.MPI.Status()
        if self.comm.Get_rank():
            self.comm.Send(np.ascontiguousarray(x), 0)
        result = np.concatenate([x, np.zeros(size - 1)])
        for number in range(1, size if self.comm.Get_rank() == 0 else 0):
            self.comm.Recv(part := np.empty(1), al.MPI.ANY_SOURCE, status=status)
            result[status.Get_source() if self.by_rank else number] = part[0]
        self.comm.Barrier()
        return self.factor * result if self.comm.Get_rank() == 0 else None

    def adjoint(self, y: Any) -> Any:
        self.comm.Scatter(np.ascontiguousarray(y) if y.size else None, got := np.empty(1))
        return got


def told(
    operator: type[al.LinearOperator] = Shift, *, check: str = "adjoint", **parameters: Any
) -> dict[FaultKind, str]:
    @al.subject.operator(operator, name="shift", reference=lambda x, **given: x)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return parameters

    found = investigate(al.SimulatedWorld(3), cases, check, Budget(40, ranks=3, seed=1))
    return {} if found.verdict.is_coherent else {hint.kind: hint.text for hint in hints_told(found.verdict)}


def test_what_is_read_before_a_wait_is_told_with_the_call() -> None:
    hints = told(early=True, factor=1)
    text = hints[FaultKind.SCHEDULE]
    assert text.startswith(
        "right where ranks run in turn and messages arrive at once, and wrong in another execution"
    )
    assert "used before the wait for Irecv(source=" in text
    assert "test_hints_of_schedules.py:" in text


def test_what_is_wrong_in_any_order_has_no_such_hint() -> None:
    assert FaultKind.SCHEDULE not in told(early=False, factor=2)
    assert told(early=False, factor=1) == {}


def test_what_is_read_too_early_in_any_order_is_told_where_it_is_not_a_number_in_some() -> None:
    text = told(Hasty)[FaultKind.SCHEDULE]
    assert text.startswith("finite, but wrong, where ranks run in turn and messages arrive at once: perhaps")
    assert "used before the wait for Irecv(source=" in text


@pytest.mark.parametrize("check", ["adjoint", "sequential"])
def test_results_that_differ_with_the_order_of_arrival_are_told_with_the_receive(check: str) -> None:
    text = told(Arrived, check=check, by_rank=False, factor=1)[FaultKind.SCHEDULE]
    assert text.startswith(
        "results differ between executions that MPI allows: perhaps because rank 0 in Recv(source=ANY_SOURCE"
    )


def test_what_is_wrong_whatever_arrives_first_has_no_such_hint() -> None:
    assert FaultKind.SCHEDULE not in told(Arrived, by_rank=True, factor=2)
    assert told(Arrived, by_rank=True, factor=1) == {}


def test_what_is_not_a_number_in_any_order_has_no_such_hint() -> None:
    assert FaultKind.SCHEDULE not in told(early=False, factor=float("nan"))


def test_an_exception_that_another_order_brings_is_told_with_the_call_that_was_not_waited_for() -> None:
    assert "used before the wait for Irecv(source=" in told(Asserting)[FaultKind.SCHEDULE]


def test_a_message_that_a_probe_of_any_source_takes_from_the_next_call_is_told_as_such() -> None:
    """All send to all, and take as many messages as there are ranks: of a fast rank two, the second of its next application."""

    class Gathered(al.LinearOperator):
        def __init__(self, comm: Any) -> None:
            self.comm, size = comm, comm.Get_size()
            self.domain = al.Space(al.Layout((size,), al.Partition((size,))))
            self.codomain = al.Space(al.Layout((size,), al.Partition((size,)), axes=(None,)), name="y")

        def forward(self, x: Any) -> Any:
            size, status, parts = self.comm.Get_size(), al.MPI.Status(), {}
            sends = [self.comm.Isend(np.ascontiguousarray(x), rank, 0) for rank in range(size)]
            for _ in range(size):
                self.comm.Probe(al.MPI.ANY_SOURCE, 0, status)
                source = status.Get_source()
                self.comm.Recv(part := np.empty(1), source, 0)
                parts[source] = part
            al.MPI.Request.Waitall(sends)
            return np.concatenate([parts[rank] for rank in range(size)])

        def adjoint(self, y: Any) -> Any:
            self.comm.Allreduce(np.ascontiguousarray(y), total := np.empty(y.shape))
            return total[self.comm.Get_rank() :][:1]

    @al.subject.operator(Gathered)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    found = investigate(al.SimulatedWorld(3), cases, "adjoint", Budget(40, ranks=3, seed=1)).verdict
    (text,) = [hint.text for hint in hints_told(found) if hint.kind is FaultKind.SCHEDULE]
    assert "perhaps because rank" in text
    assert ", in application 1 of the operator, what that sends in application " in text
    assert text.endswith("a barrier at the end of the operator keeps its applications apart")
