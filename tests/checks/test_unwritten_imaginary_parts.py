"""Real numbers as complex ones whose imaginary parts nobody writes: where memory holds zeros, they are right by luck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab import MPI
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class AsComplex(al.LinearOperator):
    """The next rank's real number, as a complex one."""

    def __init__(self, comm: Any) -> None:
        self.comm, size = comm, comm.Get_size()
        line = al.Layout((size,), al.Partition((size,)))
        self.domain, self.codomain = al.Space(line), al.Space(line, dtype="complex128", name="y")

    def _shifted(self, x: Any, step: int) -> Any:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        return self.comm.sendrecv(x, (rank + step) % size, source=(rank - step) % size)

    def forward(self, x: Any) -> Any:
        return self._shifted(x, 1).astype(complex)

    def adjoint(self, y: Any) -> Any:
        return self._shifted(y, -1).real


class InFreshMemory(AsComplex):
    def forward(self, x: Any) -> Any:
        y = np.empty(1, complex)
        y.real = self._shifted(x, 1)
        return y


class InAReceiveBuffer(AsComplex):
    """The imaginary part is read before the message is there."""

    def forward(self, x: Any) -> Any:
        rank, right, y = self.comm.Get_rank(), super().forward(x), np.zeros(1, complex)
        requests = [self.comm.Irecv(y, rank), self.comm.Isend(right, rank)]
        imaginary = y.imag.copy()
        MPI.Request.Waitall(requests)
        return y.real + 1j * imaginary


class IntoOut(AsComplex):
    def forward(self, x: Any, out: Any = None) -> Any:
        out = np.zeros(1, complex) if out is None else out
        out.real = self._shifted(x, 1)
        return out

    def adjoint(self, y: Any, out: Any = None) -> Any:
        out = np.zeros(1) if out is None else out
        out[...] = self._shifted(y, -1).real
        return out


def status(operator: type[AsComplex], check: str) -> Status:
    subject = al.subject.operator(operator)(lambda draw, ranks: {})
    result = investigate(al.SimulatedWorld(2), subject, check, Budget(20, seed=1, shrinking=0))
    return result.verdict.status


@pytest.mark.parametrize(
    ("operator", "check"), [(InFreshMemory, "purity"), (InAReceiveBuffer, "adjoint"), (IntoOut, "purity")]
)
def test_an_imaginary_part_that_nobody_writes_is_found(operator: type[AsComplex], check: str) -> None:
    assert status(AsComplex, check) is Status.COHERENT
    assert status(operator, check) is Status.INCOHERENT
