"""Absolute tolerances of an operator show: `adjoint` draws values far from 1, as far as the element types allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.adjoint import ADJOINT
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

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


def verdict_on(operator: Any, dtypes: Any, *, most_ranks: int = 2, seed: int = 1, **parameters: Any) -> Any:
    @al.subject.operator(operator, name="operator")
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(dtype=draw(al.strategies.dtypes(dtypes)), **parameters)

    budget = Budget(60, ranks=most_ranks, seed=seed)
    return investigate(al.SimulatedWorld(most_ranks), cases, ADJOINT.name, budget).verdict


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(
    ("dtype", "limits"),
    [
        ("float64", {"least": 1e-10}),
        ("float64", {"most": 1e30}),
        ("complex128", {"least": 1e-10}),
        ("complex128", {"most": 1e30}),
        ("float32", {"least": 1e-10}),
        ("float32", {"most": 1e16}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of casts that overflow
def test_small_values_that_are_dropped_and_large_ones_that_are_cut_off_show(
    dtype: str, limits: dict[str, Any], both: bool
) -> None:
    verdict = verdict_on(Tolerant, [dtype], both=both, **limits)
    assert verdict.kind == "adjoint is not the transpose of forward"
    (told,) = [text for label, text in verdict.lines if label == "values"]
    assert "is multiplied by 2**" in told


class ThirdsOf(Tolerant):
    """A third of what is large enough: its coefficients are no integers."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) / 3

    def adjoint(self, y: Any) -> Any:
        return y / 3


@pytest.mark.parametrize(("least", "is_coherent"), [(1e-10, False), (0.0, True)])
def test_in_double_precision_they_show_whatever_the_coefficients_are(least: float, is_coherent: bool) -> None:
    assert verdict_on(ThirdsOf, ["float64"], least=least).is_coherent is is_coherent


@pytest.mark.parametrize("seed", range(3))
def test_an_operator_without_a_tolerance_is_coherent_in_all_element_types(seed: int) -> None:
    assert verdict_on(Tolerant, DTYPES, seed=seed).is_coherent


class ByNorm(al.LinearOperator):
    """The identity, by way of a norm in the element type of the argument: squares have to be in its range."""

    def __init__(self, comm: Any, dtype: str, rounding: float | None) -> None:
        self.comm, self.rounding = comm, rounding
        layout = al.Layout((3,), al.Partition((comm.Get_size(),)))
        self.domain, self.codomain = al.Space(layout, dtype=dtype), al.Space(layout, dtype=dtype, name="y")

    def forward(self, x: Any) -> Any:
        norm = np.sqrt((x * x).sum(dtype=x.dtype))
        return x / norm * norm if norm else x.copy()

    adjoint = forward


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("error")
def test_squares_of_values_are_in_the_range_of_their_type(dtype: str, seed: int) -> None:
    assert verdict_on(ByNorm, [dtype], most_ranks=1, seed=seed, rounding=None).is_coherent


class Shortened(ByNorm):
    """Computes in single precision, which it declares."""

    def forward(self, x: Any) -> Any:
        return x.astype(np.float32).astype(x.dtype)

    adjoint = forward


@pytest.mark.filterwarnings("error")
def test_an_operator_that_declares_its_rounding_is_given_no_values_far_from_one() -> None:
    assert verdict_on(Shortened, ["float64"], most_ranks=1, rounding=2.0**-20).is_coherent
