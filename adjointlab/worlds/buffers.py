"""Buffers as mpi4py takes them, read as flat NumPy views.

A buffer is an array, or ``[buffer, datatype]``, ``[buffer, count]``, ``[buffer, count, datatype]``,
``[buffer, (count, displacement), datatype]``, ``[buffer, count, displacement, datatype]``; with one count and one
displacement for each rank in the vector forms. What mpi4py refuses is refused here with the same class of exception.
One thing more: mpi4py reads and writes past the end of a buffer that is too short, and this raises a `ValueError`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from adjointlab import MPI
from adjointlab.typing import Buffer
from adjointlab.worlds.constants import datatype, datatype_of, is_datatype

__all__ = ["Blocks", "Elements", "Flat", "blocks", "elements"]

Flat = npt.NDArray[Any]
"""One-dimensional view of a user's buffer."""

NOTHING: Flat = np.empty(0, np.uint8)
NOTHING.flags.writeable = False


class Elements(NamedTuple):
    """Consecutive elements of one type."""

    array: Flat
    datatype: MPI.Datatype


class Blocks(NamedTuple):
    """A buffer with a block of elements for each rank."""

    array: Flat  # the whole buffer
    datatype: MPI.Datatype
    counts: list[int]
    displacements: list[int]

    @property
    def packed(self) -> bool:
        """True if the blocks follow one another from the beginning."""
        return self.displacements == [0, *accumulate(self.counts[:-1])]


def elements(spec: Buffer, *, writable: bool, divisor: int = 1) -> Elements:
    """Return the elements that `spec` names; an inferred count must be a multiple of `divisor`."""
    if type(spec) is np.ndarray:  # by far the most frequent
        array, kind = _flat(spec, writable)
        count = displacement = None
    else:
        buffer, count, displacement, named = _unpack(spec, pairs=tuple | list)
        array, kind = _view(buffer, named, writable)
    if displacement:
        array = array[_bounded(displacement, "displacement", array.size) :]
    if count is not None:
        count = _index(count, "count")
        if count > array.size:
            raise ValueError(f"message: count {count}, but the buffer holds {array.size} elements")
        array = array[:count]
    elif array.size % divisor:
        raise ValueError(
            f"message: cannot infer count, number of entries {array.size} is not a multiple of "
            f"required number of blocks {divisor}"
        )
    return Elements(array, kind)


def blocks(spec: Buffer, ranks: int, *, writable: bool) -> Blocks:
    """Return the block for each of `ranks` ranks that `spec` names."""
    buffer, given, displacements, named = _unpack(spec, pairs=tuple)
    array, kind = _view(buffer, named, writable)
    if given is None:
        # As mpi4py does: as even as possible, the larger blocks first.
        share, rest = divmod(array.size, ranks)
        counts = [share + (rank < rest) for rank in range(ranks)]
    else:
        counts = _per_rank(given, ranks, "counts")
    if displacements is None:
        starts = [0, *accumulate(counts[:-1])]
    elif np.ndim(displacements) == 0:
        starts = [_index(displacements, "displacement") * rank for rank in range(ranks)]
    else:
        starts = _per_rank(displacements, ranks, "displacements")
    for rank, (start, count) in enumerate(zip(starts, counts, strict=True)):
        if count and start + count > array.size:
            raise ValueError(
                f"message: block {rank} is elements {start} to {start + count}, but the buffer holds {array.size}"
            )
    return Blocks(array, kind, counts, starts)


def _unpack(spec: Any, pairs: Any) -> tuple[Any, Any, Any, Any]:
    """Return buffer, count, displacement and datatype; `pairs` are the types that may hold (count, displacement)."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError("message: expecting 2 to 4 items")
    if len(spec) == 4:
        return spec[0], spec[1], spec[2], spec[3]
    buffer, count = spec[0], spec[1]
    named = spec[2] if len(spec) == 3 else None
    if named is None and is_datatype(count):
        return buffer, None, None, count
    if isinstance(count, pairs):
        count, displacement = count
        return buffer, count, displacement, named
    return buffer, count, None, named


def _view(buffer: Any, named: Any, writable: bool) -> tuple[Flat, MPI.Datatype]:
    if buffer is None:
        if named is None:
            raise TypeError("message: expecting buffer or list/tuple")
        return NOTHING.view(datatype(named).numpy), datatype(named)
    array, kind = _flat(buffer, writable)
    if named is None:
        return array, kind
    kind = datatype(named)
    wanted = np.dtype(kind.numpy)
    if array.dtype != wanted:
        octets = array.view(np.uint8)
        if octets.size % wanted.itemsize:
            raise ValueError(
                f"message: cannot infer count, buffer length {octets.size} is not a multiple of "
                f"datatype extent {wanted.itemsize} (lb:0, ub:{wanted.itemsize})"
            )
        array = octets.view(wanted)
    return array, kind


def _flat(buffer: Any, writable: bool) -> tuple[Flat, MPI.Datatype]:
    """Return all elements of `buffer` in the order of memory, and their datatype."""
    if not isinstance(buffer, np.ndarray):
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(buffer, torch.Tensor):
            return _flat_tensor(torch, buffer)
        buffer = _as_numpy(buffer)
    elif type(buffer) is not np.ndarray:
        buffer = buffer.view(np.ndarray)
    flags = buffer.flags
    if not flags.forc:
        raise BufferError("buffer is not contiguous")
    if writable and not flags.writeable:
        raise BufferError("buffer is not writable")
    kind = datatype_of(buffer.dtype)
    # The transpose of a Fortran-ordered array is C-ordered: so no copy, which writing into would go astray.
    flat: Flat = (buffer if flags.c_contiguous else buffer.T).reshape(-1)
    return (flat.view(np.uint8) if kind is MPI.BYTE else flat), kind


def _flat_tensor(torch: Any, tensor: Any) -> tuple[Flat, MPI.Datatype]:
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.device.type != "cpu":
        raise BufferError(f"memory of {tensor.device} cannot be sent from here: stage it on the host")
    if not tensor.is_contiguous():
        # It may be in Fortran's order, as above.
        tensor = tensor.permute(*reversed(range(tensor.ndim)))
        if not tensor.is_contiguous():
            raise BufferError("buffer is not contiguous")
    tensor = tensor.reshape(-1)
    if tensor.dtype is torch.bfloat16:  # MPI has no such type, so mpi4py sends bytes
        return tensor.view(torch.uint8).numpy(), MPI.BYTE
    array: Flat = tensor.numpy()
    return array, datatype_of(array.dtype)


def _as_numpy(buffer: Any) -> Flat:
    try:
        return np.asarray(memoryview(buffer))
    except TypeError:
        if hasattr(buffer, "__dlpack__"):
            return np.asarray(np.from_dlpack(buffer))
        raise TypeError("message: expecting buffer or list/tuple") from None


def _per_rank(values: Any, ranks: int, what: str) -> list[int]:
    if np.ndim(values) == 0:
        return [_index(values, what)] * ranks
    listed = [_index(value, what) for value in _listed(values)]
    if len(listed) != ranks:
        raise ValueError(f"expecting {ranks} items, got {len(listed)}")
    return listed


def _listed(values: Any) -> Sequence[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _index(value: SupportsIndex, what: str) -> int:
    index: int = value.__index__()
    if index < 0:
        raise ValueError(f"message: negative {what} {index}")
    return index


def _bounded(value: SupportsIndex, what: str, size: int) -> int:
    index = _index(value, what)
    if index > size:
        raise ValueError(f"message: {what} {index} out of bounds, number of datatype entries {size}")
    return index
