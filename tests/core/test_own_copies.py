"""Copies of arrays share memory with each other as the originals do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adjointlab.core.arrays.own_copies import ArrayCopies


def test_a_copy_has_the_values_and_not_the_memory() -> None:
    original = np.arange(6.0).reshape(2, 3)
    own = ArrayCopies().of(original)
    assert np.array_equal(own, original)
    own[0, 0] = 7
    assert original[0, 0] == 0


@pytest.mark.parametrize("order", ["C", "F"])
def test_views_of_one_array_are_views_of_its_copy(order: str) -> None:
    original = np.array(np.arange(6.0).reshape(2, 3), order=order)
    copies = ArrayCopies()
    whole, column, backwards = (copies.of(each) for each in (original, original[:, 1], original[::-1, ::2]))
    assert np.array_equal(column, original[:, 1])
    assert np.array_equal(backwards, original[::-1, ::2])
    whole[:] = [[10, 11, 12], [13, 14, 15]]
    assert column.tolist() == [11, 14]
    assert backwards.tolist() == [[13, 15], [10, 12]]
    assert original.max() == 5


def test_tensors_that_share_a_storage_share_one_in_the_copies() -> None:
    original = torch.arange(4.0)
    copies = ArrayCopies()
    whole, part = copies.of(original), copies.of(original[1:3])
    whole += 10
    assert part.tolist() == [11, 12]
    assert original.tolist() == [0, 1, 2, 3]


def test_what_is_no_array_that_code_writes_into_is_not_copied() -> None:
    constant = np.arange(3.0)
    constant.flags.writeable = False
    objects = np.array([None], dtype=object)
    leaf = torch.zeros(2, requires_grad=True)
    assert [ArrayCopies().of(each) for each in (constant, objects, leaf, [1], "a", None)] == [None] * 6


def test_one_array_has_one_copy() -> None:
    original, copies = np.zeros(2), ArrayCopies()
    one, other = copies.of(original), copies.of(original)
    one[0] = 3
    assert other[0] == 3
