"""CuPy and torch on one device: what one has made the other one sees without a copy, and CuPy's kernels pack tensors of torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.core.arrays import kernels
from adjointlab.core.arrays.transfers import start_transfer
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.subjects import installed
from adjointlab.primitives.transfer import Transfer
from tests.gpu.device_cases import judged, judged_subject
from tests.gpu.stand_in.arrays import counts
from tests.gpu.stand_in.torch_device import copies

LIBRARIES = [("cupy", "torch-cuda"), ("torch-cuda", "cupy")]


pytestmark = pytest.mark.usefixtures("both")


# Memory of the other library


@pytest.mark.parametrize(("made_by", "seen_by"), LIBRARIES)
@pytest.mark.parametrize("name", ["float16", "float32", "complex64", "int64"])
def test_a_view_in_the_other_library_is_the_same_memory(made_by: str, seen_by: str, name: str) -> None:
    array = arrays.from_numpy(np.arange(6).reshape(2, 3).astype(name), name, made_by)
    counts.clear()
    copies.clear()
    view = arrays.view_in(array, seen_by)
    assert (arrays.memory_of(view), arrays.address_of(view)) == (seen_by, arrays.address_of(array))
    arrays.clear(view[:, 1])
    back = arrays.view_in(view, made_by)
    assert (counts["to_host"], counts["to_device"], dict(copies)) == (0, 0, {})
    assert arrays.to_numpy(back).real.tolist() == [[0, 0, 2], [3, 0, 5]]
    assert arrays.view_in(array, made_by) is array


def test_what_cannot_be_seen_is_refused() -> None:
    wide = arrays.from_numpy(np.zeros(3, np.float32), "bfloat16", "torch-cuda")
    with pytest.raises(ValueError, match="dtype: cupy has no bfloat16"):
        arrays.view_in(wide, "cupy")
    with pytest.raises(
        ValueError, match=r"memory: a view goes from one of cupy, torch-cuda .* from numpy to cupy"
    ):
        arrays.view_in(np.zeros(3), "cupy")


@pytest.mark.parametrize(("source", "target"), LIBRARIES)
def test_the_argument_of_a_transfer_may_be_written_to_at_once(
    world: al.SimulatedWorld, source: str, target: str
) -> None:
    """The copy comes before what its library does to the argument afterwards, and after what it did before."""

    def body(context: Any, _: object) -> list[list[float]]:
        with arrays.rank_context(source, 0):
            operator = Transfer(context.comm, Layout((4,), Partition((1,))), source, target)
            x = arrays.from_numpy(np.arange(4.0), "float64", source)
            y = operator.forward(x)
            arrays.clear(x)
            back = operator.adjoint(y)
            arrays.clear(y)
            return [arrays.to_numpy(each).tolist() for each in (back, x, y)]

    (values,) = world.run(body, None, 1).values
    assert values == [[0, 1, 2, 3], [0] * 4, [0] * 4]


@pytest.mark.parametrize(("source", "target"), LIBRARIES)
@pytest.mark.parametrize("check", ["specification", "adjoint"])
def test_a_transfer_to_the_other_library_is_coherent(
    world: al.SimulatedWorld, source: str, target: str, check: str
) -> None:
    parameters = {
        "layout": Layout.cut((7, 3), Partition((2, 2)), (None, None)),
        "dtype": "complex64",
        "by": target,
        "pinned": True,
    }
    verdict = judged_subject(world, installed.transfers, parameters, check, source, "strided")
    assert verdict.is_coherent, str(verdict)


@pytest.mark.parametrize("memory", ["cupy", "torch-cuda"])
@pytest.mark.parametrize("pinned", [True, False])
def test_an_array_that_must_not_be_written_to_is_copied_to_the_device(memory: str, pinned: bool) -> None:
    array = np.arange(4.0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy, _ = start_transfer(array, memory, pinned=pinned)
    assert arrays.to_numpy(copy).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("memory", ["cupy", "torch-cuda"])
@pytest.mark.parametrize("length", [0, 1])
def test_the_bytes_of_a_message_of_one_element_whatever_its_stride(memory: str, length: int) -> None:
    line = arrays.from_numpy(np.arange(6.0), "float64", memory)
    view = line[2 : 2 + 3 * length : 3]
    moved = arrays.octets(arrays.message(view))
    assert arrays.to_numpy(moved).tobytes() == np.arange(2.0, 2 + length).tobytes()
    assert arrays.address_of(moved) == arrays.address_of(view), "it is received there"


# Kernels of CuPy on tensors of torch


@pytest.mark.parametrize("name", list(arrays.DTYPES))
def test_kernels_do_to_tensors_what_slices_do(name: str) -> None:
    drawn = np.random.default_rng(0).integers(-9, 9, (3, 5, 9, 8))
    values = drawn + 1j * drawn[::-1] if name.startswith("complex") else drawn
    plain = values.astype("float32" if name == "bfloat16" else name)
    source, one, other = (
        arrays.from_numpy(each, name, "torch-cuda") for each in (plain, 0 * plain, 0 * plain)
    )
    if name.startswith("complex"):
        source = source.conj()  # lazily: its memory holds other values
    boxes = [
        (slice(a, None, 2), slice(b, b + 2), slice(1, 8), slice(a, 7, b + 1)) for a in (0, 1) for b in (0, 3)
    ]
    counts.clear()
    for function, by_slices in ((kernels.copy_all, arrays.copy_into), (kernels.add_all, arrays.add_into)):
        function([(one[box], source[box]) for box in boxes])
        for box in boxes:
            by_slices(other[box], source[box])
        assert np.array_equal(arrays.to_numpy(one), arrays.to_numpy(other))
    assert counts["launches"] == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
def test_halos_of_tensors_are_packed_by_kernels(world: al.SimulatedWorld, dtype: str) -> None:
    grid = Partition((2, 2))
    parameters = {
        "layout": Layout.cut((7, 9), grid, (None, None)),
        "windows": Layout((7, 9), grid, (((-1, 6), (2, 8)), ((0, 7), (3, 9)))),
        "dtype": dtype,
    }
    for check, order in (("specification", "column-major"), ("adjoint", "row-major")):
        verdict = judged_subject(world, installed.halo_exchanges, parameters, check, "torch-cuda", order)
        assert verdict.is_coherent, str(verdict)
    assert counts["launches"]


def test_ranks_without_kernels_beside_ranks_with_kernels(world: al.SimulatedWorld) -> None:
    verdict = judged(world, "repartition", "specification", "torch+torch-cuda")
    assert verdict.is_coherent, str(verdict)
    assert counts["launches"]
    assert torch.cuda.is_available()
