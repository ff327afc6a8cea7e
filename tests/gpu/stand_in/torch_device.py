"""Tensors of torch that say that they are on a device and that the host cannot look into, on a torch without CUDA.

A wrapper around a tensor of the host, which torch dispatches every operation to. What would need the host to read device memory raises,
as it does on a device. Work is done at once: the order of streams is tested with the stand-in for CuPy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map

from adjointlab.core.arrays import device_buffer, devices, rank_streams, streams

__all__ = ["DeviceTensor", "copies", "torch_device_stand_in"]

copies: Counter[str] = Counter()
"""Copies ``to_host`` and ``to_device``."""

_EMPTY, _TO = torch.empty, torch.Tensor.to


class DeviceTensor(torch.Tensor):
    """A tensor on a device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> DeviceTensor:
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="cuda:0",
        )
        tensor.inner = inner
        return tensor

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def get_device(self) -> int:
        return 0

    # torch's own indexing asks the device which one is current, which a torch without CUDA cannot answer.
    def __getitem__(self, key: Any) -> DeviceTensor:
        return DeviceTensor(self.inner[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self[key].copy_(value)
        else:
            self.inner[key] = value

    def record_stream(self, stream: object) -> None:
        """Nothing runs late here."""

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def cpu(self, *_: object, **__: object) -> torch.Tensor:
        copies["to_host"] += 1
        return self.inner.clone()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.copy_:
            return super().__torch_function__(func, types, args, kwargs or {})
        # Here, as torch asks for the current device before it dispatches this one.
        target, source = args[:2]
        if not isinstance(target, cls):
            copies["to_host"] += 1
        elif not isinstance(source, cls):
            copies["to_device"] += 1
        with torch.no_grad():
            _inner(target).copy_(_inner(source))
        return target

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {name: value for name, value in (kwargs or {}).items() if name != "device"}
        name = func._schema.name
        for each in args:
            if isinstance(each, torch.Tensor) and not isinstance(each, cls) and each.ndim:
                raise RuntimeError(
                    f"{name}: expected all tensors to be on the same device, but found cuda:0 and cpu"
                )
        result = func(*tree_map(_inner, args), **tree_map(_inner, given))
        if func._schema.is_mutable:
            return args[0]
        return tree_map(lambda each: cls(each) if isinstance(each, torch.Tensor) else each, result)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, DeviceTensor) else value


def _empty(*args: Any, device: Any = None, pin_memory: bool = False, **keywords: Any) -> torch.Tensor:
    made = _EMPTY(*args, **keywords)
    return DeviceTensor(made) if str(device).startswith("cuda") else made


def _to(tensor: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
    if args and str(args[0]).startswith("cuda"):
        copies["to_device"] += 1
        return DeviceTensor(tensor.clone())
    return _TO(tensor, *args, **keywords)


class _Event:
    def synchronize(self) -> None:
        """All is done."""

    def query(self) -> bool:
        return True


class _Stream(_Event):
    cuda_stream = 0

    def __init__(self, device: int = 0) -> None:
        self.device = device

    def record_event(self) -> _Event:
        return _Event()

    def wait_event(self, event: _Event) -> None:
        """All is done."""


_CUDA = SimpleNamespace(
    is_available=lambda: True,
    current_device=lambda: 0,
    current_stream=lambda device=0: _Stream(),
    Stream=_Stream,
    stream=lambda stream: nullcontext(),
    empty_cache=lambda: None,
)

_CACHES = (devices._has_device, streams._torch_streams, device_buffer._stream, rank_streams._torch_stream)


@contextmanager
def torch_device_stand_in() -> Iterator[None]:
    """Let torch have a device, in whose memory its tensors are of this stand-in."""
    for cached in _CACHES:
        cached.cache_clear()
    copies.clear()
    with (
        patch.object(torch, "cuda", _CUDA),
        patch.object(torch, "empty", _empty),
        patch.object(torch.Tensor, "to", _to),
    ):
        yield
    for cached in _CACHES:
        cached.cache_clear()
