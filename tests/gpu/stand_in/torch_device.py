"""Tensors of torch that say that they are on a device and that the host cannot look into, on a torch without CUDA.

A :class:`DeviceTensor` is a wrapper around a tensor of the host, to which torch dispatches every operation. It has what a device has for a
layer: a device in whose place no tensor of the host can stand, gradients and derivatives in all of torch's modes, and factory functions
that make tensors there. What would need the host to read device memory raises, as it does on a device, or is counted where torch does it
on request. Work is done at once: the order of streams is tested with the stand-in for CuPy.

A torch without CUDA has no autograd for tensors of the device type "cuda", and ends the process over one that requires a gradient. So the
tensor is one of the device type "lazy" to torch's own code, a type that autograd knows and that has no functions in any build, and one
of "cuda:0" to Python. :class:`_Factories` translates the one into the other.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from adjointlab.core import arrays
from adjointlab.core.arrays import device_buffer, devices, rank_streams, streams

__all__ = ["DeviceTensor", "copies", "on_device", "reads", "torch_device_stand_in"]

copies: Counter[str] = Counter()
"""Copies ``to_host`` and ``to_device``."""

reads: Counter[str] = Counter()
"""Reads of the host, for which it waits for the device, by the file of the lab that asked: a layer's, a world's, or that of the innermost call."""

_TO_PYTHON, _TO_TORCH = torch.device("cuda:0"), torch.device("lazy:0")
_HOST = torch.device("cpu")
_MAY_MIX = frozenset({"aten::copy_", "aten::_to_copy", "aten::to"})
"""Functions that take tensors of the host and of a device together. (Numbers, tensors of order 0 of the host, all functions take.)"""

_GRADIENT = torch.Tensor.grad
_PACKAGE = f"{Path(arrays.__file__).parents[2]}/"


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
            device=_TO_TORCH,
        )
        tensor.inner = inner
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    # Within a function of torch's no mode of functions is active, and what Python code finds there goes to torch as it is.
    device = property(  # type: ignore[assignment]
        lambda self: _TO_PYTHON if torch._C._len_torch_function_stack() else _TO_TORCH
    )
    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    @property
    def grad(
        self,
    ) -> torch.Tensor | None:  # torch looks where gradients lie itself, but not of classes of tensors
        gradient: torch.Tensor | None = _GRADIENT.__get__(self)
        if gradient is not None and not isinstance(gradient, DeviceTensor):
            raise RuntimeError("expected a gradient on the device cuda:0, but got one on cpu")
        return gradient

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _GRADIENT.__set__(self, value)

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def get_device(self) -> int:
        return 0

    def record_stream(self, stream: object) -> None:
        """Nothing runs late here."""

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, *_: object, **__: object) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def as_subclass(self, cls: type) -> Any:
        result = self.view_as(self)
        result.__class__ = type(cls.__name__, (cls, DeviceTensor), {})
        return result

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatched(func, args, kwargs or {})


def _dispatched(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Carry out a function of torch's in the memory of the host, and wrap what it makes on the device."""
    tensors = [each for each in tree_leaves((args, named)) if isinstance(each, torch.Tensor)]
    is_there = [isinstance(each, DeviceTensor) for each in tensors]
    devices = (each for each in (*args, *named.values()) if isinstance(each, torch.device))
    asked: torch.device | None = next(devices, None)
    if not any(is_there) and (asked is None or asked.type != _TO_TORCH.type):
        return func(*args, **named)
    name = func._schema.name
    makes_anew = name.endswith("_like") or name.startswith("aten::new_")
    if (
        name not in _MAY_MIX
        and not makes_anew
        and any(each.ndim and not there for each, there in zip(tensors, is_there, strict=True))
    ):
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )
    goes_there = any(is_there) if asked is None else asked.type == _TO_TORCH.type
    _count(name, args, goes_there)
    if name == "aten::_efficientzerotensor":  # which has no memory, and is resolved before it is dispatched
        func = torch.ops.aten.zeros.default
    result = func(*tree_map(_inner, args), **tree_map(_inner, named))
    if torch.Tag.inplace_view in func.tags:
        args[0].data = DeviceTensor(args[0].inner)  # for the wrapper has a shape of its own
    if func._schema.is_mutable:
        return args[0] if len(func._schema.returns) == 1 else tree_map(_wrapped, result)
    return tree_map(_wrapped, result) if goes_there else result


# `aten::to` is not counted: it comes here undivided from forward mode alone, for its zeros, which have no memory on a device.
def _count(name: str, args: tuple[Any, ...], goes_there: bool) -> None:
    if name == "aten::copy_":
        target, source = (isinstance(each, DeviceTensor) for each in args[:2])
        if target != source:
            _count_copy(goes_there=target)
    elif name == "aten::_to_copy" and isinstance(args[0], DeviceTensor) != goes_there:
        _count_copy(goes_there)
    elif name == "aten::_local_scalar_dense":
        reads[_asked_by()] += 1


def _count_copy(goes_there: bool) -> None:
    copies["to_device" if goes_there else "to_host"] += 1
    if not goes_there:
        reads[_asked_by()] += 1


def _asked_by() -> str:
    """The file of the lab, relative to its package, that is running; "" for none."""
    files = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            files.append(frame.f_code.co_filename.removeprefix(_PACKAGE))
        frame = frame.f_back
    asking = (file for file in files if file.startswith(("layers/", "worlds/")) and "/subjects/" not in file)
    return next(asking, files[0] if files else "")


def _inner(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _HOST if value.type == _TO_TORCH.type else value
    return value.inner if isinstance(value, DeviceTensor) else value


def _wrapped(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, DeviceTensor):
        return value
    return DeviceTensor(value.resolve_conj().resolve_neg() if value.is_conj() or value.is_neg() else value)


class _Operations(TorchDispatchMode):
    """Dispatches what no tensor of a device is an argument of: factories, and constants that torch's own code makes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatched(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds


class _Factories(TorchFunctionMode):
    """Translates the device "cuda" of arguments, before torch looks for one of CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:  # which names one, and makes nothing there
            return func(*args, **(kwargs or {}))
        given = {name: _translated(value) for name, value in (kwargs or {}).items()}
        given.pop("pin_memory", None)
        if func in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor):
            return _from_data(func, args, given)
        if func is torch.Tensor.backward:
            with self:  # which torch has left out of what it calls here
                given["grad_tensors"] = given.pop("gradient", None)
                return torch.autograd.backward(*args, **given)
        return func(*map(_translated, args), **given)


def _from_data(func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> torch.Tensor:
    """A tensor of numbers: made on the host, as torch does too, but copied to the device by a function that is dispatched."""
    wanted = given.pop("device", None)
    if func is torch.Tensor.new_tensor:
        like, *args = args  # type: ignore[assignment]
        wanted = wanted or (_TO_TORCH if like.is_cuda else _HOST)
        given.setdefault("dtype", like.dtype)
        func = torch.tensor
    made: torch.Tensor = func(*args, **given)
    return made if wanted is None else made.to(wanted)


def _translated(value: Any) -> Any:
    if isinstance(value, str | torch.device) and str(value).startswith("cuda"):
        return _TO_TORCH
    return value


@contextmanager
def on_device() -> Iterator[None]:
    """Let functions of torch's in this thread make tensors of the device that stands in for one of CUDA."""
    with _Operations(), _Factories():
        yield


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


_CUDA: dict[str, Any] = {
    "is_available": lambda: True,
    "current_device": lambda: 0,
    "current_stream": lambda device=0: _Stream(),
    "Stream": _Stream,
    "stream": lambda stream: nullcontext(),
    "empty_cache": lambda: None,
}

_CACHES = (devices._has_device, streams._torch_streams, device_buffer._stream, rank_streams._torch_stream)


@contextmanager
def torch_device_stand_in() -> Iterator[None]:
    """Let torch have a device, on which tensors are of this stand-in: in this thread, which measures twins, and on the ranks of cases."""
    _forget_devices()
    copies.clear()
    reads.clear()
    with ExitStack() as patches:
        patches.callback(_forget_devices)  # whatever is raised: the next test has none
        patches.enter_context(patch.multiple(torch.cuda, **_CUDA))
        # A backward pass that torch hands to the mode as a whole would run without it.
        patches.enter_context(patch.object(torch.autograd, "has_torch_function", lambda tensors: False))
        # On every rank: one whose tensors lie on the host too receives what others send from the device.
        patches.enter_context(patch.object(arrays, "rank_context", _with_device(arrays.rank_context)))
        patches.enter_context(on_device())
        yield


def _forget_devices() -> None:
    for cached in _CACHES:
        cached.cache_clear()


def _with_device(rank_context: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rank_context)
    @contextmanager
    def surroundings(memory: str, rank: int) -> Iterator[None]:
        with on_device(), rank_context(memory, rank):
            yield

    return surroundings
