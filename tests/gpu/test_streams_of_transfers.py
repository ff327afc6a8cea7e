"""Copies from a device to page-locked memory run beside the current stream; others run in it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from adjointlab.core import arrays
from adjointlab.core.arrays.streams import streams_of
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


def test_memory_of_a_copy_that_nobody_holds_is_kept_until_it_is_complete(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned memory that is given back while the device still writes to it would be given out again."""
    array = arrays.from_numpy(np.arange(4.0), "float64", "cupy")
    streams = streams_of(array)
    made: list[weakref.ref[Any]] = []

    class Pinned(np.ndarray[Any, Any]):
        """An array that weak references go to."""

    def pinned(nbytes: int) -> Any:
        memory = np.zeros(nbytes, np.uint8).view(Pinned)
        made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(streams, "pinned", pinned)
    copy, mark = start_transfer(array, "numpy", pinned=True)
    del copy
    gc.collect()
    assert made[0]() is not None
    assert mark is not None
    mark.synchronize()
