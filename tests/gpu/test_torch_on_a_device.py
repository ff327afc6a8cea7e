"""Primitives on tensors of torch that say that they are on a device: nobody reads them from the host behind the user's back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.memory import Move
from adjointlab.primitives.subjects import installed
from tests.gpu.device_cases import judged, judged_subject
from tests.gpu.stand_in.torch_device import copies, on_device, torch_device_stand_in


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    if arrays.installed("cupy") or arrays.installed("torch-cuda"):
        pytest.skip("there is a device: tests/gpu/test_on_a_gpu.py has its tensors")
    with torch_device_stand_in():
        yield


@pytest.mark.parametrize("transport", [Transport.CUDA_AWARE_MPI, Transport.STAGING])
@pytest.mark.parametrize("memory", ["torch-cuda", "torch+torch-cuda"])
@pytest.mark.parametrize("name", ["halo exchange", "repartition", "all-sum-reduce"])
def test_a_primitive_is_coherent(
    world: al.SimulatedWorld, name: str, memory: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, transport)
    for check, order in (("specification", "column-major"), ("adjoint", "row-major")):
        verdict = judged(world, name, check, memory, order)
        assert verdict.is_coherent, str(verdict)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64", "int32"])
def test_every_element_type_goes_through_pinned_memory(
    world: al.SimulatedWorld, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, Transport.STAGING)
    parameters = {
        "layout": Layout((6, 5), Partition((2, 2)), (((0, 6),), ((0, 5),)), (None, None)),
        "dims": (0, 1),
    }
    given = {**parameters, "dtype": dtype}
    verdict = judged_subject(world, installed.all_sum_reduces, given, "specification", "torch-cuda")
    assert verdict.is_coherent, str(verdict)


@pytest.mark.parametrize("by", ["numpy", "torch", "torch-cuda"])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_transfer_and_its_adjoint_are_coherent(world: al.SimulatedWorld, by: str, pinned: bool) -> None:
    parameters = {
        "layout": Layout.cut((7, 3), Partition((2, 2)), (None, None)),
        "dtype": "float32",
        "by": by,
        "pinned": pinned,
    }
    verdict = judged_subject(world, installed.transfers, parameters, "specification", "torch-cuda", "strided")
    assert verdict.is_coherent, str(verdict)


def test_what_needs_no_message_is_not_copied_to_the_host(world: al.SimulatedWorld) -> None:
    def body(context: Any, _: object) -> dict[str, int]:
        layout = Layout((5, 4), Partition((1, 1)))
        windows = Layout((5, 4), Partition((1, 1)), (((-1, 6),), ((0, 5),)))
        halo, move = HaloExchange(context.comm, layout, windows, periodic=(0,)), Move(context.comm, layout)
        with on_device():
            x = arrays.from_numpy(np.arange(20.0).reshape(5, 4), "float64", "torch-cuda")
            copies.clear()
            halo.adjoint(halo.forward(x))
            move.adjoint(move.forward(x))
        return dict(copies)

    assert world.run(body, None, 1).values == ({},)
