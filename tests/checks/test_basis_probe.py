"""Matrices of small integers are read off digits; others are not taken for what they are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.basis_probe import packed_matrix
from adjointlab.engine.adapters import FunctionPair
from adjointlab.typing import NumpyArray
from adjointlab.worlds.world import RankContext


class Applied:
    """A matrix whose rows two ranks share, with the number of its applications."""

    def __init__(self, matrix: NumpyArray, dtype: str) -> None:
        self.matrix, self.dtype, self.applications = matrix, dtype, 0
        self.largest = 0.0  # of the last argument

    def __call__(self, comm: object, x: NumpyArray) -> NumpyArray:
        self.applications += 1
        self.largest = float(np.abs(x).max())
        return (self.matrix @ x).astype(self.dtype)


def packed(matrix: NumpyArray, dtype: str = "float64") -> tuple[NumpyArray | None, int, int]:
    """The matrix that is read off on two ranks, and the applications of that and of a matrix column by column."""
    height, width = matrix.shape

    def body(context: RankContext, payload: None) -> tuple[NumpyArray | None, int, int]:
        own = Applied(matrix[context.rank * height // 2 : (context.rank + 1) * height // 2], dtype)
        copies = al.Layout((width,), al.Partition((2,)), axes=(None,))
        domain = al.Space(copies, dtype=dtype, types=("invariant",))
        codomain = al.Space(al.Layout((height,), al.Partition((2,))), dtype=dtype)
        operator = FunctionPair(context.comm, own, own, domain, codomain, {})
        precision = domain.tensors[0].element.precision
        found = packed_matrix(operator, "numpy", precision, seed=1)
        needed = own.applications
        # What was read off is held against one more application, to integers that hardly agree by accident.
        assert not needed or 2**8 < own.largest <= 2**10
        assert width < 2000 or own.largest > 1000
        assert found is None or np.array_equal(found, operator.matrix())
        return found, needed, own.applications - needed

    world = al.SimulatedWorld(2)
    run = world.run(body, None, 2)
    world.close()
    assert run.completed, run
    return run.values[0]


@pytest.mark.parametrize(("dtype", "least"), [("float64", 6), ("float32", 3), ("int64", 6)])
def test_small_integers_are_read_off_with_less_work(dtype: str, least: int) -> None:
    matrix = np.random.default_rng(0).integers(-7, 8, (6, 40))
    found, needed, one_by_one = packed(matrix, dtype)
    assert found is not None
    assert one_by_one >= least * needed


def test_what_is_read_off_is_held_against_integers_up_to_1024() -> None:
    # As `packed` says; among so many some are nearly as large.
    found, _, one_by_one = packed(np.ones((2, 2000), dtype=int))
    assert found is not None
    assert one_by_one == 2000


@pytest.mark.parametrize("entry", [1 / 3, 0.5, 8.0, -9.0, 1e6, np.nan, np.inf])
def test_other_entries_are_not(entry: float) -> None:
    matrix = np.random.default_rng(0).integers(-7, 8, (6, 20)).astype(float)
    matrix[3, 5] = entry
    assert packed(matrix)[0] is None


@pytest.mark.parametrize(
    ("batched", "domain", "codomain"),
    [
        (True, "float64", "float64"),
        (False, "complex128", "float64"),
        (False, "float64", "complex128"),
        (True, "complex128", "complex128"),
    ],
)
def test_batched_and_complex_operators_are_left_to_their_columns(
    batched: bool, domain: str, codomain: str
) -> None:
    class NeverApplied:
        comm = SimpleNamespace(Get_rank=lambda: 0)

    operator: Any = NeverApplied()
    operator.batched = batched
    operator.domain, operator.codomain = (
        al.Space(al.Layout((40,), al.Partition((1,))), dtype=dtype) for dtype in (domain, codomain)
    )
    assert packed_matrix(operator, "numpy", 53, seed=1) is None


def test_half_precision_and_small_operators_are_left_to_their_columns() -> None:
    assert packed(np.ones((2, 20)), "float16")[:2] == (None, 0)
    assert packed(np.ones((2, 2)))[:2] == (None, 0)
