"""Whose code a line is: the worlds' own, the lab's, or user code. (A primitive or a layer is user code to the lab.)"""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType
from typing import Final

from adjointlab import MPI

__all__ = ["is_lab", "is_ours", "user_frame"]

_WORLDS: Final = (str(Path(__file__).parent) + os.sep, str(MPI.__file__))
_LAB: Final = str(Path(__file__).parents[1]) + os.sep
_ROOMS: Final = tuple(_LAB + room + os.sep for room in ("primitives", "layers"))


def is_ours(filename: str) -> bool:
    """Whether it is a file of the worlds."""
    return filename.startswith(_WORLDS)


def is_lab(filename: str) -> bool:
    """Whether it is a file of the lab: worlds, checks, harness, but no primitive or layer."""
    return filename.startswith(_LAB) and not filename.startswith(_ROOMS)


def user_frame(frame: FrameType) -> FrameType:
    """The innermost frame of user code from `frame` outwards; where there is none, the innermost outside the worlds."""
    outer: FrameType | None = frame
    while outer is not None and is_ours(outer.f_code.co_filename):
        outer = outer.f_back
    found = outer or frame
    # Further out than the world's own frames there is only what started the run.
    while outer is not None and not is_ours(outer.f_code.co_filename):
        if not is_lab(outer.f_code.co_filename):
            return outer
        outer = outer.f_back
    return found
