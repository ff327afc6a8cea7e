"""Drawings of verdicts, made from their evidence."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from adjointlab.checks.compared import OF_SPECIFICATION
from adjointlab.checks.evidence import ComparedMatrices, Element, MatchedCalls, Place, Wait
from adjointlab.checks.told import hints_told
from adjointlab.checks.verdict import Verdict
from adjointlab.pictures.layouts import shown_ranks
from adjointlab.pictures.model import (
    Drawing,
    Event,
    Grid,
    Lanes,
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
from adjointlab.spelling import from_here
from adjointlab.worlds.diagnosis import find_cycle

__all__ = ["verdict_drawing"]

_RANKS: Final = 8
_WAITING: Final = 16


def verdict_drawing(verdict: Verdict, most_ranks: int = _RANKS) -> Drawing:
    """The drawing of a failure, each tensor with at most `most_ranks` ranks; without parts if there is no evidence to draw."""
    return Drawing("", tuple(_parts(verdict, most_ranks)))


def _parts(verdict: Verdict, most_ranks: int) -> Iterator[Part]:
    evidence = verdict.evidence
    if evidence is None:
        return
    if evidence.matrices is not None:
        yield _movement(evidence.matrices, most_ranks)
        yield _matrices(evidence.matrices)
    elif evidence.place is not None:
        yield from _place(evidence.place, most_ranks)
    if evidence.waits:
        yield _waits(evidence.waits)
    for matched in evidence.matched:
        yield _lanes(matched)
    yield from (Remark(hint.text) for hint in hints_told(verdict))


# Values


def _movement(matrices: ComparedMatrices, most_ranks: int) -> Movement:
    """The two elements between which the weight is wrong, in their tensors, and that weight in each direction."""
    row, column = matrices.first
    values = [entries[row][column] for entries in matrices.entries]
    source, target = matrices.of_domain, matrices.of_codomain
    grids = (_with_fewer(source.grid, most_ranks), _with_fewer(target.grid, most_ranks))
    return Movement(grids, _name(source), _name(target), _weights(matrices.names, values))


def _name(element: Element) -> str:
    return f"{element.name} on rank {element.rank}"


def _with_fewer(grid: Grid, most_ranks: int) -> Grid:
    """The grid with at most `most_ranks` pieces, including those with marked cells."""
    shown = shown_ranks([piece.rank for piece in grid.pieces], grid.marks[:most_ranks], most_ranks)
    pieces = tuple(piece for piece in grid.pieces if piece.rank in shown)
    return replace(grid, pieces=pieces, marks=tuple(mark for mark in grid.marks if mark.rank in shown))


def _weights(names: Sequence[str], values: Sequence[str]) -> tuple[Weight, ...]:
    """The arrows: one for each matrix, and for the specification a remark on those that differ from it."""
    expected = dict(zip(names, values, strict=True)).get(OF_SPECIFICATION)
    weights = []
    for name, value in zip(names, values, strict=True):
        if name == OF_SPECIFICATION:
            continue
        is_back = name.startswith("adjoint")
        if expected is not None:
            remark = "" if value == expected else f"should be ×{expected}"
        else:
            remark = f"must be forward's ×{values[0]}" if is_back else ""
        short = name.partition(",")[0]
        weights.append(Weight(short, value, is_back, bool(remark), remark))
    return tuple(weights)


def _matrices(matrices: ComparedMatrices) -> Matrices:
    expected = matrices.entries[-1] if OF_SPECIFICATION in matrices.names else None
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
    return Matrices(*matrices.labels, tuple(drawn), note)


def _place(place: Place, most_ranks: int) -> Iterator[Part]:
    yield replace(_with_fewer(place.grid, most_ranks), note="")
    (name, value), (other, expected) = place.values
    yield Remark(f"{Role.WRONG.value} {place.where}: {name} = {value}, {other} = {expected}")


# Hangs and schedules


def _waits(waits: Sequence[Wait]) -> Waits:
    blocked = {wait.rank: wait.waits_for for wait in waits if wait.is_blocked}
    cycle = tuple(find_cycle(blocked))
    # If there are many, prefer the ranks of the cycle, then others that wait.
    order = sorted(waits, key=lambda wait: (wait.rank not in cycle, not wait.is_blocked, wait.rank))
    shown = sorted(order[:_WAITING], key=lambda wait: wait.rank)
    waiting = tuple(
        Waiting(wait.rank, wait.call, _shown(wait.where), _code(wait.where), wait.waits_for, wait.is_blocked)
        for wait in shown
    )
    return Waits(waiting, cycle, len(waits) - len(shown))


def _shown(where: str) -> str:
    path, separator, number = where.rpartition(":")
    return f"{from_here(Path(path))}{separator}{number}" if path else where


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
