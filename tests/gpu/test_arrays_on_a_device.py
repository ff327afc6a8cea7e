"""Arrays of all memories behind one set of functions: what is known of them, their messages and sums, and copies between them."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

from adjointlab.core import arrays
from adjointlab.core.arguments import check_argument, check_arguments, check_out
from adjointlab.core.arrays import DTYPES, MEMORIES, MIXTURES, conversions, devices
from adjointlab.core.arrays.streams import streams_of
from adjointlab.core.arrays.transfers import start_transfer
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Tensor
from adjointlab.worlds.launch import is_launched

pytestmark = [
    pytest.mark.usefixtures("both"),
    pytest.mark.skipif(is_launched(), reason="what is tested needs no ranks"),
]

ON_DEVICE = ["cupy", "torch-cuda"]
ON_HOST = ["numpy", "torch"]
HAS_DEVICE: Any = devices._has_device.__wrapped__
"""The function itself, for which the stand-ins put their own."""
SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (3,), (2, 3), (2, 0)]


def values(shape: tuple[int, ...], name: str) -> Any:
    """Integers that every type represents, in the NumPy type that holds them."""
    drawn = np.random.default_rng(1).integers(-9, 10, (2, *shape))
    whole = drawn[0] + 1j * drawn[1] if DTYPES[name].is_complex else drawn[0]
    return np.asarray(whole).astype(DTYPES[name].in_numpy)


def names_of(*memories: str) -> list[str]:
    return [name for name in DTYPES if all(arrays.supports(memory, name) for memory in memories)]


def strided(memory: str, name: str) -> tuple[Any, Any]:
    """A transposed view with steps, and its values."""
    whole = values((4, 6), name)
    return arrays.from_numpy(whole, name, memory)[::2, 1::2].swapaxes(0, 1), whole[::2, 1::2].swapaxes(0, 1)


# What is known of an array


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_array_is_described_by_its_memory_and_place(memory: str) -> None:
    is_on_device = memory in ON_DEVICE
    array = arrays.from_numpy(values((2, 3), "complex64"), "complex64", memory)
    place = "device 0" if is_on_device else "the host"
    assert arrays.is_on_device(array) is is_on_device
    assert arrays.device_of(array) == (0 if is_on_device else None)
    assert (arrays.memory_of(array), arrays.place_name(array)) == (memory, place)
    assert arrays.library_of(array) == memory.removesuffix("-cuda")
    assert (arrays.dtype_name(array), arrays.dtype_of(array)) == ("complex64", DTYPES["complex64"])
    assert (arrays.itemsize_of(array), arrays.nbytes_of(array)) == (8, 48)
    assert (arrays.foreign_device(array), arrays.memory_and_place(array)) == ("", memory)
    assert arrays.matches(array, (2, 3), "complex64")
    assert arrays.matches_on_host(array, (2, 3), "complex64") is not is_on_device
    for shape, name in (((3, 2), "complex64"), ((2,), "complex64"), ((2, 3), "float32")):
        assert not arrays.matches(array, shape, name)
        assert not arrays.matches_on_host(array, shape, name)


@pytest.mark.parametrize("value", [None, 1.0, [1.0], "x"])
def test_what_is_no_array_lies_nowhere(value: object) -> None:
    assert not arrays.is_array(value)
    assert not arrays.is_on_device(value)
    assert arrays.device_of(value) is None
    assert arrays.place_name(value) == "the host"
    assert arrays.foreign_device(value) == ""
    assert not arrays.matches(value, (), "float64")
    assert not arrays.matches_on_host(value, (), "float64")


def test_an_array_of_another_device_than_the_current_one_says_so(both: Any) -> None:
    with both.cuda.Device(1):
        array = arrays.empty((2,), "float64", "cupy")
        assert arrays.foreign_device(array) == ""
    assert arrays.foreign_device(array) == "on device 1, but the current device is 0"
    assert arrays.memory_and_place(array) == "cupy on device 1, but the current device is 0"
    assert (arrays.device_of(array), arrays.place_name(array)) == (1, "device 1")


def test_buffers_are_kept_for_each_class_device_and_stream(both: Any) -> None:
    host = [np.zeros(1), np.zeros(2), torch.zeros(1)]
    assert [arrays.memory_kind(each) for each in host] == [np.ndarray, np.ndarray, torch.Tensor]
    on_device = [arrays.empty((1,), "float64", memory) for memory in ON_DEVICE]
    kinds = [arrays.memory_kind(each) for each in on_device]
    assert kinds == [(type(on_device[0]), 0, 0), (type(on_device[1]), 0, 0)]
    with both.cuda.Stream(non_blocking=True) as stream:
        assert arrays.memory_kind(on_device[0]) == (type(on_device[0]), 0, stream.ptr)
    with both.cuda.Device(1):
        assert arrays.memory_kind(arrays.empty((1,), "float64", "cupy")) == (type(on_device[0]), 1, 0)


def test_memories_are_installed_where_their_library_and_a_device_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(arrays.installed, (*MEMORIES, *MIXTURES)))
    assert not any(
        map(arrays.installed, ("no_such_library", "numpy+no_such_library", "no_such_library+numpy"))
    )
    monkeypatch.setattr(devices, "_has_device", lambda memory: memory == "torch-cuda")
    assert list(map(arrays.installed, (*MEMORIES, *MIXTURES))) == [True, True, False, True, False, True]


@pytest.mark.parametrize(("count", "has_device"), [(0, False), (1, True), (2, True), (None, False)])
def test_a_device_of_cupy_is_one_that_its_driver_counts(
    both: Any, count: int | None, has_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted() -> int:
        if count is None:
            raise RuntimeError("no driver")
        return count

    monkeypatch.undo()
    of_cupy, of_torch = (both.cuda.runtime, "getDeviceCount"), (torch.cuda, "is_available")
    for memory, own, other in (("cupy", of_cupy, of_torch), ("torch-cuda", of_torch, of_cupy)):
        monkeypatch.setattr(*own, counted)
        monkeypatch.setattr(*other, lambda: not has_device)
        assert HAS_DEVICE(memory) is has_device


@pytest.mark.parametrize(
    ("name", "by_rank"),
    [("cupy", ["cupy"] * 4), ("numpy+cupy", ["numpy", "cupy"] * 2), ("a+b+c", ["a", "b", "c", "a"])],
)
def test_ranks_have_the_memories_of_a_mixture_in_turn(name: str, by_rank: list[str]) -> None:
    assert [arrays.memory_on(name, rank) for rank in range(4)] == by_rank


@pytest.mark.parametrize("memory", MEMORIES)
def test_arguments_and_results_lie_together(memory: str) -> None:
    x, y = (Tensor(Layout((4,), (1,)), name=name) for name in "xy")
    one, other, out = (arrays.zeros((4,), "float64", memory) for _ in range(3))
    assert check_arguments((x, y), (one, other), 0) == ()
    check_out(x, out, (one, other), 0, ())


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ("torch", "torch-cuda", "y: lies on device 0 on rank 3, but x lies on the host"),
        ("torch-cuda", "torch", "y: lies on the host on rank 3, but x lies on device 0"),
        ("cupy", "torch-cuda", "y: a torch array on rank 3, but x is a cupy array"),
        ("cupy", "numpy", "y: a numpy array on rank 3, but x is a cupy array"),
        ("numpy", "cupy", "y: a cupy array on rank 3, but x is a numpy array"),
    ],
)
def test_arguments_that_lie_apart_are_refused_with_their_places(one: str, other: str, message: str) -> None:
    x, y = (Tensor(Layout((4,), Partition((1,), (3,))), name=name) for name in "xy")
    with pytest.raises(ValueError, match=rf"^{message}$"):
        check_arguments((x, y), (arrays.zeros((4,), "float64", one), arrays.zeros((4,), "float64", other)), 3)


def test_an_argument_of_another_device_is_refused_by_its_name(both: Any) -> None:
    tensor = Tensor(Layout((4,), (1,)), name="x")
    with both.cuda.Device(1):
        array = arrays.zeros((4,), "float64", "cupy")
    for name, told in (("", "x"), ("weights", "weights")):
        with pytest.raises(ValueError, match=r"^\w+: lies on rank 0 on device 1") as raised:
            check_argument(tensor, array, 0, name)
        assert str(raised.value) == (
            f"{told}: lies on rank 0 on device 1, but the current device is 0; move it there, or make that device the current one"
        )


# Messages and sums


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_message_is_row_major_memory_where_the_array_lies(memory: str) -> None:
    for name, shape in product(names_of(memory), SHAPES):
        expected = values(shape, name)
        array = arrays.from_numpy(expected, name, memory)
        moved, counted = arrays.message(array), arrays.elementwise(array)
        is_half = DTYPES[name].itemsize == 2
        moved_in = memory if memory in ON_DEVICE else "numpy"
        assert arrays.memory_of(moved) == arrays.memory_of(counted) == moved_in
        assert arrays.dtype_name(moved) == ("uint8" if is_half else name)
        assert arrays.dtype_name(counted) == ("int16" if is_half else name)
        assert prod(moved.shape) == expected.size * (2 if is_half else 1)
        assert prod(counted.shape) == expected.size
        assert is_half or tuple(moved.shape) == tuple(counted.shape) == shape
        if memory in ON_DEVICE:
            octets = arrays.octets(array)
            assert (arrays.memory_of(octets), arrays.dtype_name(octets)) == (memory, "uint8")
            assert tuple(octets.shape) == (arrays.nbytes_of(array),)
            addresses = {arrays.address_of(each) for each in (array, moved, counted, octets)}
            assert len(addresses) == 1 or not expected.size
        bits = arrays.octets_of_values(array)
        assert len(bits) == expected.size * DTYPES[name].itemsize
        assert name == "bfloat16" or bits == expected.astype(name).tobytes()


@pytest.mark.parametrize("memory", ON_DEVICE)
def test_a_message_of_a_strided_array_is_a_copy(memory: str) -> None:
    for name in names_of(memory):
        array, expected = strided(memory, name)
        moved = arrays.message(array)
        assert arrays.is_row_major(moved)
        assert arrays.address_of(moved) != arrays.address_of(array)
        assert name == "bfloat16" or arrays.octets_of_values(array) == expected.astype(name).tobytes()


@pytest.mark.parametrize("memory", MEMORIES)
def test_sums_are_received_in_wide_memory_beside_the_array(memory: str) -> None:
    summed_in = memory if memory in ON_DEVICE else "numpy"
    for name in names_of(memory):
        wide = "float32" if DTYPES[name].itemsize == 2 else name
        for array, expected in (
            strided(memory, name),
            *(
                (arrays.from_numpy(values(shape, name), name, memory), values(shape, name))
                for shape in SHAPES
            ),
        ):
            buffer = arrays.summable(array)
            assert (arrays.memory_of(buffer), arrays.dtype_name(buffer)) == (summed_in, wide)
            assert (tuple(buffer.shape), arrays.is_row_major(buffer)) == (expected.shape, True)
            assert np.array_equal(arrays.to_numpy(buffer), expected)
            before = arrays.summable_values(array)
            assert arrays.memory_of(before) == summed_in
            assert np.array_equal(arrays.to_numpy(before), expected)
            into = arrays.summing_memory(expected.shape, name, array)
            assert (arrays.memory_of(into), arrays.dtype_name(into)) == (summed_in, wide)
            assert tuple(into.shape) == expected.shape
            again = arrays.from_summable(buffer, name, array)
            assert (arrays.memory_of(again), arrays.dtype_name(again)) == (memory, name)
            assert np.array_equal(arrays.to_numpy(again), expected)


@pytest.mark.parametrize("memory", MEMORIES)
def test_memory_beside_an_array_has_types_that_the_lab_does_not_know(memory: str) -> None:
    like = arrays.zeros((2,), "float64", memory)
    made = arrays.empty_native(like, (3, 2), "uint8")
    assert (arrays.memory_of(made), arrays.dtype_name(made), tuple(made.shape)) == (memory, "uint8", (3, 2))


@pytest.mark.parametrize("memory", MEMORIES)
def test_new_arrays_lie_in_the_memory_that_is_named_or_of_the_array_that_is_given(memory: str) -> None:
    for name, shape in product(names_of(memory), SHAPES):
        expected = values(shape, name)
        made = arrays.from_numpy(expected, name, memory)
        for array in (
            made,
            arrays.copy(made),
            arrays.empty(shape, name, memory),
            arrays.zeros(shape, name, made),
        ):
            assert (arrays.memory_of(array), arrays.dtype_name(array)) == (memory, name)
            assert tuple(array.shape) == shape
            assert arrays.is_row_major(array)
            assert arrays.is_writable(array)
        assert np.array_equal(arrays.to_numpy(made), expected)
        assert np.array_equal(arrays.to_numpy(arrays.copy(made)), expected)
        assert not arrays.to_numpy(arrays.zeros(shape, name, memory)).any()


# Copies between memories


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize(("source", "target"), list(product(MEMORIES, MEMORIES)))
def test_every_memory_is_copied_to_every_other(source: str, target: str, pinned: bool) -> None:
    for name in {"float16", "bfloat16", "float32", "complex128"} & set(names_of(source, target)):
        for array, expected in (
            strided(source, name),
            *(
                (arrays.from_numpy(values(shape, name), name, source), values(shape, name))
                for shape in SHAPES
            ),
        ):
            copy, mark = start_transfer(array, target, pinned=pinned)
            assert (mark is not None) == (source in ON_DEVICE and target in ON_HOST)
            if mark is not None:
                mark.synchronize()
            assert (arrays.memory_of(copy), arrays.dtype_name(copy)) == (target, name)
            assert (tuple(copy.shape), arrays.is_row_major(copy)) == (expected.shape, True)
            assert np.array_equal(arrays.to_numpy(copy), expected)
            arrays.clear(array)
            assert np.array_equal(arrays.to_numpy(copy), expected), "the copy has memory of its own"


@pytest.mark.parametrize("memory", ON_DEVICE)
@pytest.mark.parametrize("pinned", [False, True])
def test_copies_go_through_pinned_memory_where_that_is_asked_for(
    memory: str, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = arrays.zeros((3,), "float32", memory)
    streams, made = streams_of(array), []
    take = streams.pinned
    monkeypatch.setattr(streams, "pinned", lambda nbytes: (made.append(nbytes), take(nbytes))[1])
    for host in ON_HOST:
        start_transfer(array, host, pinned=pinned)
        start_transfer(arrays.zeros((5,), "float32", host), memory, pinned=pinned)
    assert made == ([12, 20] * 2 if pinned else [])


def test_a_view_between_memories_of_devices_alone() -> None:
    for memory, held in ((memory, held) for memory in MEMORIES for held in MEMORIES):
        array = arrays.zeros((2,), "float64", held)
        if {memory, held} <= set(ON_DEVICE):
            assert arrays.memory_of(arrays.view_in(array, memory)) == memory
            continue
        with pytest.raises(ValueError, match=r"^memory: ") as raised:
            arrays.view_in(array, memory)
        assert str(raised.value) == (
            f"memory: a view goes from one of cupy, torch-cuda to another, not from {held} to {memory}; copy the array with "
            "adjointlab.primitives.transfer.Transfer"
        )


# Streams


def test_there_are_no_streams_of_the_host() -> None:
    for array in (np.zeros(1), torch.zeros(1)):
        with pytest.raises(
            TypeError, match="array: lies on the host, where there are no streams; pass an array on"
        ):
            streams_of(array)


@pytest.mark.parametrize("memory", ON_DEVICE)
@pytest.mark.parametrize("length", [0, 1, 3, 300])
@pytest.mark.parametrize("beside", [False, True])
def test_the_first_bytes_of_pinned_memory_go_to_the_device_and_back(
    memory: str, length: int, beside: bool
) -> None:
    array = arrays.from_numpy(np.arange(float(length)), "float64", memory)
    streams = streams_of(array)
    assert streams_of(array) is streams
    pinned = streams.pinned(8 * length + 5)
    assert (pinned.dtype, pinned.size) == (np.uint8, 8 * length + 5)
    assert streams.pinned(0).size == 0
    pinned[:] = 1
    mark = streams.to_host(array, pinned, streams.mark() if beside else None)
    mark.synchronize()
    assert streams.is_reached(mark)
    assert pinned[: 8 * length].view(np.float64).tolist() == list(range(length))
    assert pinned[8 * length :].tolist() == [1] * 5
    other = arrays.zeros((length,), "float64", memory)
    mark = streams.to_device(pinned, other, streams.mark() if beside else None)
    streams.wait(mark)
    assert arrays.to_numpy(other).tolist() == list(range(length))
    assert isinstance(streams.pointer(), int)


def test_memory_is_kept_until_its_mark_is_reached_and_no_longer(both: Any) -> None:
    array = arrays.from_numpy(np.arange(4.0), "float64", "cupy")
    streams: Any = streams_of(array)
    marks = []
    for number in range(3):
        with both.cuda.Stream(non_blocking=True):
            arrays.copy(array)
            marks.append(streams.mark())
        streams.keep_until(marks[-1], number)
    assert [kept for _, kept in streams._kept] == [0, 1, 2]
    marks[1].synchronize()
    streams.keep_until(streams.mark(), 3)
    assert [kept for _, kept in streams._kept] == [0, 2, 3]


def test_a_conversion_that_is_lazy_is_carried_out_before_bytes_are_taken() -> None:
    lazy = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert conversions.octets_of_values(lazy) == np.array([1 - 2j, 3 + 1j], np.complex64).tobytes()
    (view,) = arrays.in_numpy(lazy)
    assert view is lazy


def test_copies_of_torch_are_started_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    array = arrays.zeros((3,), "float64", "torch-cuda")
    asked: list[dict[str, Any]] = []

    def copied(target: torch.Tensor, source: torch.Tensor, **keywords: Any) -> torch.Tensor:
        asked.append(keywords)
        return torch.Tensor.copy_(target, source, **keywords)

    monkeypatch.setattr(type(array), "copy_", copied, raising=False)
    streams = streams_of(array)
    streams.to_device(streams.pinned(24), array, streams.mark())
    assert asked == [{"non_blocking": True}]
