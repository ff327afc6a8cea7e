"""MPI calls of simulated ranks as reports show them: cheap to note, formatted only when a report needs them."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from adjointlab import MPI
from adjointlab.worlds.call_sites import CallSite, user_frame

__all__ = ["SimulatedCall", "call_here"]


class SimulatedCall:
    """A call: its name, the arguments worth showing, and the line of user code that makes it."""

    __slots__ = ("_arguments", "_code", "_instruction", "name")

    def __init__(self, name: str, arguments: tuple[tuple[str, Any], ...], frame: FrameType) -> None:
        self.name = name
        self._arguments = arguments
        # Not the frame itself, which would keep all local variables of user code alive.
        self._code = frame.f_code
        self._instruction = frame.f_lasti

    @property
    def where(self) -> str:
        """``file:line`` of the caller."""
        return str(CallSite(self._code, self._instruction))

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_formatted(value)}" for name, value in self._arguments)
        return f"{self.name}({shown})"


def call_here(name: str, *arguments: tuple[str, Any]) -> SimulatedCall:
    """The call `name` that user code is making now."""
    return SimulatedCall(name, arguments, user_frame(sys._getframe(1)))


def _formatted(value: Any) -> str:
    return value.value if isinstance(value, MPI.Op) else str(value)
