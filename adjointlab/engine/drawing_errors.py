"""Errors that a strategy raises: their text, and whether the lab has rejected an argument that the strategy gave it."""

from __future__ import annotations

import re
import traceback
from inspect import getargvalues
from types import FrameType

from hypothesis.strategies import SearchStrategy

from adjointlab.spelling import described_type
from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.exception_text import causes, message_of
from adjointlab.worlds.library_files import is_of_hypothesis, is_of_library

__all__ = ["advice_on", "forgotten_draw", "formatted", "is_of_strategy", "refusal"]

_NOTE = "while generating "
"""Beginning of the notes in which Hypothesis repeats the arguments of the strategies that were running."""


def forgotten_draw(*values: object) -> str:
    """Return advice for a message that `draw(...)` is perhaps missing, if a value is a strategy or a list with one; else nothing."""
    each_of = (each if isinstance(each, list | tuple) else (each,) for each in values)
    is_forgotten = any(isinstance(value, SearchStrategy) for entries in each_of for value in entries)
    return "; is a `draw(...)` around it missing?" if is_forgotten else ""


def is_of_strategy(error: BaseException) -> bool:
    """Return True for Python's error on a strategy that was used in place of its value, as in the sum of one and a number."""
    is_misuse = isinstance(error, TypeError | AttributeError)
    return is_misuse and re.search(r"'\w*Strategy'", message_of(error)) is not None


def advice_on(error: BaseException) -> str:
    """Return advice on an error that Python raises if `draw` is left out, or its argument is not a strategy; empty for others."""
    if is_of_strategy(error):
        return "a `draw(...)` around a strategy is missing"
    # Hypothesis calls this method of whatever `draw` is given.
    if isinstance(error, AttributeError) and error.name == "validate":
        return f"`draw` takes a strategy, such as adjointlab.strategies.shapes(2), and was given {described_type(error.obj)}"
    return ""


def formatted(error: BaseException) -> str:
    """Return the traceback of `error` without Hypothesis's notes."""
    for each in causes(error):
        if notes := getattr(each, "__notes__", None):
            each.__notes__ = [note for note in notes if not str(note).startswith(_NOTE)]
    return "".join(traceback.format_exception(error)).rstrip()


def refusal(error: BaseException) -> str | None:
    """Return the message, with its place, of an error in which the lab rejects a strategy's arguments; None for any other error."""
    if not isinstance(error, ValueError | TypeError):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    called = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    users = [
        number
        for number, frame in enumerate(frames)
        if not is_lab(frame.filename) and not is_of_library(frame.filename)
    ]
    last = users[-1] if users else len(frames)
    # Frames of Hypothesis may come before the lab's, and frames of the standard library, such as of an enumeration, after them.
    refusing = next((number for number in range(last, len(frames)) if is_lab(frames[number].filename)), None)
    if refusing is None:
        return None
    caller = frames[last]
    # Not the frames of Hypothesis, one of whose arguments is the strategy that it draws from.
    own = [each for each in range(last + 1, refusing + 1) if not is_of_hypothesis(frames[each].filename)]
    given = [value for each in own for value in _arguments(called[each])]
    return f"{message_of(error)}{forgotten_draw(*given)} ({caller.filename}:{caller.lineno})"


def _arguments(frame: FrameType) -> list[object]:
    """The arguments with which the function of a frame was called, unless it has rebound their names."""
    names, rest, _, values = getargvalues(frame)
    return [values.get(name) for name in names] + [*values.get(rest or "", ())]
