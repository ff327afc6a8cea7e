"""An operator may have attributes of its own under names that the lab's base class has for methods that users call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.core.operator import AdjointProperty

pytestmark = pytest.mark.mpi_skip


class Product(al.LinearOperator):
    """A matrix, which it keeps as `matrix`, times the sum over the ranks."""

    def __init__(self, comm: Any, n: int) -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(
            al.Layout((n,), al.Partition((comm.Get_size(),)), axes=(None,))
        )
        self.matrix: Any = np.arange(n * n).reshape(n, n) % 3
        self.H: Any = 3

    def _sum(self, x: Any) -> Any:
        self.comm.Allreduce(np.ascontiguousarray(x), total := np.empty(x.shape))
        return total

    def forward(self, x: Any) -> Any:
        return self.H * self.matrix @ self._sum(x)

    def adjoint(self, y: Any) -> Any:
        return self.H * self._sum(self.matrix.T @ y)


def test_an_operator_that_calls_its_attributes_as_the_base_class_its_methods_is_judged() -> None:
    @al.subject.operator(Product)
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        return {"n": draw(al.strategies.shapes(1))[0]}

    verdicts = al.check_subject(drawn, cases=5, ranks=2)
    assert all(verdict.is_coherent for verdict in verdicts.values())
    assert "adjoint" in verdicts


def test_without_such_an_attribute_the_adjoint_operator_is_there() -> None:
    class Plain(Product):
        def __init__(self, comm: Any, n: int) -> None:
            super().__init__(comm, n)
            del self.H

    def body(context: Any, payload: None) -> tuple[bool, bool]:
        operator = Plain(context.comm, 2)
        return operator.H.H is operator, isinstance(type(operator).H, AdjointProperty)

    assert al.SimulatedWorld(1).run(body, None).values == ((True, True),)
