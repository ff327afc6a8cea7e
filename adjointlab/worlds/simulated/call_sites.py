"""A call that a rank makes, with the line of user code that makes it: cheap to note, put into words only if asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from adjointlab import MPI

__all__ = ["Call", "call_here"]

# Frames of these files are the world's own; the caller is the innermost frame outside.
_WORLD = (str(Path(__file__).parents[1]) + os.sep, str(MPI.__file__))


class Call:
    """A call: its name, the arguments worth showing, and where it was made."""

    __slots__ = ("_arguments", "_code", "_instruction", "name")

    def __init__(
        self, name: str, arguments: tuple[tuple[str, Any], ...], code: CodeType, instruction: int
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._code = code
        self._instruction = instruction

    @property
    def where(self) -> str:
        """``file:line`` of the caller."""
        for start, end, line in self._code.co_lines():
            if start <= self._instruction < end and line is not None:
                return f"{self._code.co_filename}:{line}"
        return f"{self._code.co_filename}:{self._code.co_firstlineno}"

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_word(value)}" for name, value in self._arguments)
        return f"{self.name}({shown})"


def call_here(name: str, *arguments: tuple[str, Any]) -> Call:
    """The call `name` that user code is making now."""
    frame: FrameType = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_WORLD) and frame.f_back is not None:
        frame = frame.f_back
    return Call(name, arguments, frame.f_code, frame.f_lasti)


def _word(value: Any) -> str:
    if isinstance(value, MPI.Op):
        return value.value
    return str(value)
