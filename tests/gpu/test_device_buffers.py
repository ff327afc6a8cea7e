"""Buffers of a device are views of its memory, and say which of them have bytes in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core.arrays.conversions import from_numpy
from adjointlab.core.arrays.device_buffer import device_buffer


@pytest.mark.parametrize(
    ("one", "other", "do_overlap"),
    [
        ((0, 4), (4, 8), False),
        ((0, 5), (4, 8), True),
        ((2, 3), (0, 8), True),
        ((3, 3), (0, 8), False),
        ((0, 8), (0, 8), True),
    ],
)
def test_buffers_overlap_where_they_have_bytes_in_common(
    cupy: Any, one: tuple[int, int], other: tuple[int, int], do_overlap: bool
) -> None:
    whole: Any = device_buffer(from_numpy(np.arange(8.0), "float64", "cupy"))
    first, second = whole[slice(*one)], whole[slice(*other)]
    assert np.may_share_memory(first, second) == np.may_share_memory(second, first) == do_overlap
    apart = device_buffer(from_numpy(np.arange(8.0), "float64", "cupy"))
    assert not np.may_share_memory(whole, apart)
    assert not np.may_share_memory(whole, np.zeros(8))
