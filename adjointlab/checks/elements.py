"""Comparison of elements of spaces, as ranks hold them, and the verdicts on differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from numbers import Integral
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from adjointlab.checks.evidence import Evidence, Place
from adjointlab.checks.hints import Hint
from adjointlab.checks.marked import marked_grid, tensor_hint
from adjointlab.checks.verdict import Verdict, incoherent
from adjointlab.core import arrays
from adjointlab.core.space import Space, Tensor
from adjointlab.pictures.model import Grid, Role
from adjointlab.typing import Array, NumpyArray

__all__ = [
    "EXACT",
    "NOT_FINITE",
    "SMALL",
    "Difference",
    "Local",
    "Tolerance",
    "element_name",
    "first_difference",
    "first_not_finite",
    "global_name",
    "is_whole",
    "joined",
    "largest_magnitude",
    "magnitudes",
    "norm",
    "not_finite_verdict",
    "relative_difference",
    "returned_not_finite",
    "summed",
    "tensor_difference",
    "unequal_copies_verdict",
    "wide",
]

Local: TypeAlias = tuple[NumpyArray, ...]
"""One rank's part of an element of a space, in NumPy: one array for each tensor."""

NOT_FINITE: Final = "is not finite"
"""The end of the kind of a verdict on such a result, after the direction that returned it."""


class Difference(NamedTuple):
    """Place where two results differ, and the values there as reports print them."""

    where: str
    actual: str
    expected: str
    grid: Grid | None = None  # the tensor, with the place marked
    hint: Hint | None = None
    is_small: bool = False  # relative to the values
    error: float = 0.0  # the absolute value

    def evidence(self, actual: str, expected: str, hint: Hint | None = None) -> Evidence | None:
        """The difference as a picture shows it, with both values under these names.

        `hint` is the check's own hint on the fault; it takes precedence over that from the values.
        """
        if self.grid is None:
            return None
        values = (actual, self.actual), (expected, self.expected)
        return Evidence(Place(self.grid, self.where, values, hint or self.hint))

    def verdict(
        self, headline: str, actual: str, expected: str, *more: tuple[str, str], hint: Hint | None = None
    ) -> Verdict:
        """The verdict on the difference: lines with the element, both values under these labels, and `more`; and the :meth:`evidence`."""
        lines = ("element", self.where), (actual, self.actual), (expected, self.expected), *more
        return incoherent(headline, *lines, evidence=self.evidence(actual, expected, hint))


@dataclass(frozen=True)
class Tolerance:
    """Largest difference between two computations of one value, `relative` to the largest value of the tensor.

    `reach` is a lower bound for that largest value: if terms of this size cancel, the result may be much
    smaller than the terms, whose rounding it inherits. `absolute` is allowed in any case.
    """

    relative: float
    reach: float = 0.0
    absolute: float = 0.0

    def allowed(self, largest: float) -> float:
        """Allowed difference in a tensor whose largest expected value is `largest`."""
        return max(self.relative * max(largest, self.reach), self.absolute)

    def allowed_in(self, largest: NumpyArray) -> NumpyArray:
        """The same for each of several tensors."""
        return np.maximum(self.relative * np.maximum(largest, self.reach), self.absolute)


class WhereNotFinite(Enum):
    """The values that are right although they are not finite."""

    WRONG = auto()
    """None."""
    ALIKE = auto()
    """NaN or either infinity where the expected value is infinite: which of them depends on the order of a sum. Any value where it is NaN:
    a formula that skips terms multiplied by zero has no NaN there."""
    THERE_UNJUDGED = auto()
    """Any value where the expected one is NaN or infinite: another kernel may multiply zero and infinity where this one does not."""
    UNJUDGED = auto()
    """Any value where the expected one is NaN or infinite, and NaN anywhere: a formula may have a product of zero and infinity."""


SMALL: Final = 2.0**-8
"""Relative difference below which rounding, a cast or a solver may be the cause."""

EXACT = Tolerance(0.0)
"""No difference at all: for integers that no intermediate rounds."""


def first_difference(
    space: Space, actual: Sequence[Local], expected: Sequence[Local], tolerance: Tolerance = EXACT
) -> Difference | None:
    """Return the first place where two elements of `space`, given as all ranks hold them, differ; `None` if nowhere.

    The `tolerance` is relative to the largest value of each tensor (:func:`tensor_difference`).
    """
    for position, tensor in enumerate(space.tensors):
        got, want = ([local[position] for local in each] for each in (actual, expected))
        if (difference := tensor_difference(tensor, got, want, tolerance)) is not None:
            return difference
    return None


def tensor_difference(
    tensor: Tensor,
    actual: Sequence[NumpyArray],
    expected: Sequence[NumpyArray],
    tolerance: Tolerance,
    not_finite: WhereNotFinite = WhereNotFinite.WRONG,
) -> Difference | None:
    """Return the first place where two values of `tensor`, given as all ranks hold them, differ; `None` if nowhere.

    Partial tensors are compared after summation, never rank by rank: only the sum is declared, and an operator may split
    it among the ranks as it likes. Differences within `tolerance` pass. NaN does not, except as `not_finite` allows.
    """
    got, want = summed(tensor, actual), summed(tensor, expected)
    if tensor.element.is_integer:
        not_finite = WhereNotFinite.WRONG
    # With an exact comparison the largest value does not matter.
    scale = max(map(largest_magnitude, want.values()), default=0.0) if tolerance.relative else 0.0
    allowed = tolerance.allowed(scale)
    for rank, array in got.items():
        wanted = want[rank]
        if array.shape != wanted.shape:
            return Difference(f"{tensor.name} (rank {rank})", f"shape {array.shape}", f"shape {wanted.shape}")
        is_near = _is_near(array, wanted, allowed, not_finite)
        if is_near.all():
            continue
        index = _first_index(~is_near)
        if _is_small(array[index], wanted[index], want.values()):
            # The first is nearly right: the largest difference may show the fault better.
            with np.errstate(invalid="ignore"):
                index = _index_of_largest(np.where(is_near, 0, array - wanted))
        return Difference(
            element_name(tensor, rank, index),
            _number(array[index]),
            _number(wanted[index]),
            marked_grid(tensor, (rank, Role.WRONG), index),
            tensor_hint(tensor, got, want, allowed, len(actual)),
            is_small=_is_small(array[index], wanted[index], want.values()),
            error=_distance(array[index], wanted[index]),
        )
    return None


def _is_near(array: NumpyArray, wanted: NumpyArray, allowed: float, not_finite: WhereNotFinite) -> NumpyArray:
    """True for each element that differs from the wanted one by at most `allowed`, or is right although one of them is not finite."""
    if not_finite is not WhereNotFinite.WRONG and math.isinf(allowed):
        return np.ones(array.shape, dtype=bool)  # an infinite rounding error may turn any element into NaN
    # `<=`, not the negation of `>`, so that NaN counts as different.
    with np.errstate(invalid="ignore"):
        near = np.abs(array - wanted) <= allowed
    if not_finite is WhereNotFinite.ALIKE:
        near = np.where(np.isfinite(wanted), near, ~np.isfinite(array) | np.isnan(wanted))
    elif not_finite is not WhereNotFinite.WRONG:
        near = near | ~np.isfinite(wanted)
    if not_finite is WhereNotFinite.UNJUDGED:
        near = near | np.isnan(array)
    # Arrays of Python integers give Python's booleans in order 0.
    return np.asarray(near, dtype=bool)


def relative_difference(
    tensor: Tensor, actual: Sequence[NumpyArray], expected: Sequence[NumpyArray], reach: float
) -> float:
    """The largest finite difference between two elements of `tensor`, as all ranks hold them, relative to the largest expected value.

    `reach` is a lower bound for that value.
    """
    got, want = summed(tensor, actual), summed(tensor, expected)
    scale = max(reach, *map(largest_magnitude, want.values()))
    with np.errstate(invalid="ignore"):
        errors = (got[rank] - want[rank] for rank in got if got[rank].shape == want[rank].shape)
        largest = max(map(largest_magnitude, errors), default=0.0)
    return largest / scale if scale else 0.0


def _distance(actual: complex, expected: complex) -> float:
    with np.errstate(invalid="ignore"):
        return float(abs(actual - expected))


def _is_small(actual: complex, expected: complex, values: Iterable[NumpyArray]) -> bool:
    """Return True if two numbers differ by far less than the largest of the values, or than 1 if all these are zero.

    But not if one is an integer multiple of the other, which rounding does not cause.
    """
    largest = max(map(largest_magnitude, values), default=0.0)
    is_small = _distance(actual, expected) < SMALL * (largest or 1.0)
    return is_small and not _is_multiple(actual, expected)


_LARGEST_MULTIPLE: Final = 64
_ROUNDED: Final = 1e-6


def _is_multiple(one: complex, other: complex) -> bool:
    # Python's floats, whose division gives infinity on overflow, without a warning.
    small, large = sorted(float(abs(number)) for number in (one, other))
    if not 0 < small < large < math.inf:
        return False
    times = large / small
    return 1.5 < times < _LARGEST_MULTIPLE and abs(times - round(times)) < _ROUNDED * times


def summed(tensor: Tensor, local: Sequence[NumpyArray]) -> dict[int, NumpyArray]:
    """Local tensor of each active rank; the summands of a partial one are added up on the first of their ranks."""
    totals: dict[int, NumpyArray] = {}
    for rank, first in tensor.summands.items():
        values = np.asarray(local[rank], dtype=wide(local[rank].dtype))
        # NumPy returns a scalar for a sum of arrays of order 0. The judge reports infinite summands of both signs.
        with np.errstate(invalid="ignore"):
            totals[first] = np.asarray(totals[first] + values, values.dtype) if first in totals else values
    return totals


def unequal_copies_verdict(direction: str, space: Space, local: Sequence[Local]) -> Verdict | None:
    """Verdict on an element of `space` that a direction returned, if copies differ that are declared equal."""
    if (difference := _first_unequal_copy(space, local)) is None:
        return None
    compared = ("compared", "bit by bit, because ranks that go on with different copies drift apart")
    return incoherent(
        f"{direction} returns different copies of what is declared equal",
        ("element", difference.where),
        ("value", difference.actual),
        ("but", difference.expected),
        *([compared] if difference.is_small else []),
        evidence=difference.evidence("this copy", "the other one"),
    )


_NEARLY_EQUAL = 1e-3


def _first_unequal_copy(space: Space, local: Sequence[Local]) -> Difference | None:
    for position, tensor in enumerate(space.tensors):
        for rank, first in tensor.groups.items():
            copy, original = local[rank][position], local[first][position]
            # Two NaNs are equal copies: other checks report values that are not finite.
            wrong = ~((copy == original) | (np.isnan(copy) & np.isnan(original)))
            if wrong.any():
                index = _first_index(wrong)
                return Difference(
                    element_name(tensor, rank, index),
                    _number(copy[index]),
                    f"{_number(original[index])} on rank {first}",
                    marked_grid(tensor, (rank, Role.WRONG), index, (first, Role.SOURCE)),
                    is_small=bool(np.isclose(copy[index], original[index], rtol=_NEARLY_EQUAL, atol=0.0)),
                )
    return None


def not_finite_verdict(direction: str, space: Space, local: Sequence[Local]) -> Verdict | None:
    """Verdict on an element of `space` that a direction returned, if it has a NaN or an infinity on some rank.

    Checks call this before they compare anything: an output that is not finite although the inputs were is a fault by
    itself, and a comparison would report it as the fault that the check looks for.
    """
    for rank, outputs in enumerate(local):
        if found := first_not_finite(space, outputs, rank):
            return returned_not_finite(direction, rank, *found)
    return None


def first_not_finite(space: Space, local: Local, rank: int) -> tuple[str, str] | None:
    """First NaN or infinity in the part of an element of `space` that `rank` holds: its place, and "nan" or "inf"."""
    for tensor, array in zip(space.tensors, local, strict=True):
        finite = np.isfinite(array)
        if not finite.all():
            index = _first_index(~finite)
            return element_name(tensor, rank, index), "nan" if np.isnan(array[index]) else "inf"
    return None


def returned_not_finite(direction: str, rank: int, where: str, value: str) -> Verdict:
    """Verdict on an output that is not finite, the same for all checks."""
    return incoherent(
        f"{direction} returned {value} on rank {rank}",
        ("element", where),
        ("but", "all inputs were finite"),
        # Not the headline: the rank may change while a case shrinks.
        kind=f"{direction} {NOT_FINITE}",
    )


def magnitudes(local: Sequence[NumpyArray]) -> NumpyArray:
    """The magnitudes of all elements of a rank's local tensors, in one dimension and in float64."""
    return np.asarray(np.abs(joined([np.zeros(0), *local])))


def joined(arrays: Sequence[NumpyArray]) -> NumpyArray:
    """All elements of several arrays, in one dimension."""
    return np.concatenate([np.ravel(array) for array in arrays] or [np.zeros(0)])


def norm(space: Space, local: Sequence[Array], rank: int) -> float:
    """The norm of this rank's part of an element of `space`; only the first of invariant copies counts."""
    counted = zip(space.tensors, local, strict=True)
    return math.hypot(
        *[_norm(arrays.to_numpy(array)) for tensor, array in counted if tensor.is_counted(rank)]
    )


def _norm(array: NumpyArray) -> float:
    is_complex = array.dtype.kind == "c"
    sizes = np.abs(array.astype(np.complex128) if is_complex else array.astype(np.float64, copy=False))
    # Relative to the largest, because squares of very large and very small numbers overflow and underflow.
    largest = float(sizes.max(initial=0.0))
    if not 0.0 < largest < math.inf:
        return largest
    sizes = sizes / largest
    return largest * math.sqrt(float((sizes * sizes).sum()))


def element_name(tensor: Tensor, rank: int, local: Sequence[int]) -> str:
    """Name of an element in reports: its global index, and the rank that holds it."""
    return f"{global_name(tensor, rank, local)} (rank {rank})"


def global_name(tensor: Tensor, rank: int, local: Sequence[int]) -> str:
    """Name of an element by its global index."""
    return f"{tensor.name}[{', '.join(map(str, tensor.layout.to_global(rank, local)))}]"


def _first_index(wrong: NumpyArray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _index_of_largest(difference: NumpyArray) -> tuple[int, ...]:
    magnitudes = np.asarray(np.abs(difference), dtype=float)
    return tuple(int(i) for i in np.unravel_index(np.argmax(np.nan_to_num(magnitudes)), magnitudes.shape))


def largest_magnitude(array: NumpyArray) -> float:
    """The largest finite magnitude: relative to an infinite one, any difference would pass."""
    magnitudes = np.asarray(np.abs(array), dtype=float)
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def is_whole(array: NumpyArray, precision: float = math.inf) -> bool:
    """Return True if all numbers of an array, whose element type has `precision` bits, are integers of moderate size.

    Large numbers prove nothing: all floating-point numbers above 2**precision are integers.
    """
    return bool(np.all((array == np.round(array)) & (np.abs(array) <= 2.0 ** (precision - 3))))


def wide(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Element type in which sums and differences of `dtype` neither wrap around nor round more than in float64."""
    if dtype.kind in "iub":
        return np.dtype(object)  # Python's integers
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def _number(value: Any) -> str:
    """All digits of an element, so that different ones look different."""
    if isinstance(value, Integral):
        return str(int(value))  # a float would lose digits beyond 2**53
    number = complex(value)
    return f"{number:.17g}" if number.imag else f"{number.real:.17g}"
