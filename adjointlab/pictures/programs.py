"""Drawings of programs and operators: sequence diagrams of the data movement between ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adjointlab.pictures.layouts import grid_of_tensor
from adjointlab.pictures.model import Drawing, Event, Grid, Lanes, Movement, Part, Remark, Row

if TYPE_CHECKING:
    from adjointlab.core.operator import LinearOperator
    from adjointlab.core.program import Program
    from adjointlab.core.space import Space

__all__ = ["operator_drawing", "program_drawing"]

_MOST_STEPS = 60
_MOST_RANKS = 8


def program_drawing(program: Program) -> Drawing:
    """Return the drawing of a program: a lane for each rank, with its steps from top to bottom."""
    return Drawing("", (_lanes(program, ""),))


def operator_drawing(operator: LinearOperator) -> Drawing:
    """Return the drawing of an operator: its spaces, and its programs if it has a specification.

    Calls the operator's `specification`, which does not communicate.
    """
    parts: list[Part] = [_spaces(operator)]
    given = operator.specification()
    if given is None:
        parts.append(Remark("It has no specification: no program says what it does."))
    else:
        forward, adjoint = given if isinstance(given, tuple) else (given, given.adjoint())
        both = (_lanes(forward, f"forward, {operator}"), _lanes(adjoint, f"adjoint, {operator.H}"))
        parts.append(Row(both))
    return Drawing(type(operator).__name__, tuple(parts))


def _spaces(operator: LinearOperator) -> Part:
    grids = (*_grids(operator.domain, "domain"), *_grids(operator.codomain, "codomain"))
    return Movement(grids, "", "")


def _grids(space: Space, side: str) -> list[Grid]:
    return [
        replace(grid_of_tensor(tensor, f"{tensor.name} ({side})", most_pieces=_MOST_RANKS), note=str(tensor))
        for tensor in space.tensors
    ]


def _lanes(program: Program, title: str) -> Lanes:
    events = tuple(Event(target, text, source) for source, target, text in program.movements)
    ranks = sorted(
        {rank for event in events for rank in (event.source, event.target) if rank is not None}
        or {buffer.rank for buffer in program.inputs}
    )
    return Lanes(title, tuple(ranks), events[:_MOST_STEPS], max(0, len(events) - _MOST_STEPS))
