"""Errors that a strategy raises: their text, and whether it is the lab that has refused what the strategy gave it."""

from __future__ import annotations

import traceback

from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.library_files import is_of_library
from adjointlab.worlds.world import causes, message_of

__all__ = ["formatted", "refusal"]

_NOTE = "while generating "
"""Beginning of the notes in which Hypothesis repeats the arguments of the strategies that were at work."""


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
    users = [
        number
        for number, frame in enumerate(frames)
        if not is_lab(frame.filename) and not is_of_library(frame.filename)
    ]
    # Behind the lab's there may be frames of the standard library, such as those of an enumeration.
    if not users or not any(is_lab(frame.filename) for frame in frames[users[-1] :]):
        return None
    caller = frames[users[-1]]
    return f"{message_of(error)} ({caller.filename}:{caller.lineno})"
