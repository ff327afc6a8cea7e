"""Drawings as pure data, independent of their position on a page.

A :class:`Drawing` is a list of parts, from top to bottom. The builders make one from an object of the lab, and the renderers
(:mod:`~adjointlab.pictures.text`, :mod:`~adjointlab.pictures.svg`, :mod:`~adjointlab.pictures.html`) turn it into
characters or shapes. All texts are plain text, which a renderer escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

__all__ = [
    "Drawing", "Event", "Grid", "Lanes", "Mark", "Matrices", "Matrix", "Movement", "Part", "Piece", "Remark", "Role", "Row", "Slice",
    "Waiting", "Waits", "Weight", "Window",
]  # fmt: skip

Window: TypeAlias = tuple[int, int]
"""A half-open interval [start, stop) of global indices along one dimension."""


class Role(Enum):
    """The reason why a cell is marked; the value is its character."""

    SOURCE = "●"
    TARGET = "◆"
    WRONG = "✖"


@dataclass(frozen=True)
class Mark:
    """A marked cell: a global index, in the copy of one rank."""

    rank: int
    index: tuple[int, ...]
    role: Role


@dataclass(frozen=True)
class Piece:
    """The window of one rank in each dimension."""

    rank: int
    windows: tuple[Window, ...]

    @property
    def is_empty(self) -> bool:
        return any(stop <= start for start, stop in self.windows)


@dataclass(frozen=True)
class Slice:
    """The part of a tensor that is drawn: at most two dimensions, with each of the others fixed at an index."""

    dims: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...] = ()

    def shows(self, windows: tuple[Window, ...]) -> bool:
        """Return True if a piece with these windows has cells in the slice."""
        return all(windows[dim][0] <= index < windows[dim][1] for dim, index in self.fixed)


@dataclass(frozen=True)
class Grid:
    """A distributed tensor: the pieces that ranks hold, in the order of the partition's grid, and marked cells."""

    title: str
    note: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    slices: tuple[Slice, ...]
    marks: tuple[Mark, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Weight:
    """An arrow of a movement: its direction, the weight that it carries, and a remark on it."""

    name: str
    value: str
    is_back: bool = False
    is_wrong: bool = False
    remark: str = ""


@dataclass(frozen=True)
class Movement:
    """One or two grids, with arrows between a marked cell of the first and a marked cell of the second."""

    grids: tuple[Grid, ...]
    source: str
    target: str
    weights: tuple[Weight, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """A small matrix; `wrong` lists the entries (row, column) that differ from its neighbour's."""

    title: str
    entries: tuple[tuple[str, ...], ...]
    wrong: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Matrices:
    """Matrices of one shape, side by side. `rows` and `columns` label the basis vectors."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    matrices: tuple[Matrix, ...]
    note: str = ""


@dataclass(frozen=True)
class Waiting:
    """A rank that waits, or one that has ended (`is_blocked` is false) and waits for no other."""

    rank: int
    call: str
    where: str = ""  # file:line
    code: str = ""  # that line
    waits_for: tuple[int, ...] = ()
    is_blocked: bool = True


@dataclass(frozen=True)
class Waits:
    """Ranks that wait for each other; `cycle` lists ranks each of which waits for the next, and the last for the first."""

    waiting: tuple[Waiting, ...]
    cycle: tuple[int, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Event:
    """A step of a sequence: of one rank (`source` is None), or an arrow between two."""

    target: int
    label: str
    source: int | None = None
    is_marked: bool = False


@dataclass(frozen=True)
class Lanes:
    """A sequence diagram: a lane for each rank, events in the order of time."""

    title: str
    ranks: tuple[int, ...]
    events: tuple[Event, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Remark:
    """A line of text."""

    text: str


@dataclass(frozen=True)
class Row:
    """Sequence diagrams side by side."""

    parts: tuple[Lanes, ...]


Part: TypeAlias = Grid | Movement | Matrices | Waits | Lanes | Row | Remark


@dataclass(frozen=True)
class Drawing:
    """Parts from top to bottom, under a title."""

    title: str
    parts: tuple[Part, ...]

    def __bool__(self) -> bool:
        return bool(self.parts)
