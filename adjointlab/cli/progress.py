"""The progress line: on a terminal, on rank 0, and not with --quiet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from adjointlab.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["ProgressLine", "progress_line"]

_INTERVAL = 0.1
"""Seconds between two refreshes: drawing the line takes longer than many a case."""


class ProgressLine:
    """One line for the piece of work that is being done; silent without a bar."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar

    def track(self, label: str, total: int | None = None) -> Callable[..., None]:
        """Begin a piece of work; return ``tick(done, total)``, whose total may be left out if it is given here."""
        bar = self._bar
        if bar is None:
            return lambda done, total=None: None
        # A task of its own for each piece of work, so that the time left is estimated from its cases alone.
        for task in bar.task_ids:
            bar.remove_task(task)
        task, shown = bar.add_task(label, total=total), 0.0

        def tick(done: int, total: int | None = None) -> None:
            nonlocal shown
            bar.update(task, completed=done, total=total)
            if time.monotonic() - shown > _INTERVAL:
                shown = time.monotonic()
                bar.refresh()

        return tick

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the line off the screen while something else is printed."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        yield
        self._bar.start()


@contextmanager
def progress_line(*, is_shown: bool, time_left: bool = False) -> Iterator[ProgressLine]:
    """Show a progress line with the time elapsed, or the `time_left` where totals are known for certain."""
    console = Output(to_stderr=True).console
    if not is_shown or not console.is_terminal:
        yield ProgressLine(None)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    columns += [TextColumn("left"), TimeRemainingColumn()] if time_left else [TimeElapsedColumn()]
    # In the simulated world exactly one thread runs at a time, and a thread of rich's would take the interpreter's lock
    # from whichever rank that is. A proof works in other processes, and between two of its ticks the time left goes on.
    with Progress(*columns, console=console, transient=True, auto_refresh=time_left) as bar:
        yield ProgressLine(bar)
