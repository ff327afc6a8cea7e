"""How a rank waits without taking the processor from the ranks that it waits for."""

from __future__ import annotations

import os
import time
from typing import Final

__all__ = ["pause", "processors", "yield_processor"]

# Shorter waits than this are worth a processor; a sleep costs about 60 microseconds at the least.
_LINGER: Final = 1e-3
_SHORTEST: Final = 5e-5
_LONGEST: Final = 1e-3


def _sleep_nothing() -> None:
    time.sleep(0)


#: Let another process have the processor, if one wants it.
yield_processor = getattr(os, "sched_yield", _sleep_nothing)


def pause(waited: float) -> None:
    """Rest in a wait that has lasted `waited` seconds: the longer it has lasted, the longer."""
    if waited < _LINGER:
        yield_processor()
    else:
        time.sleep(min(_LONGEST, max(_SHORTEST, waited / 10)))


def processors() -> int:
    """How many processors this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))
