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

So the pairing is the Euclidean one over all memory, except that an invariant copy counts once. The local types determine the
adjoint of a data movement: an all-reduce from partial to invariant has the identity as its adjoint, one from varying
to varying an all-reduce (docs/local-types.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from adjointlab.core import arrays
from adjointlab.core.arrays import Dtype, dtype
from adjointlab.core.layout import Layout
from adjointlab.core.partition import entries, shared_property
from adjointlab.core.placements import placed
from adjointlab.pictures.drawable import Drawable
from adjointlab.spelling import described_type, did_you_mean
from adjointlab.typing import DtypeLike

if TYPE_CHECKING:
    from adjointlab.pictures.model import Drawing

__all__ = ["LocalType", "Space", "Tensor", "needs_messages"]


class LocalType(Enum):
    """Relation between the values that the ranks along one partition dimension hold."""

    VARYING = "varying"
    REPLICATED = "replicated"
    PARTIAL = "partial"
    INVARIANT = "invariant"

    @classmethod
    def _missing_(cls, value: object) -> LocalType:
        known = [entry.value for entry in cls]
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ValueError(f"types: {value!r} is not one of {', '.join(known)}{near}")

    @property
    def dual(self) -> LocalType:
        """The local type of a cotangent."""
        return _DUALS[self]

    @property
    def is_shared(self) -> bool:
        """True if the ranks hold the same values."""
        return self in (LocalType.REPLICATED, LocalType.INVARIANT)

    def __repr__(self) -> str:
        return f"LocalType.{self.name}"  # as Python reads it back


# Gradients lie in the dual of a space. If every rank goes on to use its copy differently (replicated), each has its own
# contribution to the gradient, and only their sum has a meaning (partial); and vice versa. If all use it in the same way
# (invariant), the gradients are copies too.
_DUALS = {
    LocalType.VARYING: LocalType.VARYING,
    LocalType.REPLICATED: LocalType.PARTIAL,
    LocalType.PARTIAL: LocalType.REPLICATED,
    LocalType.INVARIANT: LocalType.INVARIANT,
}


@dataclass(frozen=True)
class Tensor:
    """One distributed tensor: a layout, an element type, and a local type for each dimension of its partition.

    `dtype` is stored by its name. `types` defaults to varying everywhere, [Hewett21]'s view. Its entries may be strings. `name`
    names the buffers of a specification; equality ignores it.

    Raises `ValueError` unless there are as many types as partition dimensions, for a type other than varying along a
    dimension whose workers hold different windows, and for an empty name; `TypeError` if `layout` is not a Layout or `types` is
    one string.
    """

    layout: Layout
    dtype: str = "float64"
    types: tuple[LocalType, ...] = ()
    name: str = field(default="x", compare=False)

    def __post_init__(self) -> None:
        given: object = self.layout
        if not isinstance(given, Layout):
            raise TypeError(f"layout: {given!r} is not a Layout")
        object.__setattr__(self, "dtype", dtype(self.dtype).name)
        check_name(self.name)
        order = self.layout.partition.order
        types = _local_types(self.types)
        if not types:
            object.__setattr__(self, "types", (LocalType.VARYING,) * order)
            return  # nearly always
        if len(types) != order:
            raise ValueError(
                f"types: a partition of order {order} needs {order} local types, "
                f"not {[t.value for t in types]}"
            )
        # "The same values" and "summands of one value" have no meaning for local tensors that are different parts of the global one.
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
        """For each active rank, the first rank of the grid whose local tensor is declared equal to its own."""
        return self._first_along([entry.is_shared for entry in self.types])

    @shared_property
    def summands(self) -> dict[int, int]:
        """For each active rank, the first rank of the grid that holds a summand of the same value."""
        return self._first_along([entry is LocalType.PARTIAL for entry in self.types])

    def _first_along(self, dims: Sequence[bool]) -> dict[int, int]:
        """Return, by active rank, the rank at its grid index with 0 in the partition dimensions for which `dims` is true."""
        partition = self.layout.partition
        return {
            rank: partition.rank(
                [0 if chosen else i for i, chosen in zip(partition.index(rank), dims, strict=True)]
            )
            for rank in partition.ranks
        }

    def fits(self, other: Tensor) -> bool:
        """Return True if the local tensors of one are those of the other, whatever the grids of their partitions.

        They are if every rank holds the same window of a global tensor of the same shape and element type, and copies have the
        same meaning. The grids may differ in sides of 1, or list the same ranks in another shape.
        """
        given: object = other
        if not isinstance(given, Tensor):
            raise TypeError(f"other: {described_type(given)} is not an adjointlab.Tensor")
        return self == other or _are_alike(self, other)

    def is_counted(self, rank: int) -> bool:
        """Return True if the local tensor of `rank` counts in the pairing: of invariant copies, only the first does."""
        partition = self.layout.partition
        if LocalType.INVARIANT not in self.types or not partition.is_active(rank):
            return partition.is_active(rank)
        return all(
            not i or entry is not LocalType.INVARIANT
            for i, entry in zip(partition.index(rank), self.types, strict=True)
        )

    def copy_key(self, rank: int) -> int:
        """Number the copies of an element: the grid index of an active rank along the dimensions where copies differ.

        They differ along a dimension whose ranks may hold different values for the same element.
        """
        known = self._copy_keys.get(rank)
        return known if known is not None else self._numbered(rank)

    def _numbered(self, rank: int) -> int:
        key = 0
        partition, overlapping = self.layout.partition, self.layout.overlapping
        for i, side, overlap, entry in zip(
            partition.index(rank), partition.shape, overlapping, self.types, strict=True
        ):
            key = key * side + (i if overlap and not entry.is_shared else 0)
        self._copy_keys[rank] = key
        return key

    @cached_property
    def _copy_keys(self) -> dict[int, int]:
        """Cache of the copy keys, by rank."""
        return {}

    def __str__(self) -> str:
        return f"{self.layout} {self._kind}"

    @property
    def without_workers(self) -> str:
        """The text of the tensor, without the ranks that hold its windows."""
        return f"{self.layout.without_workers} {self._kind}"

    @property
    def over_partition(self) -> str:
        """The text of the tensor, with its partition in place of the ranks that hold its windows."""
        return f"{self.without_workers} over {self.layout.partition}"

    @property
    def _kind(self) -> str:
        types = {entry.value for entry in self.types} - {"varying"}
        return self.dtype + (f" {'/'.join(entry.value for entry in self.types)}" if types else "")


def _local_types(types: Sequence[LocalType | str]) -> tuple[LocalType, ...]:
    if isinstance(types, str):
        raise TypeError(f"types: {types!r} is one string; give one local type for each partition dimension")
    return tuple(
        [
            LocalType(entry)
            for entry in entries("types", types, "a local type for each dimension of the partition")
        ]
    )


def check_name(name: object) -> None:
    """Raise `TypeError` for a tensor's name that is not a string, and `ValueError` for an empty one, which reports could not print."""
    if not isinstance(name, str):
        raise TypeError(f"name: {name!r} is not a string")
    if not name:
        raise ValueError("name: it is empty; give the tensor a name, or leave it out for x")


def _refuse_others(tensors: Sequence[Tensor], dtype: str, types: tuple[LocalType, ...]) -> None:
    """Raise `ValueError` if a tensor differs from an element type or local types that were given although no layout needs them."""
    for tensor in tensors:
        if types and tensor.types != types:
            given = f"types={[entry.value for entry in types]}"
        elif dtype not in (tensor.dtype, "float64"):  # the default may not have been given
            given = f"dtype={dtype!r}"
        else:
            continue
        raise ValueError(
            f"{given} is for layouts among the arguments, and the Tensor {tensor.name} has its own: write Tensor(layout, {given})"
        )


# Every rank makes equal tensors; as one object they share what it caches.
@lru_cache(maxsize=64)
def _tensor(layout: Layout, dtype: str, types: tuple[LocalType, ...], name: str) -> Tensor:
    return Tensor(layout, dtype, types, name)


@lru_cache(maxsize=64)  # linear in the number of ranks, and every rank calls it when it composes operators
def _are_alike(tensor: Tensor, other: Tensor) -> bool:
    layout, other_layout = tensor.layout, other.layout
    return (
        (tensor.dtype, layout.shape) == (other.dtype, other_layout.shape)
        and all(layout.window(rank) == other_layout.window(rank) for rank in layout.partition.ranks)
        # The values of varying ranks follow from their windows, which have been compared. The groups of any type contain all ranks,
        # so this compares the sets of ranks too.
        and all(
            _groups_of_type(tensor, local_type) == _groups_of_type(other, local_type)
            for local_type in LocalType
            if local_type is not LocalType.VARYING
        )
    )


def _groups_of_type(tensor: Tensor, local_type: LocalType) -> frozenset[frozenset[int]]:
    """Return the groups of ranks that differ only in grid dimensions of `local_type`."""
    partition = tensor.layout.partition
    dims = [
        dim for dim, entry in enumerate(tensor.types) if entry is local_type and partition.shape[dim] >= 2
    ]
    return frozenset(frozenset(group.ranks) for group in partition.subpartitions(dims))


@dataclass(frozen=True)
class Space(Drawable):
    """The named tensors that an operator reads or writes, in order.

    ``Space(layout, dtype="float32")`` has one tensor; ``Space(Tensor(...), Tensor(...))`` has several. A layout among the
    arguments stands for a tensor with the given `types` and `dtype` (a name, or a type of NumPy, torch or JAX).

    Raises `ValueError` for repeated names, and for a dtype or types if all arguments are tensors, which have their own;
    `TypeError` for an argument that is neither a layout nor a tensor.
    """

    tensors: tuple[Tensor, ...]

    def __init__(
        self,
        *tensors: Layout | Tensor,
        dtype: DtypeLike = "float64",
        types: Sequence[LocalType | str] = (),
        name: str = "x",
    ) -> None:
        given: tuple[object, ...] = tensors
        if wrong := [entry for entry in given if not isinstance(entry, Layout | Tensor)]:
            raise TypeError(
                f"tensors: {wrong[0]!r} is neither a Layout nor a Tensor; a Layout says which ranks hold which part of a shape, "
                "such as Layout((3,), Partition((2,)))"
            )
        check_name(name)
        local_types, element = _local_types(types), arrays.dtype(dtype).name
        all_tensors = tuple(
            _tensor(entry, element, local_types, name) if isinstance(entry, Layout) else entry
            for entry in tensors
        )
        if not any(isinstance(entry, Layout) for entry in tensors):
            _refuse_others(all_tensors, element, local_types)
        names = [tensor.name for tensor in all_tensors]
        if len(names) > 1 and len(set(names)) != len(names):
            raise ValueError(f"tensors: the names {names} are not distinct; give each tensor its own name")
        object.__setattr__(self, "tensors", all_tensors)

    @classmethod
    def of_dtensor(
        cls,
        mesh: Any,
        placements: Sequence[object],
        shape: Sequence[int],
        dtype: DtypeLike = "float64",
        name: str = "x",
    ) -> Space:
        """The space of a DTensor of global `shape` with `placements` on `mesh`, a DeviceMesh or the shape of one.

        ``Shard`` cuts as ``torch.chunk`` does. ``Replicate`` is invariant and ``Partial`` partial, as DTensor places gradients by
        default (``docs/local-types.md``). The name of a local type is accepted as a placement, as in ``["replicated", Shard(0)]``.
        Raises `ValueError` for placements that cannot hold the tensor.
        """
        layout, types = placed(mesh, placements, shape)
        return cls(layout, dtype=dtype, types=types, name=name)

    def fits(self, other: Space) -> bool:
        """Return True if an element of one is an element of the other, tensor by tensor; see :meth:`Tensor.fits`."""
        given: object = other
        if not isinstance(given, Space):
            raise TypeError(f"other: {described_type(given)} is not an adjointlab.Space")
        return len(self.tensors) == len(other.tensors) and all(map(Tensor.fits, self.tensors, other.tensors))

    @cached_property
    def dual(self) -> Space:
        """The space of cotangents."""
        # Shared by all ranks. The names are a part of the key because equality of spaces ignores them.
        return _dual(self, tuple([tensor.name for tensor in self.tensors]))

    @property
    def is_complex(self) -> bool:
        """True if the field is the complex numbers: some tensor is complex."""
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
        """Return the index of the first basis vector of a local tensor; `None` for an inactive rank.

        The others follow in row-major order. Local tensors that are declared equal share their basis vectors: a replicated or
        invariant basis vector is 1 on all its ranks at once, a varying or partial one on one rank.
        """
        return self._offsets[0].get((tensor, rank))

    @shared_property
    def _offsets(self) -> tuple[dict[tuple[int, int], int], int]:
        offsets: dict[tuple[int, int], int] = {}
        end = 0
        for position, tensor in enumerate(self.tensors):
            # One run of basis vectors for each group of local tensors that are declared equal, at the first of its ranks.
            for rank in tensor.layout.partition.ranks:
                if tensor.groups[rank] == rank:
                    offsets[position, rank] = end
                    end += tensor.layout.local_size(rank)
            for rank, first in tensor.groups.items():
                offsets[position, rank] = offsets[position, first]
        return offsets, end

    @shared_property
    def coordinate_rows(self) -> dict[tuple[int, int], slice]:
        """The coordinates of an element to which a local tensor adds its entries, by (position of the tensor, rank).

        Coordinates are the pairings with the basis of the dual. There is no entry for a local tensor that adds nothing: an empty
        one, or an invariant copy other than the first.
        """
        rows = {}
        for position, tensor in enumerate(self.tensors):
            for rank in tensor.layout.partition.ranks:
                start, size = self.dual.offset(position, rank), tensor.layout.local_size(rank)
                if start is not None and size and tensor.is_counted(rank):
                    rows[position, rank] = slice(start, start + size)
        return rows

    def drawing(self) -> Drawing:
        """Return the tensors as a drawing."""
        from adjointlab.pictures.layouts import space_drawing

        return space_drawing(self)

    def __str__(self) -> str:
        if len(self.tensors) == 1:
            (tensor,) = self.tensors
            return str(tensor)
        return ", ".join(f"{tensor.name}: {tensor}" for tensor in self.tensors)


@lru_cache(maxsize=256)
def _dual(space: Space, names: tuple[str, ...]) -> Space:
    return Space(*(tensor.dual for tensor in space.tensors))


def needs_messages(domain: Space, codomain: Space, *, goes_back: bool = True) -> bool:
    """Return True if, without messages, some part of the result of a map between these spaces could only be constant.

    That is so if a rank holds elements of the result but none of the argument, or if copies of a result are declared equal on
    ranks that share nothing of the argument. With `goes_back` the same is asked of the adjoint.
    """
    if _has_parts_from_elsewhere(domain, codomain):
        return True
    return goes_back and _has_parts_from_elsewhere(codomain.dual, domain.dual)


def _has_parts_from_elsewhere(argument: Space, result: Space) -> bool:
    holders = _holders(argument.tensors)
    # A summand of a rank that holds nothing of the argument is zero.
    whole = [tensor for tensor in result.tensors if LocalType.PARTIAL not in tensor.types]
    if _holders(whole) - holders:
        return True
    for tensor in result.tensors:
        for rank, first in tensor.groups.items():
            shares = any(
                rank in other.groups and other.groups[rank] == other.groups.get(first)
                for other in argument.tensors
            )
            if rank != first and tensor.layout.local_size(rank) and not shares:
                return True
    return False


def _holders(tensors: Iterable[Tensor]) -> set[int]:
    """Ranks that hold an element of some tensor."""
    return {
        rank for tensor in tensors for rank in tensor.layout.partition.ranks if tensor.layout.local_size(rank)
    }
