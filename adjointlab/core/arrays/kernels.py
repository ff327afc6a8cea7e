"""Kernels that pack and unpack messages on a device: they copy or add a list of boxes in one launch.

The kernels are in ``boxes.cu``; CuPy compiles them at first use and keeps them in its cache. They take torch tensors by address,
in torch's current stream. Without CuPy, torch's slices do the same, with one launch per box.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from adjointlab.core.arrays.conversions import resolved
from adjointlab.core.arrays.devices import address_of, device_of, installed, is_on_device, itemsize_of
from adjointlab.core.arrays.libraries import dtype_name, is_torch
from adjointlab.core.arrays.memory import add_into, copy_into
from adjointlab.typing import Array

__all__ = ["MAX_BOXES", "OPTIONS", "SOURCE", "Strided", "add_all", "copy_all"]

SOURCE: Final = Path(__file__).with_name("boxes.cu").read_text(encoding="utf-8")

OPTIONS: Final = ("-std=c++17",)
"""Options of the compiler, NVRTC."""

MAX_DIMS: Final = 6
MAX_BOXES: Final = 16
_PER_THREAD: Final = 4
_THREADS: Final = 256

_BOX: Final = np.dtype(
    [
        ("source", np.uint64),
        ("target", np.uint64),
        ("shape", np.int64, MAX_DIMS),
        ("source_strides", np.int64, MAX_DIMS),
        ("target_strides", np.int64, MAX_DIMS),
        ("size", np.int64),
        ("first_block", np.int32),
        ("dims", np.int32),
        ("width", np.int32),
        ("padding", np.int32),
    ]
)
_BOXES: Final = np.dtype([("count", np.int32), ("padding", np.int32), ("box", _BOX, MAX_BOXES)])
"""The structures of ``boxes.cu``, which are passed by value."""

Pair = tuple[Array, Array]
"""A target and a source of one shape and element type."""


@dataclass(frozen=True)
class Strided:
    """A box of a launch: two addresses, the sides that both views have, and their strides in bytes, outermost first.

    `width` is the size in bytes of the elements, or of the words that they are copied in.
    """

    target: int
    source: int
    shape: tuple[int, ...]
    target_strides: tuple[int, ...]
    source_strides: tuple[int, ...]
    width: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def merged(self) -> Strided:
        """The same elements with fewer dimensions: none of side 1, and one in place of two that are contiguous in both views."""
        dims: list[tuple[int, int, int]] = []
        for side, target, source in zip(self.shape, self.target_strides, self.source_strides, strict=True):
            if side == 1:
                continue
            if dims and dims[-1][1] == side * target and dims[-1][2] == side * source:
                dims[-1] = (dims[-1][0] * side, target, source)
            else:
                dims.append((side, target, source))
        shape, targets, sources = zip(*dims, strict=True) if dims else ((1,), (0,), (0,))
        return replace(self, shape=shape, target_strides=targets, source_strides=sources)

    def widened(self) -> Strided:
        """The same bytes as fewer, wider words of up to 16 bytes, where the last dimension is contiguous."""
        *outer, side = self.shape
        *targets, target_step = self.target_strides
        *sources, source_step = self.source_strides
        itemsize = self.width
        if target_step != itemsize or source_step != itemsize:
            return self
        nbytes = side * itemsize
        wide = max(itemsize, math.gcd(16, self.target, self.source, nbytes, *targets, *sources))
        return Strided(
            self.target, self.source, (*outer, nbytes // wide), (*targets, wide), (*sources, wide), wide
        )


def copy_all(pairs: Sequence[Pair]) -> None:
    """C_{a→b} for each pair of a target b and a source a, in any order: no target overlaps another target, or a source."""
    if _are_launched(pairs):
        _launch(pairs, copy_into)
    else:
        for target, source in pairs:
            copy_into(target, source)


def add_all(pairs: Sequence[Pair]) -> None:
    """S_{a→b} for each pair of a target b and a source a; several terms for one element are added in the order of the list."""
    if _are_launched(pairs):
        for disjoint in _disjoint_runs(pairs):
            _launch(disjoint, add_into)
    else:
        for target, source in pairs:
            add_into(target, source)


def _are_launched(pairs: Sequence[Pair]) -> bool:
    """Return True for two or more pairs on a device, if there are kernels."""
    return len(pairs) > 1 and is_on_device(pairs[0][0]) and _has_kernels()


def _has_kernels() -> bool:
    return installed("cupy")


def _disjoint_runs(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Cut a list into runs in which no two targets overlap, since the threads of a launch run in any order."""
    run: list[Pair] = []
    extents: list[np.ndarray[Any, Any]] = []
    for pair in pairs:
        extent = _extent(pair[0])
        if any(np.shares_memory(extent, other) for other in extents):
            yield run
            run, extents = [], []
        run.append(pair)
        extents.append(extent)
    if run:
        yield run


class _Interface:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _extent(array: Array) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the addresses of an array, to test for overlaps; nobody reads its elements."""
    size = itemsize_of(array)
    interface = {
        "shape": tuple(array.shape),
        "strides": _strides(array),
        "typestr": f"|V{size}",
        "data": (address_of(array) or size, False),  # the address of an empty array may be 0
        "version": 3,
    }
    return np.asarray(_Interface(interface))


def _strides(array: Any) -> tuple[int, ...]:
    """Strides in bytes."""
    if is_torch(array):
        return tuple(stride * array.element_size() for stride in array.stride())
    return tuple(array.strides)


def _launch(pairs: Iterable[Pair], by_slices: Callable[[Array, Array], None]) -> None:
    rest: list[Pair] = []
    groups: dict[str, list[Strided]] = {}
    kept: list[Any] = []  # keeps sources that had to be computed alive until the launch has been queued
    like: Any = None
    for target, given in pairs:
        if 0 in target.shape:
            continue
        like, source = target, resolved(given)
        kept.append(source)
        box = Strided(
            address_of(target),
            address_of(source),
            tuple(target.shape),
            _strides(target),
            _strides(source),
            itemsize_of(target),
        ).merged()
        is_converted = dtype_name(source) != dtype_name(target)
        if is_converted or len(box.shape) > MAX_DIMS:
            rest.append((target, source))
            continue
        if by_slices is copy_into:
            groups.setdefault("copy", []).append(box.widened())
        else:
            groups.setdefault(f"add_{dtype_name(target)}", []).append(box)
    for kernel, boxes in groups.items():
        for start in range(0, len(boxes), MAX_BOXES):
            _call(kernel, boxes[start : start + MAX_BOXES], like)
    for target, source in rest:
        by_slices(target, source)


def boxes_argument(boxes: Sequence[Strided]) -> tuple[np.ndarray[Any, Any], int]:
    """Return the argument of a kernel, an array of one structure, and the number of blocks of the grid."""
    argument = np.zeros(1, _BOXES)
    argument["count"] = len(boxes)
    first_block = 0
    for entry, box in zip(argument["box"][0], boxes, strict=False):
        dims = len(box.shape)
        entry["source"], entry["target"], entry["size"] = box.source, box.target, box.size
        entry["shape"][:dims] = box.shape
        entry["source_strides"][:dims] = box.source_strides
        entry["target_strides"][:dims] = box.target_strides
        entry["first_block"], entry["dims"], entry["width"] = first_block, dims, box.width
        first_block += -(-box.size // (_THREADS * _PER_THREAD))
    return argument, first_block


def _call(kernel: str, boxes: Sequence[Strided], like: Array) -> None:
    argument, blocks = boxes_argument(boxes)
    device = device_of(like)
    assert device is not None
    with sys.modules["cupy"].cuda.Device(device), _current_stream(like, device):
        _module().get_function(kernel)((blocks,), (_THREADS,), (argument,))


def _current_stream(like: Array, device: int) -> AbstractContextManager[object]:
    """Return the current stream of an array's library, as one of CuPy."""
    cuda: Any = sys.modules["cupy"].cuda
    if not is_torch(like):
        own: AbstractContextManager[object] = cuda.get_current_stream()
        return own
    return _external(sys.modules["torch"].cuda.current_stream(device).cuda_stream, device)


def _external(pointer: int, device: int) -> AbstractContextManager[object]:
    cuda: Any = sys.modules["cupy"].cuda
    from_external = getattr(cuda.Stream, "from_external", None)
    stream: AbstractContextManager[object]
    if from_external is None:  # before CuPy 14
        stream = cuda.ExternalStream(pointer, device)
    else:
        stream = from_external(_ForeignStream(pointer))
    return stream


class _ForeignStream:
    """A stream of another library in CUDA's stream protocol."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


@cache
def _module() -> Any:
    import cupy

    return cupy.RawModule(code=SOURCE, options=OPTIONS)
