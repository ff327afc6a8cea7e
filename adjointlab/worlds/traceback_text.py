"""Tracebacks as reports print them: the frames of the user's code."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.library_files import is_of_hypothesis, is_of_library

__all__ = ["without_own_frames"]

_FRAME: Final = re.compile(r'  File "(?P<file>[^"]*)".*\n(?:    .*\n?)*')


def without_own_frames(text: str) -> str:
    """Return a traceback without the frames of the lab, those of Hypothesis, which stands between it and a strategy, and what
    either calls; nor those of wrappers of its functions.

    One that has no other frames is returned as it is.
    """
    frames = list(_FRAME.finditer(text))
    users = [frame for frame in frames if not _is_own(frame)]
    wrappers = [frame for frame, called in pairwise(frames) if _is_wrapper(frame) and _is_own(called)]
    if not users:
        return text
    # Where the lab alone has raised, the line that did is told.
    users = [frame for frame in users if frame not in wrappers] or frames[-1:]
    # Of an installed library, those frames stay that user code has called: it may be the user code itself, where there is no other.
    kept: set[int] = set()
    of_project = [frame for frame in users if not is_of_library(frame["file"])]
    previous = False
    for frame in frames:
        previous = frame in of_project or (frame in users and (previous or not of_project))
        if previous:
            kept.add(frame.start())
    return _FRAME.sub(lambda frame: frame[0] if frame.start() in kept else "", text)


def _is_wrapper(frame: re.Match[str]) -> bool:
    """Return True for a frame of Python's own wrappers of functions, such as `cached_property`."""
    return frame["file"].endswith(("/functools.py", "/contextlib.py")) and is_of_library(frame["file"])


def _is_own(frame: re.Match[str]) -> bool:
    return is_lab(frame["file"]) or is_of_hypothesis(frame["file"])
