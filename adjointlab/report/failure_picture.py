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
"""Most lines of a picture that shows matrices too; of a larger one the tensors alone are shown."""


def failure_picture(check_result: CheckResult, *, unicode: bool) -> str:
    """The picture of a failure as text; empty if there is nothing to draw.

    It stands below the lines of the failure. Without `unicode` all of the lab's own signs are ASCII. Whatever the user's code
    has put into names and messages, all of it is printable.
    """
    return printable(as_text(terminal_drawing(check_result), unicode=unicode), keep="\n")


def terminal_drawing(check_result: CheckResult) -> Drawing:
    """The drawing that :func:`failure_picture` shows, small enough for a terminal; for colours, see ``as_rich``."""
    if check_result.status is Status.COHERENT or not check_result.is_wrong:
        return Drawing("", ())
    drawing = verdict_drawing(check_result.result.verdict, _RANKS)
    if len(block_of(drawing)) > _LINES:
        without = tuple(part for part in drawing.parts if not isinstance(part, Matrices))
        drawing = replace(drawing, parts=without or drawing.parts)
    return drawing
