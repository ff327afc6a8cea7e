"""The stand-in for CuPy: it has CuPy's names, and goes wrong wherever an order is missing."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import numpy as np
import pytest

from adjointlab.core import arrays
from adjointlab.core.arrays.streams import streams_of
from adjointlab.worlds.launch import is_launched
from tests.gpu.stand_in.arrays import Memory, OutOfMemoryError, counts

pytestmark = pytest.mark.skipif(is_launched(), reason="what is tested needs no ranks")

VALUES = np.arange(6.0).reshape(2, 3)

# module, names
USED = {
    "cupy": "RawModule array asarray asnumpy concatenate empty from_dlpack get_default_memory_pool may_share_memory ndarray",
    "cupy.cuda": "Device Event Stream alloc_pinned_memory get_current_stream runtime",
    "cupy.cuda.Device": "id pci_bus_id __enter__ __exit__",
    "cupy.cuda.Event": "done record synchronize",
    "cupy.cuda.Stream": "done ptr record synchronize wait_event __enter__ __exit__",
    "cupy.cuda.runtime": "getDevice getDeviceCount memcpyAsync memcpyDeviceToHost memcpyHostToDevice",
    "cupy.ndarray": "T conj copy data device dtype fill flags get itemsize nbytes ndim ravel reshape shape size strides "
    "transpose view __array_ufunc__ __cuda_array_interface__",
    "cupy.RawModule": "get_function",
}


@pytest.mark.parametrize("owner", USED)
def test_what_the_stand_in_has_is_in_cupy_too(owner: str) -> None:
    cupy = pytest.importorskip("cupy", reason="needs CuPy (the extra gpu), which imports without a device")
    found: Any = cupy
    for name in owner.split(".")[1:]:
        found = getattr(found, name)
    if owner == "cupy.cuda.Stream":
        found = found(null=True)
    assert [name for name in USED[owner].split() if not hasattr(found, name)] == []


def test_calls_take_what_cupy_says_that_they_take() -> None:
    cupy = pytest.importorskip("cupy", reason="needs CuPy (the extra gpu), which imports without a device")
    nccl = importlib.import_module("cupy.cuda.nccl")
    documented = {
        cupy.cuda.runtime.memcpyAsync: "dst src size kind stream",
        cupy.cuda.Stream.__init__: "self null non_blocking ptds",
        cupy.cuda.Event.__init__: "self block disable_timing interprocess",
        nccl.NcclCommunicator.send: "self sendbuf count datatype peer stream",
        nccl.NcclCommunicator.recv: "self recvbuf count datatype peer stream",
        nccl.NcclCommunicator.bcast: "self buff count datatype root stream",
        nccl.NcclCommunicator.broadcast: "self sendbuff recvbuff count datatype root stream",
        nccl.NcclCommunicator.reduce: "self sendbuf recvbuf count datatype op root stream",
        nccl.NcclCommunicator.allReduce: "self sendbuf recvbuf count datatype op stream",
        nccl.NcclCommunicator.allGather: "self sendbuf recvbuf count datatype stream",
    }
    for function, names in documented.items():
        text = inspect.getdoc(function) or ""
        given = [part.split("=")[0].split()[-1] for part in re.findall(r"\((.*?)\)", text)[0].split(",")]
        assert given[: len(names.split())] == names.split() or given == names.split()[1:], text


def test_nothing_is_carried_out_until_it_is_waited_for(cupy: Any) -> None:
    array = cupy.array(VALUES)
    other = cupy.cuda.Stream(non_blocking=True)
    with other:
        assert not np.array_equal(array.get(), VALUES), "another stream has not waited for the copy"
    assert np.array_equal(array.get(), VALUES), "in its own stream all is in order"


def test_an_event_orders_two_streams(cupy: Any) -> None:
    array = cupy.array(VALUES)
    mark = cupy.cuda.get_current_stream().record()
    with cupy.cuda.Stream(non_blocking=True) as other:
        other.wait_event(mark)
        assert np.array_equal(array.get(), VALUES)


def test_the_host_cannot_look_into_device_memory(cupy: Any) -> None:
    array = cupy.array(VALUES)
    for access in (np.asarray, np.array, lambda each: np.zeros(6).reshape(2, 3) + each):
        with pytest.raises(TypeError):
            access(array)
    with pytest.raises(TypeError, match="numpy"):
        array[...] = VALUES


def test_a_copy_to_pinned_memory_is_there_when_its_mark_is_reached(cupy: Any) -> None:
    array = cupy.array(VALUES)
    streams = streams_of(array)
    pinned = streams.pinned(array.nbytes)
    mark = streams.to_host(array, pinned, streams.mark())
    assert not np.array_equal(pinned.view(np.float64), VALUES.ravel())
    mark.synchronize()
    assert np.array_equal(pinned.view(np.float64), VALUES.ravel())


def test_memory_that_was_given_back_holds_garbage_for_other_streams(cupy: Any) -> None:
    pinned = streams_of(cupy.array(VALUES)).pinned(VALUES.nbytes)

    def copied_without_owner() -> Any:
        array = cupy.array(VALUES)
        return streams_of(array).to_host(array, pinned, streams_of(array).mark())

    mark = copied_without_owner()
    cupy.cuda.get_current_stream().synchronize()
    mark.synchronize()
    assert not np.array_equal(pinned.view(np.float64), VALUES.ravel())


def test_the_whole_device_is_waited_for_by_nobody(cupy: Any) -> None:
    with pytest.raises(AssertionError, match="not an event"):
        cupy.cuda.Device().synchronize()


def test_memory_has_an_end(cupy: Any) -> None:
    Memory.limit = 1000
    with pytest.raises(OutOfMemoryError):
        cupy.empty(1000)


def test_copies_are_counted(cupy: Any) -> None:
    array = arrays.from_numpy(VALUES, "float64", "cupy")
    arrays.copy(array)
    assert (counts["to_device"], counts["to_host"]) == (1, 0)
    arrays.to_numpy(array)
    assert counts["to_host"] == 1
