"""Subjects for checks in several processes: what cannot be sent, what prints, what kills its process, what takes for ever."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import Any

import adjointlab as al
from tests.samples import RingShift, WrongShift, equal_blocks


class Local:
    """A parameter that no other process can have."""

    def __init__(self) -> None:
        self.function = lambda: None


class Printing(WrongShift):
    """Prints in all ways."""

    def __init__(self, comm: Any, layout: al.Layout, local: Local) -> None:
        super().__init__(comm, layout)
        if comm.Get_rank() == 0:
            print("printed by", type(self).__name__)
            os.write(2, b"written to standard error\n")


class Unsendable(Printing):
    """Its parameter cannot be sent, and so no case runs."""


class Segfaulting(RingShift):
    """Kills its process."""

    def forward(self, x: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)
        return x


class SegfaultingWhenSmaller(WrongShift):
    """Is wrong, and kills its process with a number that its strategy does not draw."""

    def __init__(self, comm: Any, layout: al.Layout, number: int) -> None:
        super().__init__(comm, layout)
        if number < 3:
            os.kill(os.getpid(), signal.SIGSEGV)


class Exiting(RingShift):
    """Ends its process, with the exit code of success."""

    def forward(self, x: Any) -> Any:
        os._exit(0)


@al.subject(WrongShift)
def wrong(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(RingShift)
def right(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(Printing)
def printing(draw: Any, ranks: int) -> dict[str, Any]:
    return {**equal_blocks(draw, ranks), "local": None}


@al.subject(Unsendable)
def unsendable(draw: Any, ranks: int) -> dict[str, Any]:
    return {**equal_blocks(draw, ranks), "local": Local()}


@al.subject(Segfaulting)
def segfaulting(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(SegfaultingWhenSmaller)
def segfaulting_when_smaller(draw: Any, ranks: int) -> dict[str, Any]:
    return {**equal_blocks(draw, ranks), "number": 3}


@al.subject(Exiting)
def exiting(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


if "pytest" not in sys.modules:  # in a command
    # All processes of a command begin alike, whatever a module does to the first.
    assert "JOBS_SAMPLES" not in os.environ
    os.environ["JOBS_SAMPLES"] = "imported"
    atexit.register(print, "printed at the end")
