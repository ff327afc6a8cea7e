"""Spaces: named, typed tensors, and what a copy means in the pairing.

Each tensor of a space has, for each dimension of its partition, a *local type*. The dual follows:

==========  =========================  ==========  ====================
local type  ranks hold                 dual        the pairing
==========  =========================  ==========  ====================
varying     each its own values        varying     sum_r <x_r, g_r>
replicated  the same values            partial     sum_r <x, g_r>
partial     summands of one value      replicated  sum_r <x_r, g>
invariant   the same values            invariant   <x, g>, once
==========  =========================  ==========  ====================

So the pairing is the Euclidean one over all memory, except that an invariant copy counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache

from adjointlab.core.arrays import Dtype, dtype
from adjointlab.core.layout import Layout
from adjointlab.core.partition import shared_property

__all__ = ["LocalType", "Space", "Tensor"]


class LocalType(Enum):
    """What the ranks along one partition dimension hold."""

    VARYING = "varying"
    REPLICATED = "replicated"
    PARTIAL = "partial"
    INVARIANT = "invariant"

    @classmethod
    def _missing_(cls, value: object) -> LocalType:
        raise ValueError(f"types: {value!r} is not one of {', '.join(entry.value for entry in cls)}")

    @property
    def dual(self) -> LocalType:
        """The local type of a cotangent."""
        return _DUALS[self]

    @property
    def is_shared(self) -> bool:
        """Whether the ranks hold the same values."""
        return self in (LocalType.REPLICATED, LocalType.INVARIANT)

    def __repr__(self) -> str:
        return f"LocalType.{self.name}"  # as Python reads it back


_DUALS = {
    LocalType.VARYING: LocalType.VARYING,
    LocalType.REPLICATED: LocalType.PARTIAL,
    LocalType.PARTIAL: LocalType.REPLICATED,
    LocalType.INVARIANT: LocalType.INVARIANT,
}


@dataclass(frozen=True)
class Tensor:
    """One distributed tensor: a layout, an element type, and a local type for each dimension of its
    partition.

    `types` defaults to varying everywhere, [Hewett21]'s view. Its entries may be strings. `name` names
    the buffers of a specification; it does not matter for equality.

    Raises `ValueError` for another number of types than the partition has dimensions, and for a type other
    than varying along a dimension whose workers hold different windows.
    """

    layout: Layout
    dtype: str = "float64"
    types: tuple[LocalType, ...] = ()
    name: str = field(default="x", compare=False)

    def __post_init__(self) -> None:
        dtype(self.dtype)
        order = self.layout.partition.order
        types = tuple(LocalType(entry) for entry in self.types) or (LocalType.VARYING,) * order
        if len(types) != order:
            raise ValueError(
                f"types: a partition of order {order} needs {order} local types, "
                f"not {[t.value for t in types]}"
            )
        for dim, (entry, copied) in enumerate(zip(types, self.layout.copied, strict=True)):
            if entry is not LocalType.VARYING and not copied:
                raise ValueError(
                    f"types: dimension {dim} of the partition is {entry.value}, but its workers hold "
                    f"different windows of {self.layout}; only a varying tensor is cut"
                )
        object.__setattr__(self, "types", types)

    @property
    def element(self) -> Dtype:
        """The element type."""
        return dtype(self.dtype)

    @property
    def dual(self) -> Tensor:
        """The same layout with the dual local types."""
        return replace(self, types=tuple(entry.dual for entry in self.types))

    @shared_property
    def groups(self) -> dict[int, int]:
        """For each active rank, the lowest-placed rank whose local tensor is declared equal to its own."""
        partition = self.layout.partition
        return {
            rank: partition.rank(
                [
                    0 if entry.is_shared else i
                    for i, entry in zip(partition.index(rank), self.types, strict=True)
                ]
            )
            for rank in partition.ranks
        }

    @shared_property
    def summands(self) -> dict[int, int]:
        """For each active rank, the lowest-placed rank that holds a summand of the same value."""
        partition = self.layout.partition
        return {
            rank: partition.rank(
                [
                    0 if entry is LocalType.PARTIAL else i
                    for i, entry in zip(partition.index(rank), self.types, strict=True)
                ]
            )
            for rank in partition.ranks
        }

    def fits(self, other: Tensor) -> bool:
        """Whether the local tensors of one are those of the other, whatever grids their partitions are.

        They are if every rank holds the same window of a global tensor of the same shape and element type, and copies
        mean the same. Grids differ without that where a side is 1, or where another grid lists the same ranks.
        """
        return self == other or _alike(self, other)

    def is_counted(self, rank: int) -> bool:
        """Whether the local tensor of `rank` counts in the pairing: of invariant copies, the first does."""
        partition = self.layout.partition
        return partition.is_active(rank) and all(
            i == 0 or entry is not LocalType.INVARIANT
            for i, entry in zip(partition.index(rank), self.types, strict=True)
        )

    def __str__(self) -> str:
        types = {entry.value for entry in self.types} - {"varying"}
        kind = f" {'/'.join(entry.value for entry in self.types)}" if types else ""
        return f"{self.layout} {self.dtype}{kind}"


@lru_cache(maxsize=64)
def _alike(one: Tensor, other: Tensor) -> bool:
    mine, theirs = one.layout, other.layout
    return (
        (one.dtype, mine.shape) == (other.dtype, theirs.shape)
        and set(mine.partition.ranks) == set(theirs.partition.ranks)
        and all(mine.window(rank) == theirs.window(rank) for rank in mine.partition.ranks)
        and all(_together(one, kind) == _together(other, kind) for kind in _DUALS)
    )


def _together(tensor: Tensor, kind: LocalType) -> frozenset[frozenset[int]]:
    """The ranks that lie along one another in the dimensions of a local type; alone in no dimension but those."""
    partition = tensor.layout.partition
    dims = [dim for dim, entry in enumerate(tensor.types) if entry is kind and partition.shape[dim] > 1]
    if kind is LocalType.VARYING:
        return frozenset()  # what varying ranks hold follows from their windows
    return frozenset(frozenset(group.ranks) for group in partition.subpartitions(dims))


@dataclass(frozen=True)
class Space:
    """The named tensors that an operator reads or writes, in order.

    ``Space(layout, dtype="float32")`` has one tensor; ``Space(Tensor(...), Tensor(...))`` has several. A
    layout among the arguments stands for a tensor of the given dtype and types.

    Raises `ValueError` for repeated names.
    """

    tensors: tuple[Tensor, ...]

    def __init__(
        self,
        *tensors: Layout | Tensor,
        dtype: str = "float64",
        types: Sequence[LocalType | str] = (),
        name: str = "x",
    ) -> None:
        given: tuple[object, ...] = tensors
        if wrong := [entry for entry in given if not isinstance(entry, Layout | Tensor)]:
            raise TypeError(f"tensors: {wrong[0]!r} is neither a Layout nor a Tensor")
        if isinstance(types, str):
            raise TypeError(
                f"types: {types!r} is one string; give one local type for each partition dimension"
            )
        entries = tuple(
            Tensor(entry, dtype, tuple(LocalType(t) for t in types), name)
            if isinstance(entry, Layout)
            else entry
            for entry in tensors
        )
        names = [entry.name for entry in entries]
        if len(set(names)) != len(names):
            raise ValueError(f"tensors: the names {names} are not distinct; give each tensor its own name")
        object.__setattr__(self, "tensors", entries)

    def fits(self, other: Space) -> bool:
        """Whether an element of one is an element of the other, tensor by tensor; see :meth:`Tensor.fits`."""
        return len(self.tensors) == len(other.tensors) and all(
            mine.fits(theirs) for mine, theirs in zip(self.tensors, other.tensors, strict=True)
        )

    @cached_property
    def dual(self) -> Space:
        """The space of cotangents."""
        return Space(*(tensor.dual for tensor in self.tensors))

    @property
    def is_complex(self) -> bool:
        """Whether the field is the complex numbers: some tensor is complex."""
        return any(tensor.element.is_complex for tensor in self.tensors)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that are active in some tensor's partition."""
        return frozenset(rank for tensor in self.tensors for rank in tensor.layout.partition.ranks)

    @property
    def dimension(self) -> int:
        """The number of basis vectors: elements of all local tensors, those declared equal counted once."""
        return self._offsets[1]

    def offset(self, tensor: int, rank: int) -> int | None:
        """Where the basis vectors of a local tensor start, in row-major order; `None` for an inactive rank.

        Local tensors that are declared equal share their basis vectors: a replicated or invariant one stands
        on all its ranks at once, a varying or partial one on one.
        """
        return self._offsets[0].get((tensor, rank))

    @shared_property
    def _offsets(self) -> tuple[dict[tuple[int, int], int], int]:
        offsets: dict[tuple[int, int], int] = {}
        end = 0
        for position, tensor in enumerate(self.tensors):
            for rank in tensor.layout.partition.ranks:
                if tensor.groups[rank] == rank:
                    offsets[position, rank] = end
                    end += tensor.layout.local_size(rank)
            for rank, first in tensor.groups.items():
                offsets[position, rank] = offsets[position, first]
        return offsets, end

    def __str__(self) -> str:
        if len(self.tensors) == 1:
            return str(self.tensors[0])
        return ", ".join(f"{tensor.name}: {tensor}" for tensor in self.tensors)
