"""MPI's datatypes: elementary ones, and derived ones, which select elements at several offsets of a buffer [MPI41, chapter 5].

A derived datatype is a list of byte offsets. The constructors, which have mpi4py's names, derive the offsets of a new datatype
from those of an old one::

    DOUBLE                          offsets 0             extent  8
    DOUBLE.Create_vector(3, 1, 4)   offsets 0, 32, 64     extent 72     a column of a 3 x 4 array in row-major order

The extent is the distance between consecutive datatypes in a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal, NamedTuple, TypeAlias

__all__ = ["BYTE", "ORDER_C", "ORDER_FORTRAN", "Datatype", "Derivation", "Recipe"]

Offsets: TypeAlias = tuple[int, ...]

# Integers that no MPI library uses.
ORDER_C: Final = -9011
ORDER_FORTRAN: Final = -9012

_SHOWN: Final = 40


@dataclass(frozen=True, repr=False)
class Datatype:
    """A datatype: its names in MPI and NumPy, and the derivation if it is derived. The methods are mpi4py's."""

    name: str
    numpy: str
    derivation: Derivation | None = None

    @property
    def base(self) -> Datatype:
        """The elementary datatype of the elements; ``BYTE`` if they have several."""
        return self if self.derivation is None else self.derivation.base

    @property
    def offsets(self) -> Offsets:
        """Byte offsets of the elements from the beginning of the buffer, in the order in which they are sent."""
        return (0,) if self.derivation is None else self.derivation.offsets

    @property
    def lb(self) -> int:
        return 0 if self.derivation is None else self.derivation.lb

    @property
    def extent(self) -> int:
        return self._itemsize if self.derivation is None else self.derivation.extent

    @property
    def ub(self) -> int:
        return self.lb + self.extent

    @property
    def size(self) -> int:
        return len(self.offsets) * self._itemsize

    @property
    def _alignment(self) -> int:
        if self.derivation is None:
            return self._itemsize // (2 if self.numpy.startswith("complex") else 1)
        old, _, arguments = self.derivation.recipe
        return max((each._alignment for each in arguments[2]), default=1) if old is None else old._alignment

    @property
    def _itemsize(self) -> int:
        # NumPy's names end in the number of bits, except for booleans. Parsed, because MPI's constants must not import NumPy.
        return int("".join(filter(str.isdigit, self.numpy)) or 8) // 8

    def Get_size(self) -> int:
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        return self.lb, self.extent

    def Get_name(self) -> str:
        return f"MPI_{self.name}" if self.name else ""

    def Create_contiguous(self, count: int) -> Datatype:
        return self._repeated([count], [0], "Create_contiguous", count)

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        starts = [self.extent * stride * number for number in range(_counted(count))]
        return self._repeated([blocklength] * count, starts, "Create_vector", count, blocklength, stride)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        starts = [stride * number for number in range(_counted(count))]
        return self._repeated([blocklength] * count, starts, "Create_hvector", count, blocklength, stride)

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        starts = [self.extent * each for each in displacements]
        return self._repeated(blocklengths, starts, "Create_indexed", blocklengths, displacements)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        return self._repeated(blocklengths, displacements, "Create_hindexed", blocklengths, displacements)

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        lengths, starts = [blocklength] * len(displacements), [self.extent * each for each in displacements]
        return self._repeated(lengths, starts, "Create_indexed_block", blocklength, displacements)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        lengths = [blocklength] * len(displacements)
        return self._repeated(lengths, displacements, "Create_hindexed_block", blocklength, displacements)

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        windows = list(zip(starts, subsizes, sizes, strict=True))
        if not all(0 <= start <= start + length <= size for start, length, size in windows):
            raise ValueError(
                f"Create_subarray: a part of shape {list(subsizes)} from {list(starts)} on is not inside an array of shape {list(sizes)}"
            )
        import numpy as np  # here, because MPI's constants must not import it

        memory_order: Literal["C", "F"] = "F" if order == ORDER_FORTRAN else "C"
        inside = tuple(slice(start, start + length) for start, length, _ in windows)
        positions = np.arange(prod(sizes)).reshape(sizes, order=memory_order)[inside]
        numbers = positions.ravel(order=memory_order).tolist()
        recipe = Recipe(self, "Create_subarray", (sizes, subsizes, starts, order))
        part = _combined([(self, tuple(self.extent * number for number in numbers))], recipe)
        return part._bounded(0, prod(sizes) * self.extent, recipe)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        return self._bounded(lb, extent, Recipe(self, "Create_resized", (lb, extent)))

    def Create_dup(self) -> Datatype:
        made = self._bounded(self.lb, self.extent, Recipe(self, "Create_dup", ()))
        return made.Commit() if self.derivation is None or self.derivation.is_committed else made

    Dup, Resized = Create_dup, Create_resized

    def as_octets(self) -> Datatype:
        """Return a datatype that covers the same memory, with bytes as elements."""
        return _derived(BYTE, _octets(self), self.lb, self.extent, Recipe(self, "as_octets", ()))

    @staticmethod
    def Create_struct(
        blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        blocks = zip(datatypes, blocklengths, displacements, strict=True)
        parts = [(each, _origins(each, [length], [start])) for each, length, start in blocks]
        made = _combined(parts, Recipe(None, "Create_struct", (blocklengths, displacements, datatypes)))
        assert made.derivation is not None
        # As in C, the extent is padded to the strictest alignment of the members.
        extent = -(-made.extent // made._alignment) * made._alignment
        return made._bounded(made.lb, extent, made.derivation.recipe)

    def Commit(self) -> Datatype:
        if self.derivation is not None:
            self.derivation.is_committed = True
        return self

    def Free(self) -> None:
        if self.derivation is not None:
            self.derivation.is_committed = False

    def __repr__(self) -> str:
        if self.derivation is None:
            return self.name
        old, constructor, arguments = self.derivation.recipe
        return f"{old or 'Datatype'}.{constructor}({', '.join(map(_shortly, arguments))})"

    def _repeated(
        self, lengths: Sequence[int], starts: Sequence[int], constructor: str, *arguments: Any
    ) -> Datatype:
        recipe = Recipe(self, constructor, arguments)
        return _combined([(self, _origins(self, lengths, starts))], recipe)

    def _bounded(self, lb: int, extent: int, recipe: Recipe) -> Datatype:
        return _derived(self.base, self.offsets, lb, extent, recipe)


class Recipe(NamedTuple):
    """The call that made a derived datatype. `old` is None for ``Create_struct``, which takes several datatypes."""

    old: Datatype | None
    constructor: str
    arguments: tuple[Any, ...]


@dataclass(eq=False)
class Derivation:
    """A derived datatype's elements, its offsets, lower bound and extent in bytes, and the call that made it.

    Messages may use it only while it is committed: after `Commit` and before `Free`.
    """

    base: Datatype
    offsets: Offsets
    lb: int
    extent: int
    recipe: Recipe
    is_committed: bool = False


BYTE: Final = Datatype("BYTE", "uint8")


def _derived(base: Datatype, offsets: Offsets, lb: int, extent: int, recipe: Recipe) -> Datatype:
    return Datatype("", base.numpy, Derivation(base, offsets, lb, extent, recipe))


def _origins(old: Datatype, lengths: Sequence[int], starts: Sequence[int]) -> Offsets:
    """Byte offsets of the datatypes in blocks: the i-th block has `lengths[i]` consecutive ones, beginning at `starts[i]`."""
    if any(length < 0 for length in lengths):
        raise ValueError(f"a datatype of {list(lengths)} elements: the number is negative")
    blocks = zip(lengths, starts, strict=True)
    return tuple(start + old.extent * number for length, start in blocks for number in range(length))


def _combined(parts: Sequence[tuple[Datatype, Offsets]], recipe: Recipe) -> Datatype:
    """Combine old datatypes into a new one; each part is an old datatype and the byte offsets at which it begins."""
    bases = {old.base for old, origins in parts if origins} or {old.base for old, _ in parts}
    base = bases.pop() if len(bases) == 1 else BYTE
    offsets = tuple(
        origin + offset
        for old, origins in parts
        for origin in origins
        for offset in (old.offsets if old.base == base else _octets(old))
    )
    begins = [min(origins) + old.lb for old, origins in parts if origins]
    ends = [max(origins) + old.ub for old, origins in parts if origins]
    lb = min(begins, default=0)
    return _derived(base, offsets, lb, max(ends, default=0) - lb, recipe)


def _counted(count: int) -> int:
    if count < 0:
        raise ValueError(f"count: {count} blocks; the number must not be negative")
    return count


def _shortly(value: object) -> str:
    text = str(list(value)) if isinstance(value, Sequence) else str(value)
    return text if len(text) < _SHOWN else f"{text[: _SHOWN - 1]}…"


def _octets(datatype: Datatype) -> Offsets:
    """Offsets of all bytes of a datatype's elements."""
    return tuple(offset + octet for offset in datatype.offsets for octet in range(datatype._itemsize))
