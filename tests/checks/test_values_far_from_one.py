"""Absolute tolerances of an operator show: `adjoint` draws values far from 1, as far as the element types allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.adjoint import ADJOINT
from adjointlab.engine.search import Budget, investigate

pytestmark = pytest.mark.mpi_skip

DTYPES = ("float64", "float32", "complex64", "float16", "int32")


class Tolerant(al.LinearOperator):
    """The identity of what lies between two magnitudes; zero and the limit elsewhere."""

    def __init__(
        self, comm: Any, dtype: str, least: float = 0.0, most: float = np.inf, *, both: bool = True
    ) -> None:
        self.comm, self.least, self.most, self.both = comm, least, most, both
        layout = al.Layout((3,), al.Partition((comm.Get_size(),)))
        self.domain = self.codomain = al.Space(layout, dtype=dtype)

    def forward(self, x: Any) -> Any:
        size = np.abs(x)
        return np.where(size < self.least, 0, np.where(size > self.most, self.most, x)).astype(x.dtype)

    def adjoint(self, y: Any) -> Any:
        return self.forward(y) if self.both else y.copy()


def result(dtypes: Any, seed: int = 1, **limits: Any) -> Any:
    @al.subject.operator(Tolerant, name="tolerant")
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(dtype=draw(al.strategies.dtypes(dtypes)), **limits)

    world = al.SimulatedWorld(2)
    try:
        return investigate(world, cases, ADJOINT.name, Budget(60, ranks=2, seed=seed))
    finally:
        world.close()


@pytest.mark.parametrize(
    "limits",
    [{"least": 1e-10}, {"most": 1e30}, {"least": 1e-10, "both": False}, {"most": 1e30, "both": False}],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of casts that overflow
def test_small_values_that_are_dropped_and_large_ones_that_are_cut_off_show(
    dtype: str, limits: dict[str, Any]
) -> None:
    assert result([dtype], **limits).verdict.kind == "adjoint is not the transpose of forward"


@pytest.mark.parametrize("seed", range(3))
def test_an_operator_without_a_tolerance_is_coherent_in_all_element_types(seed: int) -> None:
    assert result(DTYPES, seed).verdict.is_coherent
