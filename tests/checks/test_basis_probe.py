"""Matrices of small integers are read off digits; others are not taken for what they are not."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.basis_probe import packed_matrix
from adjointlab.core.operator import apply_forward
from adjointlab.engine.adapters import FunctionPair
from adjointlab.typing import NumpyArray
from adjointlab.worlds.world import RankContext


class Applied:
    """A matrix whose rows two ranks share, with the number of its applications."""

    def __init__(self, matrix: NumpyArray, dtype: str) -> None:
        self.matrix, self.dtype, self.applications = matrix, dtype, 0
        self.last = np.zeros(0)  # the last argument

    def __call__(self, comm: object, x: NumpyArray) -> NumpyArray:
        self.applications += 1
        self.last = np.asarray(x)
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
        found = packed_matrix(operator, "numpy", precision, 1, partial(apply_forward, operator))
        needed = own.applications
        # What was read off is compared with one more application, to integers that hardly agree by accident.
        if needed and width >= 12:
            assert own.last.min() < 0 < own.last.max()
            assert (1000 if width >= 2000 else 2**9) < np.abs(own.last).max() <= 2**10
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


@pytest.mark.parametrize(
    # Of float64, 12 digits are read off a number, of float32 five; one more application shows whether they are right.
    ("dtype", "width", "needed"),
    [
        ("float64", 3, 2),
        ("float64", 12, 2),
        ("float64", 13, 3),
        ("float64", 24, 3),
        ("float64", 25, 4),
        ("int64", 24, 3),
        ("int64", 25, 4),
        ("float32", 5, 2),
        ("float32", 6, 3),
        ("float32", 20, 5),
        ("float32", 21, 6),
    ],
)
def test_a_number_holds_as_many_digits_as_its_significand(dtype: str, width: int, needed: int) -> None:
    rows = np.array([[7.0, -7.0] * width, [-7.0] * 2 * width, [7.0] * 2 * width, [0.0, 1.0] * width])
    found, applications, _ = packed(rows[:, :width], dtype)
    assert found is not None
    assert applications == needed


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
        comm, forward = SimpleNamespace(Get_rank=lambda: 0), None

    operator: Any = NeverApplied()
    operator.batched = batched
    operator.domain, operator.codomain = (
        al.Space(al.Layout((40,), al.Partition((1,))), dtype=dtype) for dtype in (domain, codomain)
    )
    assert packed_matrix(operator, "numpy", 53, 1, operator.forward) is None


def test_half_precision_and_small_operators_are_left_to_their_columns() -> None:
    assert packed(np.ones((2, 20)), "float16")[:2] == (None, 0)
    assert packed(np.ones((2, 2)))[:2] == (None, 0)
