"""The output of ``adjointlab check``: each verdict as it is reached, each failure once, and a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from adjointlab.cli.output import Output, describe_ranks
from adjointlab.quantities import counted
from adjointlab.store.files import printable, working_directory

if TYPE_CHECKING:
    from adjointlab.check_result import CheckResult
    from adjointlab.engine.discovery import Found
    from adjointlab.report.tables import VerdictRows
    from adjointlab.worlds.world import World

__all__ = ["CheckReport"]

_SECONDS_BETWEEN_ESTIMATES: Final = 30.0
"""Interval at which the remaining time is printed to a log, which has no progress line."""

_EARLY: Final = 0.02
"""Fraction of the checks that must be done before the remaining time is estimated."""

_MOST_UNUSED: Final = 5
"""Largest number of unused lines of a list of known failures that are printed."""


@dataclass
class CheckReport:
    """Prints the results of a plan's checks in the order of the plan.

    `plan` has pairs of a subject and a check, and `cases` are drawn for each. With `quiet`, only failures are printed; with `verbose`,
    failures that repeat an earlier one are printed in full too. Paths are relative to `folder`, the current folder at the start.
    """

    out: Output
    plan: Sequence[tuple[Found, str]]
    cases: int
    folder: Path
    quiet: bool = False
    verbose: bool = False
    results: list[CheckResult] = field(default_factory=list)
    _printed: int = 0
    _is_headed: bool = False
    begun: float = field(default_factory=time.monotonic)
    _estimated: float = field(default_factory=time.monotonic)

    def add(self, result: CheckResult) -> None:
        """Add the result of the next check."""
        self.results.append(result)

    def print_new(self) -> None:
        """Print the results that have not been printed yet: the text of a failure, then the row of its verdict."""
        for number in range(self._printed, len(self.results)):
            self._print_result(number)
        self._printed = len(self.results)
        self._print_estimate()

    @property
    def time_left(self) -> str:
        """An estimate of the remaining time, such as "about 1:30 left"; empty while there is none."""
        done = len(self.results) / max(1, len(self.plan))
        if not _EARLY < done < 1:
            return ""
        seconds = round((time.monotonic() - self.begun) * (1 - done) / done)
        return f"about {seconds // 60}:{seconds % 60:02} left"

    def print_summary(
        self, world: World, unused: Sequence[str], notes: Sequence[str], asked: int, seconds: float | None
    ) -> None:
        """Print the notes on what the verdicts do not cover, the list of failures, and the counts; `asked` is the number of checks."""
        from adjointlab.report.recap import recap
        from adjointlab.report.summary import notes as notes_on
        from adjointlab.report.summary import summary

        self.out.line()
        for note in (*notes_on(self.results), *notes):
            self.out.line(f"{note}\n")
        for position in unused[:_MOST_UNUSED]:
            self.out.line(f"{position}: lists a failure of something that was not checked")
        if (more := len(unused) - _MOST_UNUSED) > 0:
            self.out.line(f"and {counted(more, 'more line')} of the list")
        if len(self.results) > 1 or any(entry.is_misdeclared for entry in self.results):
            with working_directory(self.folder):
                for line in recap(self.results):
                    self.out.line(line)
        self.out.line(f"{summary(self.results, asked, seconds)}, {describe_ranks(world)}")

    def print_gaps(self, notes: Sequence[str]) -> None:
        """Print to standard error the notes on code that was probably meant to be checked, but was not."""
        from adjointlab.report.summary import silent

        for note in filter(None, (*notes, silent(self.results))):
            Output(to_stderr=True).line(f"adjointlab: {note}")

    @cached_property
    def _rows(self) -> VerdictRows:
        from adjointlab.report.tables import VerdictRows

        labels = [(found.subject.label, name) for found, name in self.plan]
        return VerdictRows.of(labels, self.cases, self.out.console.width if self.out.is_terminal else None)

    def _print_result(self, number: int) -> None:
        from adjointlab.report.failure_picture import terminal_drawing
        from adjointlab.report.failure_text import failure_text

        result = self.results[number]
        if result.is_misdeclared and not result.known:
            message = f"{result.found.reference}: {result.result.verdict.headline}"
            Output(to_stderr=True).line(f"adjointlab: {message}")
            return
        like = None if self.verbose else self._earlier_like(number)
        with working_directory(self.folder):
            text = failure_text(result) if result.is_reported and like is None else ""
            if not (self._is_headed or self.quiet):
                self._is_headed = True
                self.out.table(self._rows.heading(), wraps=False)
            if text:
                self.out.line(text if self.quiet else f"\n{text}")
                if drawing := terminal_drawing(result):
                    self.out.line()
                    self.out.drawing(drawing)
                self.out.line()
            if not self.quiet or like is not None:
                self.out.table(self._rows.row(number + 1, result, like), wraps=False)

    def _earlier_like(self, number: int) -> CheckResult | None:
        """Return the first earlier failure of the same subject that has the same headline."""
        result = self.results[number]
        if not result.is_reported or result.known:
            return None
        return next((each for each in self.results[:number] if each.fault == result.fault), None)

    def _print_estimate(self) -> None:
        now, left = time.monotonic(), self.time_left
        if (
            self.quiet
            or not left
            or self.out.is_terminal
            or now - self._estimated < _SECONDS_BETWEEN_ESTIMATES
        ):
            return
        self._estimated = now
        self.out.line(
            f"{len(self.results)} of {len(self.plan)} checks after {now - self.begun:.0f} s, {printable(left)}"
        )
