"""Arrays in the memory of a device that the host cannot look into: CuPy's ``ndarray``, as far as the lab uses it.

Values lie in NumPy's memory, which is hidden. Every operation is put into the current stream, so results come as late as
:mod:`tests.gpu.stand_in.streams` lets them. Fresh memory holds garbage, and so does memory that has been given back, from the
point of the stream at which it was. Whoever takes an array for one of NumPy's gets CuPy's `TypeError`.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tests.gpu.stand_in.streams import Stream, current_device, enqueue, get_current_stream, on_device

__all__ = [
    "Borrowed",
    "Memory",
    "OutOfMemoryError",
    "array",
    "asnumpy",
    "concatenate",
    "counts",
    "empty",
    "kept",
    "may_share_memory",
    "ndarray",
]

counts: Counter[str] = Counter()
"""Operations so far: ``to_host``, ``to_device``, ``on_device``, ``launches``."""

kept: deque[np.ndarray[Any, Any]] = deque(maxlen=10_000)
"""Memory that has been given back, and pinned memory: copies that nobody waits for write to its addresses later."""

GARBAGE = 0x7F  # NaN in half precisions; in others, and in integers, a number that shows


class OutOfMemoryError(MemoryError):
    """As of CuPy."""


class Memory:
    """A piece of one device's memory."""

    limit = 2**40
    live: ClassVar[weakref.WeakSet[Memory]] = weakref.WeakSet()

    def __init__(self, nbytes: int) -> None:
        if nbytes + sum(memory.raw.nbytes for memory in list(Memory.live)) > Memory.limit:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes:,} bytes (allocated so far: …).")
        self.raw = np.full(nbytes, GARBAGE, np.uint8)
        self.device = current_device()
        self._stream = get_current_stream()
        Memory.live.add(self)
        kept.append(self.raw)

    def __del__(self) -> None:
        # Work of its own stream that is queued already may still use it; that of other streams must not.
        raw = getattr(self, "raw", np.empty(0, np.uint8))  # there is none where there was no memory left
        enqueue(lambda: raw.fill(GARBAGE), getattr(self, "_stream", None))


class Borrowed:
    """Memory of the first device that another library owns."""

    device = 0

    def __init__(self, owner: object) -> None:
        self.owner = owner


class _Pointer:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class ndarray:
    """A view of device memory."""

    __array_priority__ = 100

    def __init__(self, memory: Memory | Borrowed, hidden: np.ndarray[Any, Any]) -> None:
        self._memory = memory
        self._hidden = hidden

    shape = property(lambda self: self._hidden.shape)
    dtype = property(lambda self: self._hidden.dtype)
    ndim = property(lambda self: self._hidden.ndim)
    size = property(lambda self: self._hidden.size)
    nbytes = property(lambda self: self._hidden.nbytes)
    itemsize = property(lambda self: self._hidden.itemsize)
    strides = property(lambda self: self._hidden.strides)
    flags = property(lambda self: self._hidden.flags)
    device = property(lambda self: on_device(self._memory.device))
    data = property(lambda self: _Pointer(self._hidden.ctypes.data))
    T = property(lambda self: self.transpose())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self._hidden.__array_interface__)
        return {**interface, "version": 3, "stream": None}

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array"
        )

    def __len__(self) -> int:
        return len(self._hidden)

    def __getitem__(self, key: Any) -> ndarray:
        # With an ellipsis: a single element is an array of order 0 in CuPy, and NumPy would read it.
        index = key if isinstance(key, tuple) else (key,)
        complete = index if any(each is Ellipsis for each in index) else (*index, ...)
        return ndarray(self._memory, self._hidden[complete])

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        if isinstance(value, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        _work(lambda into, source: np.copyto(into, source, casting="unsafe"), target, value)

    def __iadd__(self, other: Any) -> ndarray:
        _work(lambda into, source: np.add(into, source, out=into, casting="same_kind"), self, other)
        return self

    def _binary(self, ufunc: np.ufunc, *operands: Any) -> ndarray:
        return self.__array_ufunc__(ufunc, "__call__", *operands)

    def __add__(self, other: Any) -> ndarray:
        return self._binary(np.add, self, other)

    def __sub__(self, other: Any) -> ndarray:
        return self._binary(np.subtract, self, other)

    def __mul__(self, other: Any) -> ndarray:
        return self._binary(np.multiply, self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **keywords: Any
    ) -> Any:
        if method != "__call__":
            return NotImplemented
        if any(isinstance(each, np.ndarray) for each in inputs):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        if out:
            result: ndarray = out[0] if isinstance(out, tuple) else out
        else:
            samples = [
                np.empty((0,) * min(each.ndim, 1), each.dtype) if isinstance(each, ndarray) else each
                for each in inputs
            ]
            samples = [np.zeros(1, each.dtype) if isinstance(each, np.ndarray) else each for each in samples]
            shape = np.broadcast_shapes(*(each.shape for each in inputs if isinstance(each, ndarray)))
            result = empty(shape, ufunc(*samples).dtype)
        keywords.setdefault("casting", "same_kind")
        _work(lambda into, *sources: ufunc(*sources, out=into, **keywords), result, *inputs)
        return result

    def conj(self) -> ndarray:
        return self._binary(np.conjugate, self)

    def reshape(self, *shape: Any) -> ndarray:
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if self._hidden.flags.c_contiguous:
            return ndarray(self._memory, self._hidden.reshape(wanted))
        try:
            return ndarray(self._memory, np.reshape(self._hidden, wanted, copy=False))
        except ValueError:
            return self.copy().reshape(wanted)

    def ravel(self) -> ndarray:
        return self.reshape((-1,))

    def transpose(self, *dims: Any) -> ndarray:
        return ndarray(self._memory, self._hidden.transpose(*dims))

    def swapaxes(self, one: int, other: int) -> ndarray:
        return ndarray(self._memory, self._hidden.swapaxes(one, other))

    def view(self, dtype: Any = None) -> ndarray:
        return ndarray(self._memory, self._hidden.view() if dtype is None else self._hidden.view(dtype))

    def astype(self, dtype: Any) -> ndarray:
        result = empty(self.shape, dtype)
        result[...] = self
        return result

    def copy(self, order: str = "C") -> ndarray:
        return self.astype(self.dtype)

    def fill(self, value: Any) -> None:
        self[...] = value

    def get(
        self, stream: Stream | None = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray[Any, Any]:
        counts["to_host"] += 1
        result = np.empty(self.shape, self.dtype) if out is None else out
        hidden, chosen = self._hidden, stream or get_current_stream()
        enqueue(lambda: np.copyto(result, hidden), chosen)
        if blocking:
            chosen.synchronize()
        return result

    def set(self, values: np.ndarray[Any, Any], stream: Stream | None = None) -> None:
        counts["to_device"] += 1
        hidden = self._hidden
        # From memory that is not pinned: it is read before the call returns.
        snapshot = values.copy()
        enqueue(lambda: np.copyto(hidden, snapshot), stream)

    def item(self) -> Any:
        return self.get().item()

    def tobytes(self) -> bytes:
        return self.get().tobytes()

    def __bool__(self) -> bool:
        return bool(self.get())


def _work(function: Callable[..., object], result: ndarray, *operands: Any) -> None:
    """Put a function of the hidden memory of the result and the operands into the current stream."""
    counts["on_device"] += 1
    for each in (result, *operands):
        if isinstance(each, ndarray) and each._memory.device != current_device():
            raise ValueError(
                f"Array device must be same as the current device: array device = {each._memory.device}"
            )
    # The memory without its owner, which may be given back before this is carried out.
    into, *hidden = [each._hidden if isinstance(each, ndarray) else each for each in (result, *operands)]
    enqueue(lambda: (function(into, *hidden), None)[1])


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = np.dtype(dtype)
    memory = Memory(math.prod(sides) * kind.itemsize)
    return ndarray(memory, memory.raw.view(kind).reshape(sides))


def array(values: Any, dtype: Any = None, copy: bool = True, order: str = "K") -> ndarray:
    if isinstance(values, ndarray):
        return values.astype(dtype or values.dtype)
    read = np.array(values, dtype)
    result = empty(read.shape, read.dtype)
    result.set(read)
    return result


def asnumpy(values: Any) -> np.ndarray[Any, Any]:
    return values.get() if isinstance(values, ndarray) else np.asarray(values)


def may_share_memory(a: ndarray, b: ndarray, max_work: int | None = None) -> bool:
    return bool(np.may_share_memory(a._hidden, b._hidden))


def concatenate(parts: Sequence[ndarray], axis: int = 0) -> ndarray:
    length = sum(part.shape[axis] for part in parts)
    result = empty((*parts[0].shape[:axis], length, *parts[0].shape[axis + 1 :]), parts[0].dtype)
    start = 0
    for part in parts:
        result[(slice(None),) * axis + (slice(start, start + part.shape[axis]),)] = part
        start += part.shape[axis]
    return result
