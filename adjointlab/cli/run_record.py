"""The results of ``adjointlab check`` so far, which are printed and saved after each check and however the run ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adjointlab.cli.output import describe_ranks
from adjointlab.cli.result_files import RunResults
from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.exit_guard import earn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adjointlab.check_result import CheckResult
    from adjointlab.cli.check_report import CheckReport
    from adjointlab.cli.output import ProgressLine
    from adjointlab.cli.result_files import ResultFiles
    from adjointlab.engine.discovery import Found
    from adjointlab.engine.subject import Subject
    from adjointlab.report.junit import NotJudged
    from adjointlab.store.known_failures import KnownFailures
    from adjointlab.worlds.world import World

__all__ = ["RunRecord"]

_SECONDS_TO_SAVE = 0.02
"""Saving takes longer as the files grow. Up to this many seconds, the results are saved after every check."""

_SHARE_OF_SAVING = 0.05
"""Beyond that, saving takes at most this share of the time."""


@dataclass
class RunRecord:
    """The results of a plan's checks, from the first one on, with the report that prints them and the files that save them."""

    world: World
    nameless: list[str]  # notes on subjects that are not checked because they have no name
    known: KnownFailures | None
    unused: list[str]  # positions of its lines that match none of the checks, including those of other shards
    report: CheckReport
    files: ResultFiles
    shard: str
    position: int = 0  # in the plan, of the next result
    begun: float | None = None  # time at which the checks in other processes began
    is_stopped: bool = False
    _misdeclared: set[int] = field(default_factory=set)  # id() of subjects whose declaration is wrong
    _next_save: float = 0.0  # time from which the files may be saved again

    @property
    def plan(self) -> Sequence[tuple[Found, str]]:
        """The checks to run: each is a subject and the name of a check."""
        return self.report.plan

    @property
    def results(self) -> list[CheckResult]:
        """The results of the first checks of the plan."""
        return self.report.results

    def passes_over(self, subject: Subject) -> bool:
        """Return True if the declaration of `subject` is known to be wrong, and skip its next check in that case."""
        is_misdeclared = id(subject) in self._misdeclared
        self.position += is_misdeclared
        return is_misdeclared

    def take(self, result: CheckResult, line: ProgressLine) -> None:
        """Add the result of the next check of the plan, and print and save it."""
        from adjointlab.report.summary import outcome
        from adjointlab.store.job_log import supervised

        self.add(result)
        # The next case may end the process, which then exits with this code; only a complete run earns 0.
        earn(outcome(self.results) or ExitCode.UNJUDGED)
        # Printed and saved at once, because the next case may end the process. A supervised job is then restarted
        # and reads its earlier results from the log, so it prints all results once, at its end.
        if supervised() is None and self.world.is_leader:
            with line.paused():
                self.report.print_new()
            if (began := time.monotonic()) >= self._next_save:
                self.save_so_far()
                taken = time.monotonic() - began
                self._next_save = began + (taken / _SHARE_OF_SAVING if taken > _SECONDS_TO_SAVE else 0.0)

    def add(self, result: CheckResult) -> None:
        """Add the result of the next check of the plan, unless an earlier check has found the subject's declaration wrong."""
        subject = result.found.subject
        if self.passes_over(subject):
            return
        self.position += 1
        if result.is_misdeclared:
            self._misdeclared.add(id(subject))
        if self.known and (listed := self.known.of_check(subject.label, result.result.check)):
            result = result.listed(str(listed))
        self.report.add(result)

    def stop(self, code: int, why: str, details: str = "") -> None:
        """Print and save the results so far, because the run ends early; `details` are sentences that explain `why` or say what to do."""
        self.is_stopped = True
        self.print_results()
        self.save(code, f"{why}. {details}" if details else why)
        self.report.out.line(f"{len(self.results)} of {len(self.plan)} are done. {details}".rstrip())

    def print_results(self) -> None:
        """Print the results that have not been printed, the notes on what they do not cover and, unless quiet, the counts."""
        if not self.world.is_leader:
            return
        self.report.print_new()
        if self.report.quiet:
            self.report.print_gaps(self.nameless)
        else:
            asked = len(self.results) + len(self._missing())
            self.report.print_summary(self.world, self.unused, self.nameless, asked, self._seconds)

    @property
    def _seconds(self) -> float | None:
        """The seconds since the checks began; None if the duration is the sum over the checks."""
        # If the run is stopped, the running check is not part of that sum.
        begun = self.report.begun if self.begun is None and self.is_stopped else self.begun
        return None if begun is None else time.monotonic() - begun

    def save_so_far(self) -> None:
        """Rewrite the files, with a note that the run is not complete, because the process may be killed before it can add one."""
        from adjointlab.store.files import working_directory

        if not self.files.are_asked_for:
            return
        known = self.known_so_far(
            ExitCode.UNJUDGED, "the run is not complete: it is still running, or was killed"
        )
        with working_directory(self.report.folder):
            self.files.save_so_far(known)

    def save(self, code: int, incomplete: str = "") -> bool:
        """Write the requested files, on the leader; return False if one could not be written."""
        from adjointlab.store.files import working_directory
        from adjointlab.store.job_log import supervised

        with working_directory(self.report.folder):
            # A restarted job reports the run itself.
            is_final = code != ExitCode.RESTART or supervised() is None
            return self.files.save(self.known_so_far(code, incomplete), is_final=is_final)

    def known_so_far(self, code: int, incomplete: str) -> RunResults:
        """Return the contents of the result files at this point."""
        missing = self._missing()
        return RunResults(
            self.world.name,
            self.world.ranks,
            describe_ranks(self.world),
            self.results,
            code,
            len(self.results) + len(missing),
            missing if incomplete else (),
            self.nameless,
            incomplete,
            self._seconds,
            self.shard,
        )

    def _missing(self) -> list[NotJudged]:
        """Return the checks without a result, except those of subjects whose declaration is known to be wrong."""
        from adjointlab.report.junit import NotJudged

        judged = {(id(entry.found.subject), entry.result.check) for entry in self.results}
        return [
            NotJudged(found.reference, f"{found.subject.label} {name}")
            for found, name in self.plan
            if (id(found.subject), name) not in judged and id(found.subject) not in self._misdeclared
        ]
