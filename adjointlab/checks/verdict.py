"""Verdicts: what a check concludes about a case, and the comparisons of elements of a space that it concludes it from.

An element is put together from what all ranks hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.space import Space, Tensor
from adjointlab.typing import Array, NumpyArray

__all__ = [
    "EXACT",
    "Difference",
    "Figure",
    "Figures",
    "Inapplicable",
    "Local",
    "MatrixEntry",
    "Status",
    "Tolerance",
    "Verdict",
    "coherent",
    "element_name",
    "first_difference",
    "first_not_finite",
    "incoherent",
    "not_finite_verdict",
    "returned_not_finite",
    "square_norm",
    "summed",
    "unequal_copies_verdict",
    "unjudged",
]


class Inapplicable(Exception):
    """A check has nothing to say about a case; another case is drawn instead.

    Raise it from data that all ranks share, so that it is raised on every rank or on none: a rank that went on alone
    would wait for messages of the others.
    """


class Status(Enum):
    """Outcome of judging a case."""

    COHERENT = "coherent"
    INCOHERENT = "incoherent"
    UNJUDGED = "could not be judged"  # a crash or a hang


class Figure(StrEnum):
    """The figures behind a verdict, by the names that they have in reports and files."""

    GAIN = "gain"
    GAIN_SOURCE = "gain from"
    MISS_PROBABILITY = "miss probability"  # of an exact test
    FLOATING_ERROR = "floating error (eq. 26)"  # of [Hewett21]
    ENTRIES = "entries"  # of a matrix, as many as were compared
    PROVED = "proved"  # whether those are all


Figures: TypeAlias = dict[Figure, float | str]


@dataclass(frozen=True)
class MatrixEntry:
    """Indices of the matrix entry that is wrong: e_column of the domain, f_row of the codomain's dual."""

    column: int
    row: int
    weight: complex | None = None  # by the specification, where that was compared


@dataclass(frozen=True)
class Verdict:
    """Status, headline, the labelled lines that explain it, and the figures behind it.

    `kind` distinguishes failures that shrinking must not confuse: a smaller case replaces a failing one only if it fails
    with the same kind. `figures` are reported for coherent cases too. `entry` is the matrix entry that the lines name, if any. `is_exact` is True if
    equality was asked for, on integers that nothing rounds.
    """

    status: Status
    headline: str = ""
    kind: str = ""
    lines: tuple[tuple[str, str], ...] = ()
    figures: Figures = field(default_factory=dict)
    # Read by the generated script alone. Two runs of a case that fails in the same way count as the same failure.
    entry: MatrixEntry | None = field(default=None, compare=False)
    is_exact: bool = False

    @property
    def is_coherent(self) -> bool:
        return self.status is Status.COHERENT

    def __str__(self) -> str:
        width = max((len(label) for label, _ in self.lines), default=0)
        return "\n".join(
            [self.headline or self.status.value, *(f"  {a:<{width}}  {b}" for a, b in self.lines)]
        )


def coherent(figures: Figures | None = None, *, is_exact: bool = False) -> Verdict:
    """Verdict of a check that found nothing wrong."""
    return Verdict(Status.COHERENT, figures=figures or {}, is_exact=is_exact)


def incoherent(
    headline: str,
    *lines: tuple[str, str],
    kind: str = "",
    figures: Figures | None = None,
    entry: MatrixEntry | None = None,
) -> Verdict:
    """Verdict of a check that found a fault; its kind is the headline unless `kind` gives another."""
    return Verdict(Status.INCOHERENT, headline, kind or headline, lines, figures or {}, entry)


def unjudged(headline: str, *lines: tuple[str, str], kind: str = "") -> Verdict:
    """Verdict on a case that crashed, hung, or was not there; its kind is the headline unless `kind` gives another."""
    return Verdict(Status.UNJUDGED, headline, kind or headline, lines)


Local: TypeAlias = tuple[NumpyArray, ...]
"""One rank's part of an element of a space, in NumPy: one array for each tensor."""


class Difference(NamedTuple):
    """Place where two results differ, and the values there as reports print them."""

    where: str
    actual: str
    expected: str


@dataclass(frozen=True)
class Tolerance:
    """Largest difference between two computations of one value, `relative` to the largest value of the tensor.

    `reach` is the least that the largest value counts for: where terms of that size cancel, what is left may be much
    smaller than the terms whose rounding it carries.
    """

    relative: float
    reach: float = 0.0

    def allowed(self, largest: float) -> float:
        """Allowed difference in a tensor whose largest expected value is `largest`."""
        return self.relative * max(largest, self.reach)


EXACT = Tolerance(0.0)
"""No difference at all: for integers that no intermediate rounds."""


def first_difference(
    space: Space, actual: Sequence[Local], expected: Sequence[Local], tolerance: Tolerance = EXACT
) -> Difference | None:
    """Return the first place where two elements of `space`, given as all ranks hold them, differ; `None` if nowhere.

    Partial tensors are compared after summation, never rank by rank: only the sum is declared, and an operator may split
    it among the ranks as it likes. Differences within `tolerance` pass; NaN never does.
    """
    for position, tensor in enumerate(space.tensors):
        got = summed(tensor, [local[position] for local in actual])
        want = summed(tensor, [local[position] for local in expected])
        scale = max((_largest(array) for array in want.values()), default=0.0)
        for rank, array in got.items():
            if array.shape != want[rank].shape:
                return Difference(
                    f"{tensor.name} (rank {rank})", f"shape {array.shape}", f"shape {want[rank].shape}"
                )
            near = np.abs(array - want[rank]) <= tolerance.allowed(scale)
            # Negated, so that NaN counts as different. Arrays of Python integers give Python's booleans in order 0.
            wrong = ~np.asarray(near, dtype=bool)
            if wrong.any():
                index = _first_index(wrong)
                return Difference(
                    element_name(tensor, rank, index), _number(array[index]), _number(want[rank][index])
                )
    return None


def summed(tensor: Tensor, local: Sequence[NumpyArray]) -> dict[int, NumpyArray]:
    """Local tensor of each active rank; the summands of a partial one are added up on the first of their ranks."""
    totals: dict[int, NumpyArray] = {}
    for rank, first in tensor.summands.items():
        values = np.asarray(local[rank], dtype=_wide(local[rank].dtype))
        # NumPy makes a scalar of a sum of arrays of order 0.
        totals[first] = np.asarray(totals[first] + values, values.dtype) if first in totals else values
    return totals


def unequal_copies_verdict(direction: str, space: Space, local: Sequence[Local]) -> Verdict | None:
    """Verdict on an element of `space` that a direction returned, if copies that are declared equal differ."""
    if (difference := _first_unequal_copy(space, local)) is None:
        return None
    return incoherent(
        f"{direction} returns different copies of what is declared equal",
        ("element", difference.where),
        ("value", difference.actual),
        ("but", difference.expected),
    )


def _first_unequal_copy(space: Space, local: Sequence[Local]) -> Difference | None:
    for position, tensor in enumerate(space.tensors):
        for rank, first in tensor.groups.items():
            copy, original = local[rank][position], local[first][position]
            # Two NaNs are equal copies: that a value is not finite is said by other checks.
            wrong = ~((copy == original) | (np.isnan(copy) & np.isnan(original)))
            if wrong.any():
                index = _first_index(wrong)
                return Difference(
                    element_name(tensor, rank, index),
                    _number(copy[index]),
                    f"{_number(original[index])} on rank {first}",
                )
    return None


def not_finite_verdict(direction: str, space: Space, local: Sequence[Local]) -> Verdict | None:
    """Verdict on an element of `space` that a direction returned, if it has a NaN or an infinity on some rank.

    Checks ask this before they compare anything: an output that is not finite although the inputs were is a fault of its
    own, and a comparison with it would blame whatever that check is about.
    """
    for rank, outputs in enumerate(local):
        if found := first_not_finite(space, outputs, rank):
            return returned_not_finite(direction, rank, *found)
    return None


def first_not_finite(space: Space, local: Local, rank: int) -> tuple[str, str] | None:
    """First NaN or infinity in what `rank` holds of an element of `space`: its place, and "nan" or "inf"."""
    for tensor, array in zip(space.tensors, local, strict=True):
        wrong = ~np.isfinite(array)
        if wrong.any():
            index = _first_index(wrong)
            return element_name(tensor, rank, index), "nan" if np.isnan(array[index]) else "inf"
    return None


def returned_not_finite(direction: str, rank: int, where: str, value: str) -> Verdict:
    """Verdict on an output that is not finite, the same for all checks."""
    return incoherent(
        f"{direction} returned {value} on rank {rank}",
        ("element", where),
        ("but", "all that it was given is finite"),
        # Not the headline: while a case shrinks, the rank may become another one.
        kind=f"{direction} is not finite",
    )


def square_norm(space: Space, local: Sequence[Array], rank: int) -> float:
    """This rank's part of the squared norm of an element of `space`; of invariant copies the first counts."""
    return float(
        sum(
            (np.abs(np.asarray(arrays.to_numpy(array), dtype=np.complex128)) ** 2).sum()
            for tensor, array in zip(space.tensors, local, strict=True)
            if tensor.is_counted(rank)
        )
    )


def element_name(tensor: Tensor, rank: int, local: Sequence[int]) -> str:
    """Name of an element in reports: its global index, and the rank that holds it."""
    index = tensor.layout.to_global(rank, local)
    return f"{tensor.name}[{', '.join(map(str, index))}] (rank {rank})"


def _first_index(wrong: NumpyArray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _largest(array: NumpyArray) -> float:
    return float(np.max(np.abs(array).ravel(), initial=0.0) if array.ndim else abs(array[()]))


def _wide(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Element type for sums and differences of `dtype` that neither wrap around nor round more than float64 does."""
    if dtype.kind in "iu":
        return np.dtype(object)  # Python's integers
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def _number(value: complex) -> str:
    number = complex(value)
    if number.imag:
        return f"{number:g}"
    return f"{number.real:.17g}"
