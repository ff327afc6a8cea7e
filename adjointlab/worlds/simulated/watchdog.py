"""Watchdog of the simulated world. It needs no thread of its own: the one that waits for the run calls it now and then."""

from __future__ import annotations

import os
import time
from typing import Any

from adjointlab.worlds.call_sites import call_site_of_thread
from adjointlab.worlds.simulated.scheduler import Scheduler
from adjointlab.worlds.watchdog import EXIT_CODE, Overdue, Watchdog, overdue

__all__ = ["SimulationWatchdog"]


class SimulationWatchdog:
    """Ends one run that has lasted too long."""

    def __init__(self, watchdog: Watchdog, scheduler: Scheduler, payload: Any) -> None:
        self._watchdog = watchdog
        self._scheduler = scheduler
        self._payload = payload
        self._started = time.monotonic()
        self._has_raised = False

    def look(self) -> None:
        """Raise :class:`Overdue` in the running rank once the limit has passed; some seconds later, end the process."""
        limit = self._watchdog.seconds_in_simulation
        over = time.monotonic() - self._started - limit
        if over < 0:
            return
        running = self._scheduler.current
        thread = 0 if running.worker is None else running.worker.thread.ident or 0
        if not self._has_raised:
            self._has_raised = True
            self._watchdog.has_fired = True
            self._scheduler.raise_in_current(_overdue_class(limit, call_site_of_thread(thread)))
        elif over > self._watchdog.grace(limit):
            self._watchdog.report_overdue(f"rank {running.rank}", limit, self._payload, thread)
            os._exit(EXIT_CODE)


def _overdue_class(limit: float, place: str) -> type[Overdue]:
    """Class of an :class:`Overdue` with its message: CPython takes a class to raise in another thread, not an instance."""

    class OverdueHere(Overdue):
        def __init__(self) -> None:
            super().__init__(str(overdue(limit, place)))

    OverdueHere.__name__, OverdueHere.__module__ = (
        Overdue.__name__,
        Overdue.__module__,
    )  # as tracebacks show it
    OverdueHere.__qualname__ = Overdue.__qualname__
    return OverdueHere
