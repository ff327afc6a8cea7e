"""Errors that a strategy raises: their text, and whether it is the lab that has refused what the strategy gave it."""

from __future__ import annotations

import re
import traceback
from inspect import getargvalues
from types import FrameType

from hypothesis.strategies import SearchStrategy

from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.library_files import is_of_library
from adjointlab.worlds.world import causes, message_of

__all__ = ["forgotten_draw", "formatted", "is_of_strategy", "refusal"]

_NOTE = "while generating "
"""Beginning of the notes in which Hypothesis repeats the arguments of the strategies that were at work."""


def forgotten_draw(*values: object) -> str:
    """Return advice for a message on one of the values: that `draw(...)` is missing, if one is a strategy or a list with one."""
    each_of = (each if isinstance(each, list | tuple) else (each,) for each in values)
    is_forgotten = any(isinstance(value, SearchStrategy) for entries in each_of for value in entries)
    return "; is a `draw(...)` around it missing?" if is_forgotten else ""


def is_of_strategy(error: BaseException) -> bool:
    """Return True for Python's own error on a strategy that was taken for what it draws, as in the sum of one and a number."""
    is_misuse = isinstance(error, TypeError | AttributeError)
    return is_misuse and re.search(r"'\w*Strategy'", message_of(error)) is not None


def formatted(error: BaseException) -> str:
    """Return the traceback of `error` without Hypothesis's notes."""
    for each in causes(error):
        if notes := getattr(each, "__notes__", None):
            each.__notes__ = [note for note in notes if not str(note).startswith(_NOTE)]
    return "".join(traceback.format_exception(error)).rstrip()


def refusal(error: BaseException) -> str | None:
    """Return the sentence with which the lab refuses what a strategy gave it, and where; None for any other error."""
    if not isinstance(error, ValueError | TypeError):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    called = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    users = [
        number
        for number, frame in enumerate(frames)
        if not is_lab(frame.filename) and not is_of_library(frame.filename)
    ]
    # Behind the lab's there may be frames of the standard library, such as those of an enumeration.
    if not users or not any(is_lab(frame.filename) for frame in frames[users[-1] :]):
        return None
    caller = frames[users[-1]]
    return f"{message_of(error)}{forgotten_draw(*_arguments(called[users[-1] + 1]))} ({caller.filename}:{caller.lineno})"


def _arguments(frame: FrameType) -> list[object]:
    """The arguments with which the function of a frame was called, if it has not bound others to their names."""
    names, rest, _, values = getargvalues(frame)
    return [values.get(name) for name in names] + [*values.get(rest or "", ())]
