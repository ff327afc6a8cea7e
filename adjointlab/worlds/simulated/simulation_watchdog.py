"""The watchdog of one run of the simulated world, which ends a run that lasts too long."""

from __future__ import annotations

import os
from typing import cast

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.call_sites import call_site_of_thread
from adjointlab.worlds.elapsed import Elapsed
from adjointlab.worlds.run import Raised
from adjointlab.worlds.simulated.scheduler import Scheduler, Task
from adjointlab.worlds.watchdog import Overdue, Watchdog, overdue, stack_of_thread

__all__ = ["SimulationWatchdog"]


class SimulationWatchdog:
    """Ends one run that has lasted too long."""

    _raised_at: float  # once it is overdue: the seconds that the run had lasted
    _raised_in: Task

    def __init__(self, watchdog: Watchdog, scheduler: Scheduler, payload: object) -> None:
        self._watchdog = watchdog
        self._scheduler = scheduler
        self._payload = payload
        self._elapsed = Elapsed()
        self._exceeded = 0.0  # once it is overdue: the seconds that it has exceeded

    def look(self) -> None:
        """Raise :class:`Overdue` in the running rank once the limit is exceeded; some seconds later, end the process."""
        limit = self._watchdog.seconds_in_simulation
        running = self._scheduler.current
        if running.worker is None:
            return
        started = running.worker.thread
        thread, native_thread = cast(int, started.ident), cast(int, started.native_id)
        self._elapsed.look(native_thread, self._scheduler.progress)
        if not self._exceeded:
            self._exceeded = self._elapsed.exceeded(limit, thread)
            if self._exceeded:
                self._raised_at, self._raised_in = self._elapsed.total, running
                self._watchdog.has_fired = True
                place = call_site_of_thread(thread)
                # Its outcome, also where user code swallows the exception.
                outcome = Raised.overdue(overdue(self._exceeded, place), stack_of_thread(thread))
                self._scheduler.raise_in(running, _overdue_class(self._exceeded, place), outcome)
        elif running is not self._raised_in:
            # The one that was overdue has come to its end, and has used the seconds that it was given for that.
            self._raised_at, self._raised_in = self._elapsed.total, running
        elif self._elapsed.total - self._raised_at > self._watchdog.grace(limit):
            self._watchdog.report_overdue(f"rank {running.rank}", self._exceeded, self._payload, thread)
            os._exit(ExitCode.UNJUDGED)


def _overdue_class(limit: float, place: str) -> type[Overdue]:
    """Class of an :class:`Overdue` with its message: CPython takes a class to raise in another thread, not an instance."""

    class OverdueHere(Overdue):
        def __init__(self) -> None:
            super().__init__(str(overdue(limit, place)))

    # As tracebacks show it.
    OverdueHere.__module__ = Overdue.__module__
    OverdueHere.__name__ = OverdueHere.__qualname__ = Overdue.__name__
    return OverdueHere
