"""Evidence for a verdict as data, from which a picture of the failure is drawn.

All of it is plain (numbers are texts, as reports print them), so that it can be stored and sent with the lines of the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from adjointlab.checks.hints import Hint
from adjointlab.pictures.model import Grid
from adjointlab.typing import NumpyArray

__all__ = [
    "ComparedMatrices",
    "Evidence",
    "MatchedCall",
    "MatchedCalls",
    "Place",
    "Wait",
    "unlike_texts",
    "weight_text",
]


@dataclass(frozen=True)
class Place:
    """A wrong element of a result: the tensor with the cell marked, and both values with their names."""

    grid: Grid
    where: str
    values: tuple[tuple[str, str], tuple[str, str]]
    hint: Hint | None = None


@dataclass(frozen=True)
class Element:
    """A basis vector as pictures show it: its tensor with the cell marked, and the names of the element and the rank."""

    grid: Grid
    name: str
    rank: int


@dataclass(frozen=True)
class ComparedMatrices:
    """Matrices that should be equal, or the window around the first difference of the first two.

    ``entries[k][i][j]`` is the weight between the basis vectors ``rows[i]`` and ``columns[j]`` in matrix k. Columns belong to the
    domain and rows to the codomain's dual, or the other way round in a matrix of the adjoint.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    entries: tuple[tuple[tuple[str, ...], ...], ...]
    wrong: tuple[tuple[int, int], ...]  # positions (i, j)
    labels: tuple[tuple[str, ...], tuple[str, ...]]  # of the rows, and of the columns
    first: tuple[int, int]  # position (i, j) of the first difference
    of_domain: Element  # the basis vectors of the first difference
    of_codomain: Element
    is_whole: bool = True
    hint: Hint | None = None
    # A declaration that would make the two directions adjoint, such as "y were declared invariant".
    declaration: str = ""

    def beside(self, name: str, matrix: NumpyArray) -> ComparedMatrices:
        """The same matrices, together with the same window of another one."""
        entries = tuple(tuple(weight_text(complex(matrix[i, j])) for j in self.columns) for i in self.rows)
        return replace(self, names=(*self.names, name), entries=(*self.entries, entries))


@dataclass(frozen=True)
class Wait:
    """A rank at the end of a run that hung: the call in which it was blocked, or how it had ended."""

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
    """Calls of one run, in the order of time; `different` is the position of the first that matched another message in another run."""

    schedule: str
    calls: tuple[MatchedCall, ...]
    different: int | None = None


@dataclass(frozen=True)
class Evidence:
    """The evidence for a verdict; each part may be missing."""

    place: Place | None = None
    matrices: ComparedMatrices | None = None
    waits: tuple[Wait, ...] = ()
    matched: tuple[MatchedCalls, ...] = ()
    hint: Hint | None = None
    retried: tuple[Hint, ...] = ()  # hints on faults that vanish when something in the case is changed

    @property
    def first_hint(self) -> Hint | None:
        """The hint on the matrices, on the place, or on the case as a whole."""
        of_matrices, of_place = (None if each is None else each.hint for each in (self.matrices, self.place))
        return of_matrices or of_place or self.hint


def weight_text(value: complex, digits: int = 6) -> str:
    """A weight as reports print it."""
    if np.isnan(value):
        return "NaN"
    return f"{value.real:.{digits}g}" if not value.imag else f"{value:.{digits}g}"


def unlike_texts(one: complex, other: complex) -> tuple[str, str]:
    """Two unequal weights with enough digits to distinguish them."""
    texts = weight_text(one), weight_text(other)
    return texts if texts[0] != texts[1] else (weight_text(one, 17), weight_text(other, 17))
