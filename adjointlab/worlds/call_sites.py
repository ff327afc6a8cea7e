"""MPI calls and lines of user code as reports show them: recorded cheaply at every call, formatted only when a report needs them.

A frame on the stack of a rank belongs to one of four kinds of code. Reports name a line of the first kind that is present::

    user code       operators; the lab's own primitives and layers, which are tested like them; and its adapters, which communicate
                    for code that does not (all shards of which are in one process)
    torch           it calls process groups for user code, and in a backward pass for the lab; also Python's standard library
    the lab         checks, engine, core ...: it calls operators, and makes some calls of its own around them
    the worlds      this package, adjointlab.MPI, its process groups, and the threads that ranks run on
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from adjointlab import MPI
from adjointlab.worlds.backward import is_in_backward
from adjointlab.worlds.call_labels import label_of_call
from adjointlab.worlds.library_files import is_of_standard_library

__all__ = [
    "CallSite",
    "SimulatedCall",
    "call_here",
    "call_site",
    "call_site_of_thread",
    "caller",
    "came_back",
    "frame_of_thread",
    "is_lab",
    "is_worlds",
    "user_frame",
]

_LAB: Final = str(Path(__file__).parents[1]) + os.sep
_WORLDS: Final = (str(Path(__file__).parent) + os.sep, str(MPI.__file__), _LAB + "torch_distributed" + os.sep)
_TESTED_BY_LAB: Final = (
    *(_LAB + package + os.sep for package in ("primitives", "layers", "adapters")),
    # The messages of operators: a rank with memory of a device calls there what another one calls in the operator.
    os.path.join(_LAB, "core", "transport") + os.sep,
)


class CallSite(NamedTuple):
    """An instruction in user code. Its line is looked up lazily, because that takes longer than recording it."""

    code: CodeType
    instruction: int  # as in FrameType.f_lasti

    @property
    def line(self) -> int:
        """Line number."""
        for start, end, line in self.code.co_lines():
            # Instructions inserted by the compiler have no line.
            if start <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno

    @property
    def is_lab(self) -> bool:
        """True if the call is the lab's own, which does not interest the user."""
        return is_lab(self.code.co_filename)

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


def call_site() -> CallSite:
    """Site of the current call into the worlds: in user code, or else in the lab."""
    frame = user_frame(sys._getframe(1))
    return CallSite(frame.f_code, frame.f_lasti)


_REDIRECTION: Final = str(Path(__file__).with_name("comm_world.py"))


def caller(frame: FrameType) -> FrameType:
    """The frame that calls a communicator: `frame`, or its caller if `frame` redirects a call on MPI.COMM_WORLD."""
    below = frame.f_back
    return below if below is not None and frame.f_code.co_filename == _REDIRECTION else frame


_LISTING: Final = threading.Lock()


def frame_of_thread(thread: int) -> FrameType | None:
    """Return the innermost frame of a thread; None if it has ended."""
    # CPython 3.11 (gh-106883) may run the garbage collector while it holds the lock of its list of threads. Finalizers may wait for
    # that lock, so that the process hangs for ever, or crashes. A frame object for each of hundreds of simulated ranks triggers it.
    with _LISTING:
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)
        finally:
            if is_enabled:
                gc.enable()


def call_site_of_thread(thread: int) -> str:
    """``file:line`` of the user code that a thread is executing."""
    frame = frame_of_thread(thread)
    if frame is None:
        return "an unknown place"
    frame = user_frame(frame)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Origin(Enum):
    """Owner of a source file."""

    WORLDS = auto()
    LAB = auto()
    TORCH = auto()
    USER = auto()


_DISTRIBUTED: Final = os.sep + "distributed" + os.sep
_USER: Final = Origin.USER
_LAB_ITSELF: Final = Origin.LAB


# Cached, because every MPI call needs it for each frame up to user code: a look-up by a string whose hash is known is twice
# as fast as comparing prefixes.
@lru_cache(maxsize=4096)
def _origin(filename: str) -> Origin:
    if filename.startswith(_WORLDS):
        return Origin.WORLDS
    if filename.startswith(_LAB) and not filename.startswith(_TESTED_BY_LAB):
        return Origin.LAB
    torch = sys.modules.get("torch")
    is_torch = torch is not None and filename.startswith(str(Path(str(torch.__file__)).parent) + os.sep)
    # The standard library has decorators, such as that of torch's deprecated functions, and waits for processes, locks and files.
    is_of_python = is_of_standard_library(filename) or os.path.basename(filename) == "typing_extensions.py"
    return Origin.TORCH if is_torch or is_of_python else Origin.USER


def is_worlds(filename: str) -> bool:
    """Return True for a file of the worlds."""
    return _origin(filename) is Origin.WORLDS


def is_lab(filename: str) -> bool:
    """Return True for a file of the lab (the worlds are part of it), but not of a primitive or a layer."""
    return _origin(filename) in (Origin.LAB, Origin.WORLDS)


def user_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame of user code from `frame` outwards; if there is none, the innermost outside the worlds.

    The search ends at the next frame of the worlds: the frames further out started the run, and in the simulated
    world they include the user's test, rather than the operator that the rank is in. If torch makes the call without user code
    behind it, in the backward pass of its own functions, the result is the outermost frame of torch.distributed; in a thread whose
    target is a method of a communicator, it is the frame of the threading library that calls it.
    """
    outer: FrameType | None = frame
    of_torch: FrameType | None = None
    of_library: FrameType | None = None
    while outer is not None:
        origin = _origin(outer.f_code.co_filename)
        if origin is _USER:
            return outer  # by far the most frequent way out
        if origin is _LAB_ITSELF:
            return _user_frame_behind(outer, of_torch or outer)
        if origin is Origin.TORCH:
            of_library = of_library or outer
            if _DISTRIBUTED in outer.f_code.co_filename:
                of_torch = outer
        outer = outer.f_back
    return of_torch or of_library or frame


def _user_frame_behind(lab_frame: FrameType, otherwise: FrameType) -> FrameType:
    outer = lab_frame.f_back
    while outer is not None and (origin := _origin(outer.f_code.co_filename)) is not Origin.WORLDS:
        if origin is Origin.USER:
            return outer
        outer = outer.f_back
    return otherwise


def came_back(function: Callable[..., object] | None) -> str:
    """Verb phrase for a rank in one of the lab's own calls; `function` is the user code from which it returned last."""
    function = None if function is None else inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return "returned from user code"
    return f"returned from {code.co_qualname} at {code.co_filename}:{code.co_firstlineno}"


class SimulatedCall:
    """A call: its name, the arguments worth showing, and the line of user code that makes it, perhaps in a backward pass of torch."""

    __slots__ = ("_arguments", "_code", "_instruction", "in_backward", "name")

    def __init__(self, name: str, arguments: tuple[tuple[str, object], ...], frame: FrameType) -> None:
        self.name = name
        self._arguments = arguments
        # The frame itself would keep all local variables of user code alive.
        self._code = frame.f_code
        self._instruction = frame.f_lasti
        self.in_backward = is_in_backward()

    @property
    def where(self) -> str:
        """``file:line`` of the caller."""
        return str(CallSite(self._code, self._instruction))

    @property
    def is_lab(self) -> bool:
        """True if the call is the lab's own, which does not interest the user."""
        return is_lab(self._code.co_filename)

    def is_beside(self, other: SimulatedCall) -> bool:
        """Return True if `other` was made by the same line of user code, in the same kind of pass."""
        if self._code is not other._code or self.in_backward != other.in_backward:
            return False
        # The compiler may copy a call into both branches of a condition in its arguments.
        return self._instruction == other._instruction or self.where == other.where

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_formatted(value)}" for name, value in self._arguments)
        return f"{self.name}({shown})"


def call_here(name: str, *arguments: tuple[str, object]) -> SimulatedCall:
    """The call `name` that user code is making now, or its label if it has one."""
    label = label_of_call()
    if label is not None:
        name, arguments = label
    return SimulatedCall(name, arguments, user_frame(sys._getframe(1)))


def _formatted(value: object) -> str:
    return str(value.value) if isinstance(value, MPI.Op) else str(value)
