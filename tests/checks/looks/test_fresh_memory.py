"""Every function that allocates memory without writing into it, and the fills that a check gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab.checks.fresh_memory import FILLS, controlled, filled

torch = pytest.importorskip("torch")

ALLOCATIONS: dict[str, Callable[[], Any]] = {
    "np.empty": lambda: np.empty(3),
    "np.empty_like": lambda: np.empty_like(np.zeros(3)),
    "torch.empty": lambda: torch.empty(3),
    "torch.empty_like": lambda: torch.empty_like(torch.zeros(3)),
    "torch.empty_strided": lambda: torch.empty_strided((3,), (1,)),
    "Tensor.new_empty": lambda: torch.zeros(3).new_empty((3,)),
}
OF_COMPLEX_NUMBERS: dict[str, Callable[[], Any]] = {
    "np.empty": lambda: np.empty(3, np.complex64),
    "torch.empty": lambda: torch.empty(3, dtype=torch.complex128),
}
OF_INTEGERS: dict[str, Callable[[], Any]] = {
    "np.empty": lambda: np.empty(3, np.int32),
    "np.empty, unsigned": lambda: np.empty(3, np.uint8),
    "torch.empty": lambda: torch.empty(3, dtype=torch.int64),
}


@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS)
@pytest.mark.parametrize("fill", FILLS)
def test_fresh_memory_holds_what_the_check_wants(allocate: Callable[[], Any], fill: float) -> None:
    with controlled(), filled(fill):
        assert np.array_equal(np.asarray(allocate()), np.full(3, fill), equal_nan=True)


@pytest.mark.parametrize("allocate", OF_COMPLEX_NUMBERS.values(), ids=OF_COMPLEX_NUMBERS)
@pytest.mark.parametrize("fill", FILLS)
def test_both_parts_of_complex_numbers_in_fresh_memory_are_filled(
    allocate: Callable[[], Any], fill: float
) -> None:
    with controlled(), filled(fill):
        array = np.asarray(allocate())
    assert np.array_equal(array.real, np.full(3, fill), equal_nan=True)
    assert np.array_equal(array.imag, np.full(3, fill), equal_nan=True)


@pytest.mark.parametrize("allocate", OF_INTEGERS.values(), ids=OF_INTEGERS)
def test_fresh_memory_of_integers_holds_two_numbers(allocate: Callable[[], Any]) -> None:
    with controlled():
        for fill, value in zip(FILLS, (113, 77), strict=True):
            with filled(fill):
                assert np.asarray(allocate()).tolist() == [value] * 3


@pytest.mark.parametrize(
    "allocate", [lambda: np.empty(3, bool), lambda: torch.empty(3, dtype=torch.bool)], ids=["NumPy", "torch"]
)
def test_fresh_memory_of_truth_values_holds_both(allocate: Callable[[], Any]) -> None:
    with controlled():
        for fill, value in zip(FILLS, (True, False), strict=True):
            with filled(fill):
                assert np.asarray(allocate()).tolist() == [value] * 3
