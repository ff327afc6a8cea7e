"""The picture of a failure, drawn from the evidence of its verdict."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from adjointlab.checks.check import Spaces
from adjointlab.checks.evidence import ComparedMatrices, MatchedCalls, Place, Wait
from adjointlab.checks.matrix import place_of
from adjointlab.checks.verdict import Status
from adjointlab.core.space import Space, Tensor
from adjointlab.engine.search import SearchResult
from adjointlab.pictures.layouts import grid_of_tensor
from adjointlab.pictures.model import (
    Drawing,
    Event,
    Grid,
    Lanes,
    Mark,
    Matrices,
    Matrix,
    Movement,
    Part,
    Remark,
    Role,
    Waiting,
    Waits,
    Weight,
)
from adjointlab.pictures.text import as_text, block_of
from adjointlab.report.failure_text import relative
from adjointlab.session import CheckResult
from adjointlab.store.files import printable
from adjointlab.worlds.diagnosis import find_cycle

__all__ = ["failure_drawing", "failure_picture", "terminal_drawing"]

_RANKS: Final = 8
_RANKS_ON_TERMINAL: Final = 4
_WAITING: Final = 16
_LINES: Final = 14
"""Lines of a picture on a terminal, about; of a matrix that does not fit the arrows alone are shown."""


def failure_picture(check_result: CheckResult, *, unicode: bool, width: int) -> str:
    """The picture of a failure as text, of `width` columns about; empty if there is nothing to draw.

    It stands below the lines of the failure. Without `unicode` all of the lab's own signs are ASCII. Whatever the user's code
    has put into names and messages, all of it is printable.
    """
    drawing = terminal_drawing(check_result, width=width)
    return printable(as_text(drawing, unicode=unicode, width=width), keep="\n")


def terminal_drawing(check_result: CheckResult, *, width: int) -> Drawing:
    """The drawing that :func:`failure_picture` shows, small enough for a terminal; for colours, see ``as_rich``."""
    if check_result.status is Status.COHERENT or check_result.is_expected:
        return Drawing("", ())
    drawing = failure_drawing(check_result.result, _RANKS_ON_TERMINAL)
    if len(block_of(drawing, width=width)) > _LINES:
        without = tuple(part for part in drawing.parts if not isinstance(part, Matrices))
        drawing = replace(drawing, parts=without or drawing.parts)
    return drawing


def failure_drawing(result: SearchResult, most_ranks: int = _RANKS) -> Drawing:
    """The drawing of a failure, without parts where its evidence shows nothing."""
    return Drawing("", tuple(_parts(result, most_ranks)))


def _parts(result: SearchResult, most_ranks: int) -> Iterator[Part]:
    evidence = result.verdict.evidence
    if evidence is None:
        return
    if evidence.matrices is not None and result.spaces is not None:
        yield _movement(evidence.matrices, result.spaces, most_ranks)
        yield _matrices(evidence.matrices, result.spaces)
    elif evidence.place is not None:
        yield from _place(evidence.place, most_ranks)
    if evidence.waits:
        yield _waits(evidence.waits)
    for matched in evidence.matched:
        yield _lanes(matched)


# Values


def _sides(matrices: ComparedMatrices, spaces: Spaces) -> tuple[Space, Space]:
    """The spaces of the columns and of the rows."""
    dual = spaces.codomain.dual
    return (dual, spaces.domain) if matrices.of_adjoint else (spaces.domain, dual)


def _movement(matrices: ComparedMatrices, spaces: Spaces, most_ranks: int) -> Movement:
    """The two elements between which the weight is wrong, in their tensors, and that weight in each direction."""
    row, column = matrices.rows.index(matrices.row), matrices.columns.index(matrices.column)
    values = [entries[row][column] for entries in matrices.entries]
    source, target = matrices.column, matrices.row
    if matrices.of_adjoint:
        source, target = target, source
    grids = []
    for space, index, role, side in (
        (spaces.domain, source, Role.SOURCE, "domain"),
        (spaces.codomain.dual, target, Role.TARGET, "codomain"),
    ):
        tensor, rank, local = place_of(space, index)
        grids.append(_grid(tensor, rank, local, role, side, most_ranks))
    weights = _weights(matrices.names, values)
    return Movement(tuple(grids), _name(spaces.domain, source), _name(spaces.codomain.dual, target), weights)


def _grid(tensor: Tensor, rank: int, local: tuple[int, ...], role: Role, side: str, most_ranks: int) -> Grid:
    # A basis vector of copies that are declared equal stands on all their ranks at once.
    index = tensor.layout.to_global(rank, local)
    copies = [other for other, first in tensor.groups.items() if first == tensor.groups[rank]]
    marks = [Mark(other, index, role) for other in copies[:most_ranks]]
    grid = grid_of_tensor(tensor, f"{tensor.name} ({side})", marks, most_ranks)
    return replace(grid, note="")


def _weights(names: Sequence[str], values: Sequence[str]) -> tuple[Weight, ...]:
    """The arrows: one for each matrix, and for the specification a remark on those that differ from it."""
    expected = dict(zip(names, values, strict=True)).get("specification")
    weights = []
    for name, value in zip(names, values, strict=True):
        if name == "specification":
            continue
        is_back = name.startswith("adjoint")
        if expected is not None:
            remark = "" if value == expected else f"should be ×{expected}"
        else:
            remark = f"must be forward's ×{values[0]}" if is_back else ""
        short = name.partition(",")[0]
        weights.append(Weight(short, value, is_back, bool(remark), remark))
    return tuple(weights)


def _matrices(matrices: ComparedMatrices, spaces: Spaces) -> Matrices:
    columns, rows = _sides(matrices, spaces)
    expected = matrices.entries[-1] if "specification" in matrices.names else None
    drawn = []
    for name, entries in zip(matrices.names, matrices.entries, strict=True):
        wrong = frozenset(matrices.wrong)
        if expected is not None:
            wrong = frozenset(
                (i, j)
                for i, row in enumerate(entries)
                for j, entry in enumerate(row)
                if entry != expected[i][j]
            )
        drawn.append(Matrix(name, entries, wrong))
    note = "" if matrices.is_whole else "the part of the matrix around the first entry that differs"
    return Matrices(
        tuple(_short_name(rows, index) for index in matrices.rows),
        tuple(_short_name(columns, index) for index in matrices.columns),
        tuple(drawn),
        note,
    )


def _element(space: Space, index: int) -> tuple[str, int]:
    tensor, rank, local = place_of(space, index)
    return f"{tensor.name}[{', '.join(map(str, tensor.layout.to_global(rank, local)))}]", rank


def _name(space: Space, index: int) -> str:
    element, rank = _element(space, index)
    return f"{element} on rank {rank}"


def _short_name(space: Space, index: int) -> str:
    element, rank = _element(space, index)
    return f"{element}@{rank}"


def _place(place: Place, most_ranks: int) -> Iterator[Part]:
    marked = {mark.rank for mark in place.grid.marks}
    others = [piece.rank for piece in place.grid.pieces if piece.rank not in marked]
    shown = marked | set(others[: max(0, most_ranks - len(marked))])
    pieces = tuple(piece for piece in place.grid.pieces if piece.rank in shown)
    yield replace(place.grid, pieces=pieces, note="")
    (name, value), (other, expected) = place.values
    yield Remark(f"{Role.WRONG.value} {place.where}: {name} {value}, {other} {expected}")


# Hangs and schedules


def _waits(waits: Sequence[Wait]) -> Waits:
    blocked = {wait.rank: wait.waits_for for wait in waits if wait.is_blocked}
    cycle = tuple(find_cycle(blocked))
    # Those of the cycle and the others that wait come first, where there are many.
    order = sorted(waits, key=lambda wait: (wait.rank not in cycle, not wait.is_blocked, wait.rank))
    shown = sorted(order[:_WAITING], key=lambda wait: wait.rank)
    waiting = tuple(
        Waiting(wait.rank, wait.call, _shown(wait.where), _code(wait.where), wait.waits_for, wait.is_blocked)
        for wait in shown
    )
    return Waits(waiting, cycle, len(waits) - len(shown))


def _shown(where: str) -> str:
    path, separator, number = where.rpartition(":")
    return f"{relative(Path(path))}{separator}{number}" if path else where


def _code(where: str) -> str:
    """The line of code at "file:line", if it can be read."""
    path, _, number = where.rpartition(":")
    return linecache.getline(path, int(number)).strip() if path and number.isdigit() else ""


def _lanes(matched: MatchedCalls) -> Lanes:
    ranks = {rank for call in matched.calls for rank in (call.rank, call.sender) if rank is not None}
    events = tuple(
        Event(call.rank, call.text, call.sender, position == matched.different)
        for position, call in enumerate(matched.calls)
    )
    return Lanes(f"messages under {matched.schedule}", tuple(sorted(ranks)), events)
