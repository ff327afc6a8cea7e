"""Hints on the kind of a fault, and on the declaration that would make it coherent: from numbers alone, or none.

A hint states a relation that holds of all numbers that differ, such as "twice what it should be, on two ranks". Where no
relation holds of them all, or where chance could have made it, there is no hint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final

import numpy as np

from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.typing import NumpyArray

__all__ = [
    "FaultKind",
    "Hint",
    "declaration_hint",
    "hint_beside_right_entries",
    "matrix_hint",
    "narrowing_hint",
    "value_hint",
]


class FaultKind(StrEnum):
    """The kinds of fault that hints tell apart."""

    TIMES_RANKS = "times the number of ranks"
    BY_RANKS = "divided by the number of ranks"
    DOUBLED = "doubled"
    HALVED = "halved"
    SIGN = "wrong sign"
    CONJUGATE = "conjugate"
    REAL_PART = "imaginary part dropped"
    NARROWED = "narrower element type"
    ZERO_RANK = "zero on one rank"
    SUM_DROPPED = "sum dropped"
    MISSING = "missing"
    EXTRA = "not due"
    MISPLACED = "misplaced"
    STRIDES = "memory order"
    IMAGINARY = "imaginary part"
    KEPT = "kept from earlier calls"


@dataclass(frozen=True)
class Hint:
    """A kind of fault, and the relation that tells of it."""

    kind: FaultKind
    text: str


_LEAST_VALUE: Final = 1000.0
"""Random integers up to it or more do not agree by chance, where a dozen are compared."""


def value_hint(
    got: NumpyArray, want: NumpyArray, ranks: NumpyArray, size: int, allowed: float = 0.0
) -> Hint | None:
    """The hint on values of elements, which `ranks` hold, of `size` ranks in all; differences up to `allowed` are none.

    The values are random, so that equal ones belong together.
    """
    got, want = np.asarray(got, np.complex128), np.asarray(want, np.complex128)
    if not (np.isfinite(got).all() and np.isfinite(want).all()):
        return None
    # Small integers, and values near the tolerance, agree by chance.
    if np.abs(want).max(initial=0.0) < (100 * allowed if allowed else _LEAST_VALUE):
        return None
    hint = _relation(got, want, ranks, size, allowed)
    if hint is not None and hint.kind is not FaultKind.EXTRA:
        return hint
    wrong = np.abs(got - want) > allowed
    moved = got[wrong]
    telling = moved[np.abs(moved) > max(_LEAST_VALUE, 10 * allowed)]
    if telling.size and telling.size == np.count_nonzero(moved) and _all_among(telling, want, allowed):
        return Hint(
            FaultKind.MISPLACED,
            "the wrong elements hold values that are due at other elements",
        )
    return hint


def _all_among(values: NumpyArray, pool: NumpyArray, allowed: float) -> bool:
    return all(bool((np.abs(pool - value) <= allowed).any()) for value in values[:100])


def _relation(got: NumpyArray, want: NumpyArray, ranks: NumpyArray, size: int, allowed: float) -> Hint | None:
    """The relation that all numbers that differ have to those that are due."""
    wrong = np.abs(got - want) > allowed
    if not wrong.any():
        return None
    g, w = got[wrong], want[wrong]

    def all_are(other: NumpyArray) -> bool:
        return bool((np.abs(g - other) <= allowed + 1e-12 * np.abs(other)).all())

    if allowed == 0 and (np.abs(w) > 1e4).all() and (np.abs(g - w) < 2.0**-7 * np.abs(w)).all():
        return Hint(FaultKind.NARROWED, "right but for rounding: a narrower element type on the way")
    if np.iscomplexobj(w) and w.imag.any():
        if all_are(np.conj(w)):
            return Hint(FaultKind.CONJUGATE, "the conjugate of what is due")
        if all_are(w.real.astype(np.complex128)):
            return Hint(FaultKind.REAL_PART, "the real part of what is due: the imaginary part is dropped")
    if (np.abs(w) > 10 * allowed).all():
        for factor, kind, text in _factors(size):
            if all_are(factor * w):
                return Hint(kind, text)
    if not g.any():
        return _zero(want, wrong, ranks)
    if not w.any():
        return Hint(FaultKind.EXTRA, "something where nothing is due")
    return None


def _factors(size: int) -> Iterator[tuple[float, FaultKind, str]]:
    yield -1.0, FaultKind.SIGN, "the negative of what is due"
    if size > 1:
        yield float(size), FaultKind.TIMES_RANKS, f"{size} times what is due, on {size} ranks"
        yield 1 / size, FaultKind.BY_RANKS, f"1/{size} of what is due, on {size} ranks"
    yield 2.0, FaultKind.DOUBLED, "twice what is due"
    yield 0.5, FaultKind.HALVED, "half of what is due"


def _zero(want: NumpyArray, wrong: NumpyArray, ranks: NumpyArray) -> Hint:
    due = want != 0
    empty = sorted({int(rank) for rank in ranks[wrong]})
    others_are_right = bool((due & ~wrong).any())
    if len(empty) == 1 and others_are_right and not (due & ~wrong & (ranks == empty[0])).any():
        return Hint(FaultKind.ZERO_RANK, f"all is zero on rank {empty[0]}, and right elsewhere")
    return Hint(FaultKind.MISSING, "zero where something is due")


def matrix_hint(
    got: NumpyArray, want: NumpyArray, row_ranks: Sequence[int], column_ranks: Sequence[int]
) -> Hint | None:
    """The hint on a matrix (row, column) in comparison with the one that is due; rows and columns belong to ranks."""
    got, want = np.asarray(got, np.complex128), np.asarray(want, np.complex128)
    if got.shape != want.shape or not (np.isfinite(got).all() and np.isfinite(want).all()):
        return None
    size = len({*row_ranks, *column_ranks})
    columns = np.broadcast_to(np.asarray(column_ranks), got.shape)
    hint = _relation(got, want, columns, size, 0.0)
    if hint is None or hint.kind is FaultKind.EXTRA:
        if _is_permuted(got, want):
            return Hint(FaultKind.MISPLACED, "the same entries in other places")
        return hint
    if hint.kind in (FaultKind.MISSING, FaultKind.ZERO_RANK) and _drops_summands(got, want):
        return Hint(FaultKind.SUM_DROPPED, "some of the terms of a sum are missing, and the others are right")
    return hint


def _is_permuted(got: NumpyArray, want: NumpyArray) -> bool:
    """Return True if the entries that differ are the same numbers on both sides, in other places."""
    wrong = got != want
    return bool(np.array_equal(np.sort_complex(got[wrong]), np.sort_complex(want[wrong])))


def _drops_summands(got: NumpyArray, want: NumpyArray) -> bool:
    """Return True if each column (or each row) that differs has kept some of several entries."""
    for one, other in ((got, want), (got.T, want.T)):
        wrong = (one != other).any(axis=0)
        kept = ((one == other) & (other != 0))[:, wrong].sum(axis=0)
        due = (other != 0)[:, wrong].sum(axis=0)
        if ((due > 1) & (kept > 0)).all():
            return True
    return False


def narrowing_hint(error: float, size: float) -> Hint | None:
    """The hint on the error of an inner product of that size, of integers, which nothing should have rounded."""
    if 0 < error < 2.0**-8 * size:
        return Hint(FaultKind.NARROWED, "right but for rounding: a narrower element type on the way")
    return None


def hint_beside_right_entries(orders: Sequence[str], is_complex: bool) -> Hint | None:
    """The hint on a case in which random vectors fail, in these memory orders, though every entry of the matrix is right.

    Entries are asked for with real basis vectors in row-major memory.
    """
    if unusual := [order for order in orders if order != "row-major"]:
        return Hint(
            FaultKind.STRIDES,
            f"right where the argument is row-major in memory, and wrong where it is {' or '.join(unusual)}",
        )
    if is_complex:
        return Hint(FaultKind.IMAGINARY, "right for real arguments, and wrong for complex ones")
    return None


# Declarations

_SOURCES: Final = (LocalType.VARYING, LocalType.REPLICATED, LocalType.INVARIANT)
_TARGETS: Final = (LocalType.VARYING, LocalType.PARTIAL, LocalType.INVARIANT)


def declaration_hint(domain: Space, codomain: Space, forward: NumpyArray, adjoint: NumpyArray) -> str:
    """The declaration under which the two directions would be adjoint, as "y were declared invariant"; "" if none is clear.

    `forward` and the transposed `adjoint` are the whole matrices (row, column) between spaces that are varying throughout: then
    they say what each single copy does, and so what the operator is under other local types. Tried are types along the dimensions of
    the partition whose ranks hold copies.
    """
    if len(domain.tensors) != 1 or len(codomain.tensors) != 1:
        return ""
    x, y = domain.tensors[0], codomain.tensors[0]
    if any(entry is not LocalType.VARYING for entry in (*x.types, *y.types)):
        return ""
    sources, targets = (
        (_SOURCES if _has_copies(x) else _SOURCES[:1]),
        (_TARGETS if _has_copies(y) else _TARGETS[:1]),
    )
    found = []
    for of_x, of_y in product(sources, targets):
        if (of_x, of_y) != (LocalType.VARYING, LocalType.VARYING) and _is_coherent(
            x, y, of_x, of_y, forward, adjoint
        ):
            changed = [(x.name, of_x), (y.name, of_y)]
            found.append([(name, each) for name, each in changed if each is not LocalType.VARYING])
    fewest = min(map(len, found), default=0)
    smallest = [
        " and ".join(f"{name} were declared {each.value}" for name, each in one)
        for one in found
        if len(one) == fewest
    ]
    # Two declarations that would both do say that the case is too small to tell.
    return smallest[0] if len(smallest) == 1 else ""


def _has_copies(tensor: Tensor) -> bool:
    copied = zip(tensor.layout.copied, tensor.layout.partition.shape, strict=True)
    return any(is_copied and side > 1 for is_copied, side in copied)


def _is_coherent(
    x: Tensor, y: Tensor, of_x: LocalType, of_y: LocalType, forward: NumpyArray, adjoint: NumpyArray
) -> bool:
    """Return True if the matrices are those of a pair under these types of the copies of x and of y."""
    columns, rows = _groups(x), _groups(y)
    left, right = forward, adjoint  # (row, column), the second transposed
    if of_y is LocalType.INVARIANT:
        # Copies of the result are equal and count once; a cotangent is the same on all of them.
        if not _all_equal(left, rows):
            return False
        left, right = left[[group[0] for group in rows]], _added(right, rows)
    elif of_y is LocalType.PARTIAL:
        left, right = _added(left, rows), _added(right, rows)
    if of_x is LocalType.REPLICATED:
        left, right = _added(left.T, columns).T, _added(right.T, columns).T
    elif of_x is LocalType.INVARIANT:
        if not _all_equal(right.T, columns):
            return False
        left, right = _added(left.T, columns).T, right[:, [group[0] for group in columns]]
    return bool(np.array_equal(left, right)) and bool(left.any())


def _groups(tensor: Tensor) -> list[list[int]]:
    """Basis vectors of a varying tensor that stand on copies of one element, for each element."""
    layout, start = tensor.layout, 0
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in layout.partition.ranks:
        shape = layout.local_shape(rank)
        for number, local in enumerate(np.ndindex(*shape)):
            place = layout.partition.index(rank)
            cut = tuple(i for i, copied in zip(place, layout.copied, strict=True) if not copied)
            found.setdefault((*cut, -1, *layout.to_global(rank, local)), []).append(start + number)
        start += layout.local_size(rank)
    return list(found.values())


def _added(matrix: NumpyArray, groups: Sequence[Sequence[int]]) -> NumpyArray:
    return np.array([matrix[list(group)].sum(axis=0) for group in groups])


def _all_equal(matrix: NumpyArray, groups: Sequence[Sequence[int]]) -> bool:
    return all(bool((matrix[list(group)] == matrix[group[0]]).all()) for group in groups)
