"""Buffers of a device are views of its memory, and say which of them have bytes in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core import arrays
from adjointlab.core.arrays.conversions import from_numpy
from adjointlab.core.arrays.device_buffer import DeviceBuffer, device_buffer
from adjointlab.core.arrays.streams import streams_of
from tests.gpu.stand_in.streams import get_current_stream


@pytest.mark.parametrize(
    ("one", "other", "do_overlap"),
    [
        ((0, 4), (4, 8), False),
        ((0, 5), (4, 8), True),
        ((2, 3), (0, 8), True),
        ((3, 3), (0, 8), False),
        ((3, 6), (5, 8), True),
        ((3, 5), (5, 8), False),
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


# What a world asks of a buffer, on CuPy's memory and on torch's

MEMORIES = ["cupy", "torch-cuda"]


def placed(memory: str, values: Any, name: str = "float64") -> Any:
    """An array on a device, complete: who hands a world its memory has waited for the work that writes it."""
    array = from_numpy(np.asarray(values, name), name, memory)
    streams_of(array).mark().synchronize()
    return array


def made(memory: str, values: Any, name: str = "float64") -> Any:
    return device_buffer(placed(memory, values, name))


def read(buffer: Any) -> list[Any]:
    values: list[Any] = np.asarray(buffer).tolist()
    return values


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(
    ("name", "dtype", "size", "nbytes"),
    [
        ("float64", "float64", 6, 48),
        ("float32", "float32", 6, 24),
        ("complex128", "complex128", 6, 96),
        ("int32", "int32", 6, 24),
        ("float16", "uint8", 12, 12),
    ],
)
def test_a_buffer_has_the_elements_of_its_array_in_a_row(
    memory: str, name: str, dtype: str, size: int, nbytes: int
) -> None:
    array = placed(memory, np.arange(6).reshape(2, 3), name)
    buffer = device_buffer(array)
    assert (buffer.dtype, buffer.size, len(buffer), buffer.nbytes) == (np.dtype(dtype), size, size, nbytes)
    assert (buffer.address, buffer.native.ndim) == (arrays.address_of(array), 1)
    assert buffer.tobytes() == np.arange(6).astype(name).tobytes()
    part: Any = buffer[2:5]
    assert (part.size, part.address) == (3, buffer.address + 2 * buffer.dtype.itemsize)
    octets = buffer.view(np.uint8)
    assert (octets.dtype, octets.size, octets.address) == (np.dtype("uint8"), nbytes, buffer.address)
    assert octets.tobytes() == buffer.tobytes()


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("memory", MEMORIES)
def test_memory_that_is_not_in_a_row_is_no_buffer(memory: str) -> None:
    whole = placed(memory, np.arange(12.0).reshape(3, 4))
    for view in (whole[:, ::2], whole[:, 1:3], whole.swapaxes(0, 1)):
        with pytest.raises(BufferError, match=r"^buffer is not contiguous$"):
            device_buffer(view)
    assert read(device_buffer(whole[1:])) == list(range(4, 12))
    assert read(device_buffer(whole[1, 2])) == [6]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_buffer_is_assigned_from_the_device_the_host_and_a_number(memory: str) -> None:
    buffer = made(memory, range(6))
    buffer[1:3] = made(memory, [10, 20])
    buffer[3:5] = np.array([30.0, 40.0])
    buffer[5:] = 50
    assert read(buffer) == [0, 10, 20, 30, 40, 50]
    copy = buffer.copy()
    buffer[:] = 7
    assert read(copy) == [0, 10, 20, 30, 40, 50]
    assert read(buffer) == [7] * 6
    assert copy.address != buffer.address


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("memory", MEMORIES)
def test_functions_of_numpy_are_computed_on_the_device(memory: str) -> None:
    one, other = made(memory, [1, 5, 3]), made(memory, [4, 2, 6])
    host = np.array([4.0, 2.0, 6.0])
    for function, expected in ((np.add, [5, 7, 9]), (np.multiply, [4, 10, 18]), (np.maximum, [4, 5, 6])):
        for second in (other, host):
            result = function(one, second)
            assert isinstance(result, DeviceBuffer)
            assert read(result) == expected
        into = made(memory, [0, 0, 0])
        assert function(one, other, out=into) is into
        assert read(into) == expected
    assert read(one) == [1, 5, 3]
    joined = np.concatenate([made(memory, [1]), np.array([2.0, 3.0]), one])
    assert isinstance(joined, DeviceBuffer)
    assert read(joined) == [1, 2, 3, 1, 5, 3]
    assert read(np.concatenate([host, one], 0)) == [4, 2, 6, 1, 5, 3]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("memory", MEMORIES)
def test_what_a_device_does_not_compute_is_refused_by_name(memory: str) -> None:
    buffer = made(memory, [1, 2])
    for call, name in ((lambda: np.add.reduce(buffer), "add"), (lambda: np.spacing(buffer), "spacing")):
        with pytest.raises(NotImplementedError, match=f"^{name} of memory of a device$"):
            call()
    with pytest.raises(TypeError):
        np.tile(buffer, 2)


@pytest.mark.usefixtures("both")
def test_work_on_a_buffer_is_complete_when_it_returns_and_is_done_in_no_stream_of_the_user() -> None:
    array = placed("cupy", range(3))
    queued = len(get_current_stream().queue)
    buffer: Any = device_buffer(array)
    buffer[:1] = 9
    assert array._hidden.tolist() == [9, 1, 2]
    assert len(get_current_stream().queue) == queued
