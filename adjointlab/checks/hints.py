"""Hints on the kind of a fault, derived from numbers only.

A hint states a relation that holds for all numbers that differ, such as "twice what it should be, on two ranks". If no
relation holds for all of them, or it could be chance, there is no hint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from adjointlab.typing import NumpyArray

__all__ = [
    "FaultKind",
    "Hint",
    "are_telling",
    "hint_beside_right_entries",
    "matrix_hint",
    "memory_order_hint",
    "mixed_orders_hint",
    "narrowing_hint",
    "scaled_alike_hint",
    "value_hint",
]


class FaultKind(StrEnum):
    """The kinds of fault that hints distinguish."""

    TIMES_RANKS = "times the number of ranks"
    BY_RANKS = "divided by the number of ranks"
    DOUBLED = "doubled"
    HALVED = "halved"
    MULTIPLE = "multiple"
    FRACTION = "fraction"
    TIMES_ROOT = "times the square root of the number of ranks"
    BY_ROOT = "divided by the square root of the number of ranks"
    SIGN = "wrong sign"
    CONJUGATE = "conjugate"
    REAL_PART = "imaginary part dropped"
    NARROWED = "narrower element type"
    ZERO_RANK = "zero on one rank"
    SUM_DROPPED = "sum dropped"
    MISSING = "missing"
    EXTRA = "extra"
    MISPLACED = "misplaced"
    STRIDES = "memory order"
    IMAGINARY = "imaginary part"
    KEPT = "stale state"
    ACCUMULATED = "accumulated gradients"
    OWN_PART = "local part only"
    UNEVEN = "uneven cuts"
    EMPTY = "empty parts"
    REPEATED = "repeated parameter"
    DECLARATION = "declaration"
    SCHEDULE = "interleaving"


@dataclass(frozen=True)
class Hint:
    """A kind of fault, and the relation that indicates it."""

    kind: FaultKind
    text: str


_NARROWED: Final = Hint(FaultKind.NARROWED, "right but for rounding: a narrower element type on the way")

_LEAST_VALUE: Final = 1000.0
"""Random integers of this size do not agree by chance when a dozen are compared."""


_MOST_VALUE: Final = 1e150
"""Larger numbers, infinities and NaN come from uninitialised memory or overflow."""


def value_hint(
    got: NumpyArray,
    want: NumpyArray,
    ranks: NumpyArray,
    size: int,
    allowed: float = 0.0,
    *,
    run_ranks: int = 0,
) -> Hint | None:
    """The hint on values of elements held by `ranks`, out of `size` ranks; differences up to `allowed` count as none.

    The values are random, so that equal ones belong together. `run_ranks` is the number of all ranks of the run, if some hold nothing
    of the tensor.
    """
    got, want = np.asarray(got, np.complex128), np.asarray(want, np.complex128)
    if not (np.abs(got) < _MOST_VALUE).all() or not (np.abs(want) < _MOST_VALUE).all():
        return None
    if not are_telling(want, 10 * allowed).any():
        return None
    hint = _relation(got, want, ranks, (size, max(size, run_ranks)), allowed)
    if hint is not None and hint.kind is not FaultKind.EXTRA:
        return hint
    if (scaled := _root_hint(((got, want),), size)) is not None:
        return scaled
    wrong = np.abs(got - want) > allowed
    moved = got[wrong]
    if are_telling(moved, allowed).any() and _all_among(moved[moved != 0], want, allowed):
        return Hint(FaultKind.MISPLACED, "the wrong elements hold values expected at other elements")
    return hint


def are_telling(values: NumpyArray, allowed: float) -> NumpyArray:
    """True for values that do not agree by chance: large integers, or fractions of many digits, well above the tolerance."""
    has_digits = np.asarray(256 * values != np.round(256 * values))
    return np.asarray((np.abs(values) > 10 * allowed) & ((np.abs(values) >= _LEAST_VALUE) | has_digits))


def _all_among(values: NumpyArray, pool: NumpyArray, allowed: float) -> bool:
    return all(bool((np.abs(pool - value) <= allowed).any()) for value in values[:100])


def _relation(
    got: NumpyArray, want: NumpyArray, ranks: NumpyArray, sizes: tuple[int, int], allowed: float
) -> Hint | None:
    """The relation of all numbers that differ to the expected ones; `sizes` are the arguments of :func:`_factors`."""
    wrong = np.abs(got - want) > allowed
    if not wrong.any():
        return None
    g, w = got[wrong], want[wrong]

    def all_are(other: NumpyArray) -> bool:
        return bool((np.abs(g - other) <= allowed + 1e-12 * np.abs(other)).all())

    if allowed == 0 and (np.abs(w) > 1e4).all() and (np.abs(g - w) < 2.0**-7 * np.abs(w)).all():
        return _NARROWED
    if w.imag.any():
        if all_are(np.conj(w)):
            return Hint(FaultKind.CONJUGATE, "the conjugate of the expected value")
        if all_are(w.real.astype(np.complex128)):
            return Hint(
                FaultKind.REAL_PART, "the real part of the expected value: the imaginary part is dropped"
            )
    if (np.abs(w) > 10 * allowed).all():
        for factor, kind, text in _factors(*sizes):
            if all_are(factor * w):
                return Hint(kind, text)
    if not g.any():
        return _zero(want, wrong, ranks)
    if not w.any():
        return Hint(FaultKind.EXTRA, "a value where zero is expected")
    return None


def _factors(size: int, run_ranks: int) -> Iterator[tuple[float, FaultKind, str]]:
    """Factors with their kinds: the number of ranks of the partition, of all ranks of the run, and numbers between.

    On two ranks, twice and times the number of ranks are the same: the kind is the one that holds in any case.
    """
    yield -1.0, FaultKind.SIGN, "the negative of the expected value"
    for ranks in sorted({size, run_ranks} - {0, 1, 2}):
        yield float(ranks), FaultKind.TIMES_RANKS, f"{ranks} times the expected value, on {ranks} ranks"
        yield 1 / ranks, FaultKind.BY_RANKS, f"1/{ranks} of the expected value, on {ranks} ranks"
    on_two = ", on 2 ranks" if 2 in (size, run_ranks) else ""
    yield 2.0, FaultKind.DOUBLED, f"twice the expected value{on_two}"
    yield 0.5, FaultKind.HALVED, f"half of the expected value{on_two}"
    for number in range(3, run_ranks):
        yield float(number), FaultKind.MULTIPLE, f"{number} times the expected value, on {run_ranks} ranks"
        yield 1 / number, FaultKind.FRACTION, f"1/{number} of the expected value, on {run_ranks} ranks"


def _zero(want: NumpyArray, wrong: NumpyArray, ranks: NumpyArray) -> Hint:
    right = set(ranks[np.where(wrong, 0, want) != 0].tolist())
    match sorted(set(ranks[wrong].tolist())):
        case [rank] if right and rank not in right:
            return Hint(FaultKind.ZERO_RANK, f"all is zero on rank {rank}, and right elsewhere")
    return Hint(FaultKind.MISSING, "zero where another value is expected")


def matrix_hint(
    got: NumpyArray, want: NumpyArray, row_ranks: Sequence[int], column_ranks: Sequence[int]
) -> Hint | None:
    """The hint on a matrix (row, column) in comparison with the expected one, whose rows and columns belong to these ranks."""
    got, want = np.asarray(got, np.complex128), np.asarray(want, np.complex128)
    if got.shape != want.shape or not (np.isfinite(got).all() and np.isfinite(want).all()):
        return None
    size = len({*row_ranks, *column_ranks})
    columns = np.broadcast_to(np.asarray(column_ranks), got.shape)
    hint = _relation(got, want, columns, (size, size), 0.0)
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
    return bool(wrong.any() and np.array_equal(np.sort_complex(got[wrong]), np.sort_complex(want[wrong])))


def _drops_summands(got: NumpyArray, want: NumpyArray) -> bool:
    """Return True if each column (or each row) that differs still has nonzero entries; those that differ are zero."""
    wrong = got != want
    return any(bool(np.asarray(got.any(axis))[wrong.any(axis)].all()) for axis in (0, 1))


def scaled_alike_hint(
    forward: tuple[NumpyArray, NumpyArray], adjoint: tuple[NumpyArray, NumpyArray], size: int
) -> Hint | None:
    """The hint on two directions, each (actual, specified), that are both scaled by the square root of the number of ranks, `size`.

    Such directions are each other's adjoints: only their specification shows the factor. Other hints cover factors that are
    integers or their inverses.
    """
    hint = _root_hint((forward, adjoint), size)
    return None if hint is None else Hint(hint.kind, f"{hint.text}, in both directions")


def _root_hint(pairs: Sequence[tuple[NumpyArray, NumpyArray]], size: int) -> Hint | None:
    root = float(np.sqrt(size))
    if root.is_integer():
        return None
    for factor, kind, text in (
        (root, FaultKind.TIMES_ROOT, f"√{size} times"),
        (1 / root, FaultKind.BY_ROOT, f"1/√{size} of"),
    ):
        if all(_is_scaled(got, want, factor) for got, want in pairs):
            return Hint(kind, f"{text} the expected value, on {size} ranks")
    return None


_IRRATIONAL: Final = 2.0**-20
"""Tolerance for an irrational factor in single precision, and for products with it; half precision gets no hint."""


def _is_scaled(got: NumpyArray, want: NumpyArray, factor: float) -> bool:
    """Return True if all entries that differ are the expected ones times the factor, which is irrational and so rounded."""
    wrong = got != want
    if not wrong.any() or not (want[wrong] != 0).all():
        return False
    with np.errstate(all="ignore"):
        return bool((np.abs(got[wrong] / want[wrong] - factor) <= _IRRATIONAL * factor).all())


def narrowing_hint(error: float, size: float) -> Hint | None:
    """The hint on the error of an inner product of that size of integers, which should not have been rounded."""
    if 0 < error < 2.0**-8 * size:
        return _NARROWED
    return None


def memory_order_hint(orders: Sequence[str]) -> Hint:
    """The hint on a case that fails with arguments in these memory orders, but not in row-major memory."""
    return Hint(
        FaultKind.STRIDES,
        f"right where the argument is row-major in memory, and wrong where it is {' or '.join(dict.fromkeys(orders))}",
    )


def mixed_orders_hint(orders: Sequence[str]) -> Hint:
    """The hint on a case that fails if only even ranks have these memory orders, but not if all ranks have them."""
    return Hint(
        FaultKind.STRIDES,
        "right where the arguments of all ranks lie in memory in one order, and wrong where they are "
        f"{' or '.join(dict.fromkeys(orders))} and row-major on the others",
    )


def hint_beside_right_entries(orders: Sequence[str], is_complex: bool) -> Hint | None:
    """The hint on a case in which random vectors fail, in these memory orders, though every entry of the matrix is right.

    The matrix is probed with real basis vectors in row-major memory.
    """
    if unusual := [order for order in orders if order != "row-major"]:
        return memory_order_hint(unusual)
    if is_complex:
        return Hint(
            FaultKind.IMAGINARY,
            "right for real arguments, and wrong for complex ones; a function that is linear over the real numbers alone, such as a "
            "conjugation, has to take real and imaginary parts as real tensors",
        )
    return None
