"""CuPy and torch on one device, by the stand-ins for both: memory that one made and the other one sees, and kernels on tensors of torch.

CuPy's stand-in works as late as it may, that of torch at once. So what CuPy does in a stream of torch's is done at once, and torch, to
take memory of CuPy's, waits for CuPy's current stream, as DLPack has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from adjointlab.core.arrays import devices
from tests.gpu.stand_in.arrays import Borrowed, ndarray
from tests.gpu.stand_in.module import cupy_stand_in
from tests.gpu.stand_in.streams import AtOnce, Stream, get_current_stream
from tests.gpu.stand_in.torch_device import DeviceTensor, torch_device_stand_in

__all__ = ["both_stand_in"]


def _in_cupy(tensor: DeviceTensor) -> ndarray:
    assert isinstance(tensor, DeviceTensor), "CuPy takes memory of a device alone"
    return ndarray(Borrowed(tensor), tensor.detach().inner.numpy())


def _in_torch(array: ndarray) -> torch.Tensor:
    assert isinstance(array, ndarray), "of another library"
    get_current_stream().synchronize()
    tensor = DeviceTensor(torch.from_numpy(array._hidden))
    tensor.owner = array  # type: ignore[attr-defined]
    return tensor


def _from_external(foreign: Any) -> Stream:
    version, pointer = foreign.__cuda_stream__()
    assert (version, pointer) == (0, torch.cuda.current_stream().cuda_stream)
    return AtOnce()


@contextmanager
def both_stand_in() -> Iterator[Any]:
    """Let both stand-ins be there; the module in CuPy's place."""
    with (
        cupy_stand_in() as cupy,
        torch_device_stand_in(),
        patch.object(devices, "_has_device", lambda memory: True),
        patch.object(torch, "from_dlpack", _in_torch),
        patch.object(cupy, "from_dlpack", _in_cupy, create=True),
        patch.object(Stream, "from_external", _from_external, create=True),
    ):
        yield cupy
