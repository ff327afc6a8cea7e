"""Evidence behind a verdict, as data: what a picture of the failure is drawn from.

All of it is plain (numbers are texts, as reports print them), so that it can be stored and sent beside the lines of the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from adjointlab.pictures.model import Grid
from adjointlab.typing import NumpyArray

__all__ = [
    "ComparedMatrices",
    "Evidence",
    "MatchedCall",
    "MatchedCalls",
    "Place",
    "Wait",
    "compared",
    "weight_text",
]

_WINDOW: Final = 12
"""Most rows and columns of a matrix that are kept, around the entry that is wrong."""


@dataclass(frozen=True)
class Place:
    """An element of a result that is wrong: the tensor with the cell marked, and both values under their names."""

    grid: Grid
    where: str
    values: tuple[tuple[str, str], tuple[str, str]]


@dataclass(frozen=True)
class ComparedMatrices:
    """Matrices that ought to be equal, or the window around the first difference of the first two.

    ``entries[k][i][j]`` is the weight between the basis vectors ``rows[i]`` and ``columns[j]`` in matrix k. The columns are of the
    domain and the rows of the codomain's dual; `of_adjoint` says that it is the other way round.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    entries: tuple[tuple[tuple[str, ...], ...], ...]
    wrong: tuple[tuple[int, int], ...]  # positions (i, j)
    row: int  # the first difference, as basis vectors
    column: int
    of_adjoint: bool = False
    is_whole: bool = True

    def beside(self, name: str, matrix: NumpyArray) -> ComparedMatrices:
        """The same matrices and the same window of another one."""
        entries = tuple(tuple(weight_text(complex(matrix[i, j])) for j in self.columns) for i in self.rows)
        return replace(self, names=(*self.names, name), entries=(*self.entries, entries))


@dataclass(frozen=True)
class Wait:
    """A rank at the end of a run in which ranks waited in vain: the call that it sat in, or how it had ended."""

    rank: int
    call: str
    where: str = ""  # "file:line"
    waits_for: tuple[int, ...] = ()
    is_blocked: bool = True


@dataclass(frozen=True)
class MatchedCall:
    """A call that several messages could have completed, and the sender of the one that did, if that is known."""

    rank: int
    text: str
    sender: int | None = None


@dataclass(frozen=True)
class MatchedCalls:
    """Calls of one run, in the order of time; `different` is the position of the first that another run answered otherwise."""

    schedule: str
    calls: tuple[MatchedCall, ...]
    different: int | None = None


@dataclass(frozen=True)
class Evidence:
    """All that a verdict is drawn from; each part may be missing."""

    place: Place | None = None
    matrices: ComparedMatrices | None = None
    waits: tuple[Wait, ...] = ()
    matched: tuple[MatchedCalls, ...] = ()


def compared(
    names: tuple[str, str],
    matrices: tuple[NumpyArray, NumpyArray],
    wrong: NumpyArray,
    columns: Sequence[int],
    rows: Sequence[int],
    *,
    of_adjoint: bool = False,
) -> ComparedMatrices:
    """Two matrices of shape (row, column), which differ where `wrong` is true; it is true somewhere."""
    column, row = (int(index) for index in np.argwhere(wrong.T)[0])
    shown_rows, shown_columns = _around(row, wrong.shape[0]), _around(column, wrong.shape[1])
    return ComparedMatrices(
        names,
        tuple(int(rows[i]) for i in shown_rows),
        tuple(int(columns[j]) for j in shown_columns),
        tuple(
            tuple(tuple(weight_text(complex(matrix[i, j])) for j in shown_columns) for i in shown_rows)
            for matrix in matrices
        ),
        tuple(
            (i - shown_rows[0], j - shown_columns[0])
            for i in shown_rows
            for j in shown_columns
            if wrong[i, j]
        ),
        int(rows[row]),
        int(columns[column]),
        of_adjoint,
        is_whole=wrong.shape == (len(shown_rows), len(shown_columns)),
    )


def _around(position: int, length: int) -> range:
    start = max(0, min(position - _WINDOW // 2, length - _WINDOW))
    return range(start, min(length, start + _WINDOW))


def weight_text(value: complex) -> str:
    """A weight as reports print it."""
    if np.isnan(value):
        return "NaN"
    return f"{value.real:g}" if not value.imag else f"{value:g}"
