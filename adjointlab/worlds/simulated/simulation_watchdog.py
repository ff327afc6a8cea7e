"""The watchdog of one run of the simulated world."""

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
    """Ends a run that exceeds its time limit."""

    _raised_at: float  # once the run is overdue: the elapsed seconds when the exception was raised
    _raised_in: Task

    def __init__(self, watchdog: Watchdog, scheduler: Scheduler, payload: object) -> None:
        self._watchdog = watchdog
        self._scheduler = scheduler
        self._payload = payload
        self._elapsed = Elapsed()
        self._exceeded = 0.0  # the limit in seconds that was exceeded; 0 until then

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
                # The rank's outcome, even if user code swallows the exception.
                outcome = Raised.overdue(overdue(self._exceeded, place), stack_of_thread(thread))
                self._scheduler.raise_in(running, _overdue_class(self._exceeded, place), outcome)
        elif running is not self._raised_in:
            # The overdue rank has ended; the grace period starts again for the next one.
            self._raised_at, self._raised_in = self._elapsed.total, running
        elif self._elapsed.total - self._raised_at > self._watchdog.grace(limit):
            self._watchdog.report_overdue(f"rank {running.rank}", self._exceeded, self._payload, thread)
            os._exit(ExitCode.UNJUDGED)


def _overdue_class(limit: float, place: str) -> type[Overdue]:
    """Subclass of :class:`Overdue` with a fixed message, because CPython raises only classes, not instances, in another thread."""

    class OverdueHere(Overdue):
        def __init__(self) -> None:
            super().__init__(str(overdue(limit, place)))

    # The name that tracebacks show.
    OverdueHere.__module__ = Overdue.__module__
    OverdueHere.__name__ = OverdueHere.__qualname__ = Overdue.__name__
    return OverdueHere
