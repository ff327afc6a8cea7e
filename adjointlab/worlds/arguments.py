"""Buffer arguments of communication calls, parsed into flat NumPy views.

A buffer is an array, or ``[buffer, datatype]``, ``[buffer, count]``, ``[buffer, count, datatype]``,
``[buffer, (count, displacement), datatype]``, ``[buffer, count, displacement, datatype]``; with one count and one
displacement for each rank in the vector forms. A derived datatype, ours or mpi4py's, selects elements that need not be contiguous in the
buffer (:class:`~adjointlab.worlds.scattered.ScatteredElements`). Arguments that mpi4py refuses are refused here with the same class of
exception. In addition, a buffer that is too short raises a `ValueError`: mpi4py reads and writes past its end.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any, Final, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from adjointlab import MPI
from adjointlab.core import arrays
from adjointlab.core.arrays.device_buffer import device_buffer
from adjointlab.datatypes import Derivation
from adjointlab.typing import Buffer
from adjointlab.worlds.constants import datatype, datatype_of, is_bottom, is_datatype
from adjointlab.worlds.scattered import scattered

__all__ = ["REFUSALS", "Blocks", "Elements", "Flat", "blocks", "elements", "typed_blocks", "unpack_typed"]

REFUSALS: Final = (ArithmeticError, BufferError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions raised for a buffer that mpi4py refuses too, or that only the MPI library can interpret."""

Flat = npt.NDArray[Any]
"""One-dimensional view of a user's buffer; in memory of a device a :class:`~adjointlab.core.arrays.device_buffer.DeviceBuffer`."""

NOTHING: Flat = np.empty(0, np.uint8)
NOTHING.flags.writeable = False


class Elements(NamedTuple):
    """Elements of one type: contiguous ones, or those that a derived datatype selects."""

    array: Flat
    datatype: MPI.Datatype
    is_derived: bool = False


class Blocks(NamedTuple):
    """A buffer with a block of elements for each rank."""

    array: Flat  # the whole buffer
    datatype: MPI.Datatype
    counts: list[int]
    displacements: list[int]

    @property
    def packed(self) -> bool:
        """True if the blocks are contiguous and start at the beginning."""
        return self.displacements == [0, *accumulate(self.counts[:-1])]


def elements(spec: Buffer, *, writable: bool, blocks: int = 1) -> Elements:
    """Return the elements of the buffer argument `spec`, which holds `blocks` equal blocks; a count in it is per block, as in mpi4py."""
    if type(spec) is np.ndarray:  # by far the most frequent
        array, kind = _flat(spec, writable)
        count = displacement = None
    else:
        buffer, count, displacement, named = _unpack(spec, pairs=tuple | list)
        if (derived := _derived(named)) is not None:
            return _elements_of(derived, buffer, count, displacement, writable=writable, blocks=blocks)
        array, kind = _view(buffer, named, writable)
    if displacement:
        array = array[_bounded(displacement, "displacement", array.size) :]
    if count is not None:
        count = _index(count, "count") * blocks
        if count > array.size:
            raise ValueError(f"message: count {count}, but the buffer holds {array.size} elements")
        array = array[:count]
    elif blocks and array.size % blocks:
        raise _no_whole_blocks(array.size, blocks)
    return Elements(array, kind)


def _no_whole_blocks(number: int, blocks: int) -> ValueError:
    return ValueError(
        f"message: cannot infer count, number of entries {number} is not a multiple of required number of blocks {blocks}"
    )


def blocks(spec: Buffer, ranks: int, *, writable: bool, untouched: Collection[int] = ()) -> Blocks:
    """Return the blocks, one for each of `ranks` ranks, of the buffer argument `spec`.

    Blocks of a receive buffer must not overlap, except those of the ranks in `untouched`, such as absent neighbours:
    nothing is written there.
    """
    buffer, given, displacements, named = _unpack(spec, pairs=tuple)
    derived = _derived(named)
    if derived is None:
        array, kind = _view(buffer, named, writable)
    else:
        array, derived = _viewed(buffer, derived, writable)
        kind = derived.base
    if given is None:
        size = array.size if derived is None else _number_of(derived, array.nbytes)
        # As mpi4py does: as even as possible, the larger blocks first.
        share, rest = divmod(size, ranks or 1)
        counts = [share + (rank < rest) for rank in range(ranks)]
    else:
        counts = _per_rank(given, ranks, "counts")
    starts = _starts(counts, displacements)
    if derived is not None:
        positions = [
            _positions(array, derived, start * derived.extent, count)
            for start, count in zip(starts, counts, strict=True)
        ]
        return _packed(array, kind, positions, writable, untouched)
    for rank, (start, count) in enumerate(zip(starts, counts, strict=True)):
        if count and start + count > array.size:
            raise ValueError(
                f"message: block {rank} is elements {start} to {start + count}, but the buffer holds {array.size}"
            )
    if writable:
        _check_apart(starts, [0 if rank in untouched else count for rank, count in enumerate(counts)])
    return Blocks(array, kind, counts, starts)


def _check_apart(starts: Sequence[int], counts: Sequence[int]) -> None:
    """Raise `ValueError` if blocks of a receive buffer overlap: the result would be arbitrary."""
    occupied = sorted(
        (start, start + count, rank)
        for rank, (start, count) in enumerate(zip(starts, counts, strict=True))
        if count
    )
    for (_, end, one), (start, _, other) in pairwise(occupied):
        if start < end:
            raise ValueError(
                f"message: blocks {min(one, other)} and {max(one, other)} of the receive buffer overlap, which MPI forbids"
            )


def _starts(counts: Sequence[int], displacements: Any) -> list[int]:
    """Displacements of the blocks, in units of the datatype."""
    if displacements is None:
        return [0, *accumulate(counts)][: len(counts)]
    if np.ndim(displacements) == 0:
        return [_index(displacements, "displacement") * rank for rank in range(len(counts))]
    return _per_rank(displacements, len(counts), "displacements")


def _derived(named: object) -> MPI.Datatype | None:
    """The named datatype if it is a derived one, else None."""
    if named is None or isinstance(named, str):
        return None
    kind = datatype(named)
    if kind.derivation is None:
        return None
    if not kind.derivation.is_committed:
        raise MPI.Exception(f"Datatype has not been committed, or has been freed: {kind}", MPI.ERR_TYPE)
    return kind


def _elements_of(
    derived: MPI.Datatype, buffer: object, count: Any, displacement: Any, *, writable: bool, blocks: int
) -> Elements:
    """The elements that `count` items of a derived datatype select in a buffer, starting at `displacement`."""
    array, derived = _viewed(buffer, derived, writable)
    start = _index(displacement or 0, "displacement") * derived.extent
    if count is not None:
        number = _index(count, "count") * blocks
    elif (number := _number_of(derived, array.nbytes - start)) and blocks and number % blocks:
        raise _no_whole_blocks(number, blocks)
    positions = _positions(array, derived, start, number)
    if writable:
        _check_once(array, positions)
    return Elements(scattered(array, positions), derived.base, is_derived=True)


def _viewed(buffer: object, derived: MPI.Datatype, writable: bool) -> tuple[Flat, MPI.Datatype]:
    """View of a buffer in the base type of a derived datatype, and that datatype; both in bytes if its offsets are not multiples of the item size."""
    array, _ = _view(buffer, MPI.BYTE, writable)
    itemsize = np.dtype(derived.numpy).itemsize
    assert derived.derivation is not None
    offsets = _offsets(derived.derivation)
    if array.size % itemsize or derived.extent % itemsize or (offsets % itemsize).any():
        return array, derived.as_octets()
    return array.view(derived.numpy), derived


@lru_cache(maxsize=64)
def _offsets(derivation: Derivation) -> npt.NDArray[np.int64]:
    return np.asarray(derivation.offsets, np.int64)


def _number_of(kind: MPI.Datatype, nbytes: int) -> int:
    """Number of items of a datatype in a buffer: the count that mpi4py infers if none is given."""
    if kind.extent <= 0 or nbytes % kind.extent:
        raise ValueError(
            f"message: cannot infer count, buffer length {nbytes} is not a multiple of datatype extent {kind.extent} "
            f"(lb:{kind.lb}, ub:{kind.ub})"
        )
    return nbytes // kind.extent


def _positions(array: Flat, derived: MPI.Datatype, start: int, number: int) -> npt.NDArray[np.int64]:
    """Positions in a flat array of the elements of `number` items of a derived datatype, the first of which begins at byte `start`."""
    assert derived.derivation is not None
    origins = start + derived.extent * np.arange(number)
    offsets = np.add.outer(origins, _offsets(derived.derivation)).ravel()
    return _inside(offsets // array.dtype.itemsize, array, "elements")


def _octet_positions(octets: Flat, kind: MPI.Datatype, start: int, number: int) -> npt.NDArray[np.int64]:
    """Positions of the bytes of `number` items of a datatype, derived or not."""
    offsets = np.zeros(1, np.int64) if kind.derivation is None else _offsets(kind.derivation)
    first = np.add.outer(start + kind.extent * np.arange(number), offsets).ravel()
    return _inside(np.add.outer(first, np.arange(np.dtype(kind.numpy).itemsize)).ravel(), octets, "bytes")


def _inside(positions: npt.NDArray[np.int64], array: Flat, what: str) -> npt.NDArray[np.int64]:
    """Return `positions`; raise `ValueError` if some are outside the buffer."""
    if positions.size and not 0 <= positions.min() <= positions.max() < array.size:
        raise ValueError(
            f"message: the datatype names {what} {positions.min()} to {positions.max()}, but the buffer holds {array.size}; give "
            "the whole array, with a displacement where it begins elsewhere"
        )
    return positions


def typed_blocks(
    spec: Buffer, ranks: int, *, writable: bool, untouched: Collection[int] = ()
) -> tuple[Blocks, list[MPI.Datatype]]:
    """Return the blocks, in bytes, that an argument of ``Alltoallw`` describes, one for each of `ranks` ranks, and their datatypes.

    `untouched` is as for :func:`blocks`.
    """
    buffer, counts, displacements, named = unpack_typed(spec, ranks)
    types = [_derived(each) or datatype(each) for each in named]
    if len(types) != ranks:
        raise ValueError(f"message: expecting {ranks} datatypes, got {len(types)}")
    # As lists: unlike in other calls, a single number does not apply to all ranks.
    numbers = _per_rank(list(counts), ranks, "counts")
    starts = _per_rank(list(displacements), ranks, "displacements")
    bases = [kind.base for kind in types]
    if all(kind.derivation is None for kind in types):
        sizes = [count * kind.extent for count, kind in zip(numbers, types, strict=True)]
        of_bytes = [buffer, sizes, starts, MPI.BYTE]
        return blocks(of_bytes, ranks, writable=writable, untouched=untouched), bases
    octets = _view(buffer, MPI.BYTE, writable)[0]
    positions = [
        _octet_positions(octets, kind, start, count)
        for kind, start, count in zip(types, starts, numbers, strict=True)
    ]
    return _packed(octets, MPI.BYTE, positions, writable, untouched), bases


def unpack_typed(spec: Buffer, ranks: int) -> tuple[Any, Any, Any, Any]:
    """Return buffer, counts, displacements in bytes, and datatypes of an argument of ``Alltoallw``, with defaults for what it leaves out."""
    given: Any = spec
    counts: Any = None
    displacements: Any = None
    match given:
        case [buffer, named]:
            pass
        case [buffer, [counts, displacements], named] | [buffer, counts, displacements, named]:
            pass
        case [_, _, _]:
            raise TypeError("message: expecting a tuple of counts and displacements")
        case _:
            raise ValueError("message: expecting 2 to 4 items")
    if counts is None and displacements is None:
        counts, displacements = [1] * ranks, [0] * ranks
    return buffer, counts, displacements, named


def _packed(
    array: Flat,
    kind: MPI.Datatype,
    positions: Sequence[npt.NDArray[np.int64]],
    writable: bool,
    untouched: Collection[int],
) -> Blocks:
    """Blocks of the elements of a flat array at the given positions, packed one after the other."""
    sizes, places = [each.size for each in positions], np.concatenate(positions)
    if writable:
        written = [each for rank, each in enumerate(positions) if rank not in untouched]
        _check_once(array, np.concatenate([places[:0], *written]))
    return Blocks(scattered(array, places), kind, sizes, _starts(sizes, None))


def _check_once(array: Flat, positions: npt.NDArray[np.int64]) -> None:
    """Raise `ValueError` if a receive buffer's datatypes select an element more than once."""
    named = np.zeros(array.size, bool)
    named[positions] = True
    if np.count_nonzero(named) < positions.size:
        raise ValueError(
            "message: elements of the receive buffer are named more than once, which MPI forbids"
        )


def _unpack(spec: Buffer, pairs: Any) -> tuple[Any, Any, Any, Any]:
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


def _view(buffer: object, named: object, writable: bool) -> tuple[Flat, MPI.Datatype]:
    if buffer is None:
        if named is None:
            raise TypeError("message: expecting buffer or list/tuple")
        return NOTHING.view(datatype(named).numpy), datatype(named)
    if named is not None and isinstance(buffer, np.ndarray) and buffer.dtype.names is not None:
        # MPI has no type for records: the given datatype determines how they are sent.
        if not buffer.flags.c_contiguous:
            raise BufferError("buffer is not contiguous")
        buffer = buffer.reshape(-1).view(np.uint8)
    array, kind = _flat(buffer, writable)
    if named is None:
        return array, kind
    kind = datatype(named)
    wanted = np.dtype(kind.numpy)
    if array.dtype != wanted:
        _number_of(kind, array.nbytes)  # raises unless it is a whole number
        array = array.view(np.uint8).view(wanted)
    return array, kind


def _flat(buffer: object, writable: bool) -> tuple[Flat, MPI.Datatype]:
    """Return all elements of `buffer` in memory order, and their datatype."""
    if not isinstance(buffer, np.ndarray):
        if arrays.is_on_device(buffer):
            return _flat_on_device(buffer)
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
    # The transpose of a Fortran-ordered array is C-ordered, so `reshape` makes no copy, into which writes would be lost.
    flat: Flat = (buffer if flags.c_contiguous else buffer.T).reshape(-1)
    return (flat.view(np.uint8) if kind is MPI.BYTE else flat), kind


def _flat_on_device(buffer: Any) -> tuple[Flat, MPI.Datatype]:
    if getattr(buffer, "requires_grad", False):
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    flat: Any = device_buffer(buffer)
    return flat, datatype_of(flat.dtype)


def _flat_tensor(torch: ModuleType, tensor: Any) -> tuple[Flat, MPI.Datatype]:
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.device.type != "cpu":
        raise BufferError(f"memory of {tensor.device} cannot be sent from here: copy it to the host")
    if not tensor.is_contiguous():
        # It may be in Fortran order, as above.
        tensor = tensor.permute(*reversed(range(tensor.ndim)))
        if not tensor.is_contiguous():
            raise BufferError("buffer is not contiguous")
    tensor = tensor.reshape(-1)
    if tensor.dtype is torch.bfloat16:  # MPI has no such type, so mpi4py sends bytes
        return tensor.view(torch.uint8).numpy(), MPI.BYTE
    array: Flat = tensor.numpy()
    return array, datatype_of(array.dtype)


def _as_numpy(buffer: Any) -> Flat:
    if is_bottom(buffer):
        raise NotImplementedError(
            "MPI.BOTTOM: simulated ranks know no absolute addresses; give the array that they are in, and a datatype with displacements "
            "from where it begins, or run this under mpiexec"
        )
    try:
        return np.asarray(memoryview(buffer))
    except TypeError:
        if hasattr(buffer, "__dlpack__"):
            return np.asarray(np.from_dlpack(buffer))
        raise TypeError("message: expecting buffer or list/tuple") from None


def _per_rank(values: Any, ranks: int, what: str) -> list[int]:
    if np.ndim(values) == 0:
        return [_index(values, what)] * ranks
    listed = [_index(value, what) for value in values]
    if len(listed) != ranks:
        raise ValueError(f"expecting {ranks} items, got {len(listed)}")
    return listed


def _index(value: SupportsIndex, what: str) -> int:
    index = operator.index(value)
    if index < 0:
        raise ValueError(f"message: negative {what} {index}")
    return index


def _bounded(value: SupportsIndex, what: str, size: int) -> int:
    index = _index(value, what)
    if index > size:
        raise ValueError(f"message: {what} {index} out of bounds, number of datatype entries {size}")
    return index
