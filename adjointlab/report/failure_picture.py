"""The picture of a failure on a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from adjointlab.check_result import CheckResult
from adjointlab.checks.drawing import verdict_drawing
from adjointlab.checks.verdict import Status
from adjointlab.pictures.model import Drawing, Matrices
from adjointlab.pictures.text import as_text, block_of
from adjointlab.store.files import printable

__all__ = ["failure_picture", "terminal_drawing"]

_RANKS: Final = 4
_LINES: Final = 14
"""Largest number of lines of a picture that includes matrices; if it is larger, only the tensors are shown."""


def failure_picture(check_result: CheckResult, *, unicode: bool) -> str:
    """Return the picture of a failure as text, to be printed below the lines of the failure; empty if there is nothing to draw.

    Without `unicode`, the lab's own symbols are ASCII. Characters in names and messages of user code that are not printable are
    escaped.
    """
    return printable(as_text(terminal_drawing(check_result), unicode=unicode), keep="\n")


def terminal_drawing(check_result: CheckResult) -> Drawing:
    """Return the drawing that :func:`failure_picture` prints, small enough for a terminal. ``as_rich`` prints it in colours."""
    if check_result.status is Status.COHERENT or not check_result.is_wrong:
        return Drawing("", ())
    drawing = verdict_drawing(check_result.result.verdict, _RANKS)
    if len(block_of(drawing)) > _LINES:
        without = tuple(part for part in drawing.parts if not isinstance(part, Matrices))
        drawing = replace(drawing, parts=without or drawing.parts)
    return drawing
