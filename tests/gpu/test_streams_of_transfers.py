"""Copies from a device to page-locked memory run beside the current stream; others run in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core import arrays
from adjointlab.core.arrays.transfers import start_transfer
from tests.gpu.stand_in.streams import get_current_stream


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_to_page_locked_memory_does_not_hold_up_the_current_stream(cupy: Any, pinned: bool) -> None:
    array = arrays.from_numpy(np.arange(4.0), "float64", "cupy")
    current = get_current_stream()
    before = len(current.queue)
    copy, mark = start_transfer(array, "numpy", pinned=pinned)

    assert (len(current.queue) == before) is pinned
    assert mark is not None
    mark.synchronize()
    assert np.array_equal(np.asarray(copy), np.arange(4.0))
