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
    """Return a traceback without the frames of the lab and of Hypothesis, of library functions that they call, and of wrappers of
    their functions.

    A traceback that has no other frames is returned unchanged.
    """
    frames = list(_FRAME.finditer(text))
    users = [frame for frame in frames if not _is_own(frame)]
    wrappers = [frame for frame, called in pairwise(frames) if _is_wrapper(frame) and _is_own(called)]
    if not users:
        return text
    # If only wrappers are left, the lab itself has raised: keep the innermost frame.
    users = [frame for frame in users if frame not in wrappers] or frames[-1:]
    # Frames of an installed library are kept if user code has called them, or if there is no other user code: the library may be the
    # code under test.
    kept: set[int] = set()
    of_project = [frame for frame in users if not is_of_library(frame["file"])]
    previous = False
    for frame in frames:
        previous = frame in of_project or (frame in users and (previous or not of_project))
        if previous:
            kept.add(frame.start())
    return _FRAME.sub(lambda frame: frame[0] if frame.start() in kept else "", text)


def _is_wrapper(frame: re.Match[str]) -> bool:
    """Return True for a frame of the standard library's function wrappers, such as `cached_property`."""
    return frame["file"].endswith(("/functools.py", "/contextlib.py")) and is_of_library(frame["file"])


def _is_own(frame: re.Match[str]) -> bool:
    return is_lab(frame["file"]) or is_of_hypothesis(frame["file"])
