"""The kernels that copy and add lists of boxes: their source, compiled for the host, against NumPy; and compiled by nvcc and NVRTC."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core.arrays import DTYPES, kernels
from adjointlab.core.arrays.kernels import MAX_BOXES, MAX_DIMS, OPTIONS, SOURCE, Strided, boxes_argument
from adjointlab.worlds.launch import is_launched
from tests.gpu import nvrtc
from tests.gpu.stand_in import host_kernels

pytestmark = pytest.mark.skipif(is_launched(), reason="what is tested needs no ranks")

compiled_for_the_host = pytest.mark.skipif(
    host_kernels.compiler() is None, reason="needs a C++ compiler on PATH (c++, g++ or clang++)"
)
KERNELS = {"copy", *(f"add_{name}" for name in DTYPES)}
NUMPY_TYPES = [name for name in DTYPES if name != "bfloat16"]
Array = np.ndarray[Any, Any]


def launch(kernel: str, pairs: Sequence[tuple[Array, Array]], source: str = SOURCE) -> None:
    """Run a kernel of the host on pairs of targets and sources, strided as they are."""
    boxes = [
        Strided(
            target.ctypes.data,
            given.ctypes.data,
            target.shape,
            target.strides,
            given.strides,
            target.itemsize,
        ).merged()
        for target, given in pairs
    ]
    argument, blocks = boxes_argument(boxes)
    host_kernels.RawModule(source).get_function(kernel)((blocks,), (kernels._THREADS,), (argument,))


def values(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    drawn = rng.integers(-99, 99, (2, *shape))
    return np.asarray((drawn[0] + 1j * drawn[1]) if name.startswith("complex") else drawn[0]).astype(name)


@st.composite
def strided(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Callable[[Array], Array]]:
    """A shape of memory, and a function that takes a view of the given shape of it: permuted, with steps, backwards."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 2, -1, -3))) for _ in shape]
    index = (..., *(slice(None, None, step) for step in steps))
    first = (..., *(slice(0, side) for side in shape))
    memory = tuple(3 * shape[order.index(dim)] for dim in range(len(shape)))
    return memory, lambda array: array.transpose(order)[index][first]


@compiled_for_the_host
@given(st.data())
@settings(max_examples=120, deadline=None)
def test_each_box_is_copied_or_added_and_nothing_else_is_touched(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NUMPY_TYPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    pairs: list[tuple[Array, Array]] = []
    whole: list[
        tuple[Array, Array, Array]
    ] = []  # the target's memory, a copy that NumPy works on, and its view
    for _ in range(data.draw(st.integers(1, 5))):
        shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 7, 33)), min_size=0, max_size=3)))
        (target_shape, target_view), (source_shape, source_view) = (
            data.draw(strided(shape)) for _ in range(2)
        )
        target, source = values(rng, target_shape, name), values(rng, source_shape, name)
        expected = target.copy()
        pairs.append((target_view(target), source_view(source)))
        whole.append((target, expected, target_view(expected)))
    is_copy = data.draw(st.booleans())
    launch("copy" if is_copy else f"add_{name}", pairs)
    for (_, source), (target, expected, view) in zip(pairs, whole, strict=True):
        if is_copy:
            view[...] = source
        else:
            view += source
        assert np.array_equal(target, expected)


@compiled_for_the_host
@pytest.mark.parametrize("size", [1, 255, 256, 257, 1023, 1024, 1025, 5000])
def test_the_last_block_of_a_box_ends_where_the_box_ends(size: int) -> None:
    source, target = np.arange(1.0, size + 1), np.zeros(size + 300)
    launch("copy", [(target[:size], source)])
    assert np.array_equal(target[:size], source)
    assert not target[size:].any()


@compiled_for_the_host
def test_a_source_with_a_stride_of_zero_is_copied_to_all() -> None:
    target = np.zeros((5, 3))
    launch("copy", [(target, np.broadcast_to(np.arange(3.0), (5, 3)))])
    assert np.array_equal(target, np.tile(np.arange(3.0), (5, 1)))


@compiled_for_the_host
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precisions_are_summed_in_single_and_rounded_to_even(name: str) -> None:
    """Every value of 16 bits, with itself and with others of all magnitudes, as torch sums them on the host."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    dtype = getattr(torch, name)
    one = bits.view(dtype)
    for shift in (0, 1, 0x0400, 0x3C00, 0x7FFF, 0x8001):
        other = torch.roll(bits, shift).view(dtype)
        expected = (one.float() + other.float()).to(dtype)
        target = one.clone().view(torch.int16).numpy()
        launch(f"add_{name}", [(target, other.view(torch.int16).numpy())])
        actual = torch.from_numpy(target).view(dtype)
        same_bits = actual.view(torch.int16) == expected.view(torch.int16)
        assert bool((same_bits | (actual.isnan() & expected.isnan())).all())


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_merged_and_widened_boxes_have_the_same_bytes(data: st.DataObject) -> None:
    itemsize = data.draw(st.sampled_from((1, 2, 4, 8, 16)))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), max_size=4)))
    array = np.zeros([4 * side for side in shape], f"V{itemsize}")
    steps = [slice(data.draw(st.integers(0, 2)), None, data.draw(st.sampled_from((1, 1, 2)))) for _ in shape]
    view = array[(..., *steps)][(..., *(slice(0, side) for side in shape))]
    sides = view.shape
    address = view.ctypes.data
    box = Strided(address, address, sides, view.strides, view.strides, itemsize).merged().widened()

    def octets(address: int, sides: Sequence[int], strides: Sequence[int], size: int) -> set[int]:
        firsts = [
            address + sum(i * stride for i, stride in zip(index, strides, strict=True))
            for index in np.ndindex(*sides)
        ]
        return {first + octet for first in firsts for octet in range(size)}

    assert octets(box.target, box.shape, box.target_strides, box.width) == octets(
        address, sides, view.strides, itemsize
    )
    assert box.target % box.width == 0


@pytest.mark.parametrize(
    ("targets", "sources"),
    [((32, 8), (8, 16)), ((8, 16), (32, 8)), ((32, 8), (24, 24)), ((32, 8), (32, -8)), ((8, 32), (8, 32))],
)
def test_boxes_are_widened_where_the_last_dimension_is_contiguous_on_both_sides(
    targets: tuple[int, ...], sources: tuple[int, ...]
) -> None:
    box = Strided(0x1000, 0x2000, (4, 4), targets, sources, 8)
    assert box.widened() == box
    assert Strided(0x1000, 0x2000, (4, 4), (32, 8), (64, 8), 8).widened().width == 16


def test_contiguous_faces_are_copied_by_16_bytes_at_a_time() -> None:
    face = np.zeros((8, 64), np.float32)[2:4]
    box = Strided(0x1000, 0x2000, face.shape, face.strides, face.strides, 4).merged()
    assert box.shape == (128,)
    assert box.widened().width == 16


@compiled_for_the_host
def test_boxes_of_one_launch_are_copied_in_words_of_different_widths() -> None:
    source, target = np.arange(40.0), np.zeros(40)
    places = (slice(0, 8), slice(8, 11), slice(12, 30, 3))  # in words of 16 bytes, of 8, and strided
    boxes = [
        Strided(a.ctypes.data, b.ctypes.data, a.shape, a.strides, b.strides, 8).merged().widened()
        for a, b in ((target[place], source[place]) for place in places)
    ]
    assert [box.width for box in boxes] == [16, 8, 8]
    argument, blocks = boxes_argument(boxes)
    host_kernels.RawModule().get_function("copy")((blocks,), (kernels._THREADS,), (argument,))
    expected = np.zeros(40)
    for place in places:
        expected[place] = source[place]
    assert np.array_equal(target, expected)


def test_the_structures_of_the_source_are_those_that_are_passed(tmp_path: Path) -> None:
    compiler = host_kernels.compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler on PATH (c++, g++ or clang++)")
    program = tmp_path / "sizes.cpp"
    program.write_text(
        host_kernels._BEFORE + SOURCE + "#include <cstdio>\n#include <cstddef>\n"
        'int main() { printf("%zu %zu %zu %zu %zu %d %d %d", sizeof(Boxes), sizeof(Box), offsetof(Box, size), '
        "offsetof(Box, first_block), offsetof(Box, width), MAX_BOXES, MAX_DIMS, PER_THREAD); }"
    )
    subprocess.run([compiler, "-std=c++17", "-o", tmp_path / "sizes", program], check=True, timeout=100)
    printed = subprocess.run(
        [tmp_path / "sizes"], check=True, capture_output=True, text=True, timeout=100
    ).stdout
    box: Any = kernels._BOX
    offsets = [box.fields[name][1] for name in ("size", "first_block", "width")]
    expected = [kernels._BOXES.itemsize, box.itemsize, *offsets, MAX_BOXES, MAX_DIMS, kernels._PER_THREAD]
    assert list(map(int, printed.split())) == expected
    assert kernels._BOXES.itemsize <= 4096, "kernels take 4 KiB of arguments"


def test_there_is_a_kernel_for_every_element_type() -> None:
    assert set(re.findall(r"^KERNEL\((\w+),", SOURCE, re.MULTILINE)) == KERNELS


def test_nvcc_compiles_the_source(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc on PATH")
    source, cubin = tmp_path / "boxes.cu", tmp_path / "boxes.cubin"
    source.write_text(SOURCE)
    command = [nvcc, *OPTIONS, "-arch=sm_90", "-cubin", "-Werror", "all-warnings", "-o", cubin, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert functions_of(cubin.read_bytes()) == KERNELS


def test_nvrtc_compiles_the_source_for_the_oldest_and_the_newest_devices() -> None:
    """As CuPy compiles it at first use: with no file beside it, and with the options of the lab."""
    path = nvrtc.found()
    if path is None:
        pytest.skip("needs NVRTC: CUDA's toolkit, or the wheel nvidia-cuda-nvrtc")
    compiler = nvrtc.Compiler(path)
    oldest, *_, newest = compiler.architectures()
    for architecture in (oldest, newest):
        cubin = compiler.compiled(SOURCE, (*OPTIONS, f"-arch=sm_{architecture}"))
        assert functions_of(cubin) == KERNELS
    with pytest.raises(AssertionError, match="error"):
        compiler.compiled(SOURCE.replace("box.dims", "box.sides"), (*OPTIONS, f"-arch=sm_{newest}"))


def functions_of(cubin: bytes) -> set[str]:
    """The kernels in machine code: each has a section of its own."""
    return {name.decode() for name in re.findall(rb"\.text\.(\w+)\0", cubin)}


OFF_BY_ONE = SOURCE.replace("element < box.size; ++turn", "element < box.size - 1; ++turn")
CONTIGUOUS = SOURCE.replace(
    "(long long)index * box.source_strides[dim]", "(long long)index * sizeof(Element)"
)


@compiled_for_the_host
@pytest.mark.parametrize("source", [OFF_BY_ONE, CONTIGUOUS], ids=["off by one", "as if contiguous"])
def test_planted_bugs_of_the_source_give_other_results(source: str) -> None:
    assert source != SOURCE
    given = np.arange(30.0).reshape(5, 6)[::2, ::2]
    right, wrong = np.zeros((3, 3)), np.zeros((3, 3))
    launch("copy", [(right, given)])
    launch("copy", [(wrong, given)], source)
    assert np.array_equal(right, given)
    assert not np.array_equal(wrong, given)
