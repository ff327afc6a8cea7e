"""The declaration under which the two directions of an operator would be adjoint, derived from their matrices.

The matrices of a space with varying tensors have a row or column for each single copy, so they also give the operator for other
declarations of the copies. Nothing runs again: other local types add up rows or columns of copies, or require them to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

import numpy as np

from adjointlab.core.space import LocalType, Space
from adjointlab.typing import NumpyArray

__all__ = ["declaration_hint"]

_SOURCES: Final = (LocalType.REPLICATED, LocalType.INVARIANT)
_TARGETS: Final = (LocalType.PARTIAL, LocalType.INVARIANT)

_MOST: Final = 32
"""Largest number of declarations that are tried: each costs a few sums of matrices of 2**16 entries."""


@dataclass(frozen=True)
class _Redeclared:
    """A varying tensor of a space that has copies, and the local type that is tried instead."""

    space: Space
    is_domain: bool
    position: int
    declared: LocalType

    @property
    def name(self) -> str:
        return self.space.tensors[self.position].name

    def name_among(self, names: Sequence[str]) -> str:
        """The name of the tensor, with its space if it occurs more than once among these `names`."""
        side = "domain" if self.is_domain else "codomain"
        return self.name if names.count(self.name) == 1 else f"{self.name} ({side})"

    def groups(self) -> list[list[int]]:
        """Groups of basis vectors that count as one: those of the copies of one element of this tensor, and every other by itself."""
        of_copies = _copies(self.space, self.position)
        within = {vector for group in of_copies for vector in group}
        alone = [[vector] for vector in range(self.space.dimension) if vector not in within]
        return sorted([*of_copies, *alone])


def declaration_hint(domain: Space, codomain: Space, forward: NumpyArray, adjoint: NumpyArray) -> str:
    """The declaration under which the two directions would be adjoint, as "y were declared invariant" or "x (codomain) ..."; "" if none is clear.

    `forward` and the transposed `adjoint` are the whole matrices (row, column). Other types are tried for one tensor at a time, which
    must be varying throughout and have copies; and for two tensors at once, one of each space, if neither space has another.
    """
    of_domain, of_codomain = list(_redeclared(domain, True)), list(_redeclared(codomain, False))
    single: Iterator[tuple[_Redeclared, ...]] = ((each,) for each in (*of_domain, *of_codomain))
    found = [each for each in islice(single, _MOST) if _are_coherent(each, forward, adjoint)]
    if not (found or domain.tensors[1:] or codomain.tensors[1:]):
        pairs = product(of_domain, of_codomain)
        found = [each for each in pairs if _are_coherent(each, forward, adjoint)]
    # If two declarations would do, the case is too small to tell.
    if len(found) != 1:
        return ""
    names = [tensor.name for space in (domain, codomain) for tensor in space.tensors]
    return " and ".join(f"{each.name_among(names)} were declared {each.declared.value}" for each in found[0])


def _redeclared(space: Space, is_domain: bool) -> Iterator[_Redeclared]:
    for position, tensor in enumerate(space.tensors):
        copied = zip(tensor.layout.copied, tensor.layout.partition.shape, strict=True)
        has_copies = any(is_copied and side > 1 for is_copied, side in copied)
        if has_copies and all(entry is LocalType.VARYING for entry in tensor.types):
            for declared in _SOURCES if is_domain else _TARGETS:
                yield _Redeclared(space, is_domain, position, declared)


def _are_coherent(changes: Sequence[_Redeclared], forward: NumpyArray, adjoint: NumpyArray) -> bool:
    """Return True if the matrices are adjoint under these types of copies."""
    left, right = forward, adjoint  # (row, column), the second transposed
    for change in changes:
        if change.is_domain:
            swapped = _merged(right.T, left.T, change.groups(), change.declared)
            if swapped is None:
                return False
            right, left = (each.T for each in swapped)
        else:
            merged = _merged(left, right, change.groups(), change.declared)
            if merged is None:
                return False
            left, right = merged
    return bool(np.array_equal(left, right)) and bool(left.any())


def _merged(
    results: NumpyArray, arguments: NumpyArray, groups: Sequence[Sequence[int]], declared: LocalType
) -> tuple[NumpyArray, NumpyArray] | None:
    """The matrices with the rows of each group merged: of the direction whose results they are, and of the other direction.

    `None` if results differ that are declared equal.
    """
    if declared is LocalType.INVARIANT:
        # Copies of the result are equal and count once; an argument is the same on all of them.
        firsts = [first for first, *_ in groups]
        if not all(
            bool((results[list(group)] == results[first]).all())
            for first, group in zip(firsts, groups, strict=True)
        ):
            return None
        return results[firsts], _added(arguments, groups)
    # The summands of a partial result, and equal arguments of the other direction; the other way round for a replicated argument.
    return _added(results, groups), _added(arguments, groups)


def _copies(space: Space, position: int) -> list[list[int]]:
    """For each element of a varying tensor, the basis vectors of its copies."""
    layout = space.tensors[position].layout
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in layout.partition.ranks:
        start = space.offset(position, rank)
        assert start is not None
        place = layout.partition.index(rank)
        cut = tuple(i for i, copied in zip(place, layout.copied, strict=True) if not copied)
        for number, local in enumerate(np.ndindex(*layout.local_shape(rank))):
            found.setdefault((*cut, -1, *layout.to_global(rank, local)), []).append(start + number)
    return list(found.values())


def _added(matrix: NumpyArray, groups: Sequence[Sequence[int]]) -> NumpyArray:
    return np.array([matrix[list(group)].sum(axis=0) for group in groups])
