"""The watchdog of the simulated world. It needs no thread: the one that waits for the ranks looks after them."""

from __future__ import annotations

import os
import time
from typing import Any

from adjointlab.worlds.call_sites import call_site_of_thread
from adjointlab.worlds.simulated.scheduler import Scheduler
from adjointlab.worlds.watchdog import EXIT_CODE, Overdue, Watchdog, too_late

__all__ = ["SimulationWatchdog"]


class SimulationWatchdog:
    """Sees to it that one run ends."""

    def __init__(self, watchdog: Watchdog, scheduler: Scheduler, payload: Any) -> None:
        self._watchdog = watchdog
        self._scheduler = scheduler
        self._payload = payload
        self._begun = time.monotonic()
        self._told = False

    def look(self) -> None:
        """End what has lasted too long: first by an exception in the rank that runs, then with the process."""
        limit = self._watchdog.seconds_in_simulation
        over = time.monotonic() - self._begun - limit
        if over < 0:
            return
        running = self._scheduler.current
        thread = 0 if running.worker is None else running.worker.thread.ident or 0
        if not self._told:
            self._told = True
            self._watchdog.has_barked = True
            self._scheduler.raise_in_current(_overdue(limit, call_site_of_thread(thread)))
        elif over > self._watchdog.grace(limit):
            self._watchdog.account(f"rank {running.rank}", limit, self._payload, thread)
            os._exit(EXIT_CODE)


def _overdue(limit: float, place: str) -> type[Overdue]:
    """:class:`Overdue` with its words in it: only a class can be raised in another thread."""

    class Late(Overdue):
        def __init__(self) -> None:
            super().__init__(str(too_late(limit, place)))

    Late.__name__, Late.__qualname__, Late.__module__ = (
        Overdue.__name__,
        Overdue.__qualname__,
        Overdue.__module__,
    )
    return Late
