"""``adjointlab check``: draw cases for every check of the subjects, judge them, and store what fails."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adjointlab import options
from adjointlab.cli.output import (
    STDOUT,
    Output,
    ProgressLine,
    describe_ranks,
    is_replaceable,
    is_standard_output,
    progress_line,
    write_json,
)
from adjointlab.cli.parameters import (
    Cases,
    Folder,
    Quiet,
    Ranks,
    Schedules,
    Seed,
    Strict,
    Subjects,
    Watchdog,
    Xfails,
)
from adjointlab.cli.startup import UsageError, opened_world
from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.deadline import Deadline
from adjointlab.worlds.process import earn, signal_of

if TYPE_CHECKING:
    from adjointlab.engine.discovery import Found
    from adjointlab.engine.search import Budget
    from adjointlab.session import CheckResult
    from adjointlab.store.known_failures import KnownFailures
    from adjointlab.worlds.world import World

__all__ = ["check"]

_SECONDS_TO_HEED = 3.0
"""Seconds that a signal has to get through to the main thread; with those below, less than the 5 s after which SIGKILL may come."""

_SECONDS_TO_STOP = 1.0
"""Seconds that the main thread gets to print what is known, once it has begun."""


def check(
    subjects: Subjects = None,
    cases: Cases = options.CASES.default,
    seed: Seed = None,
    ranks: Ranks = None,
    schedules: Schedules = options.SCHEDULES.default,
    checks: Annotated[
        list[str] | None, typer.Option("--check", metavar="NAME", help="Only this check. May be repeated.")
    ] = None,
    strict: Strict = False,
    watchdog: Watchdog = None,
    xfails: Xfails = None,
    folder: Folder = options.FOLDER.default,
    json_to: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the verdicts as JSON; - is standard output."),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Check subjects: draw cases, judge them, shrink what fails."""
    from adjointlab.engine.search import Budget
    from adjointlab.report.summary import outcome
    from adjointlab.session import SearchInterrupted
    from adjointlab.store.job_log import stopped_by, supervised
    from adjointlab.supervisor.exit_hooks import record_exit_code
    from adjointlab.worlds.world import Exhausted

    # The user's code may change the directory.
    here, folder = Path.cwd(), folder.absolute()
    if json_to is not None and json_to != STDOUT:
        json_to = STDOUT if is_standard_output(json_to) else _writable(json_to)

    def prepare() -> tuple[list[tuple[Found, str]], list[str], KnownFailures | None]:
        from adjointlab.store.known_failures import read

        return *_selected(subjects or [], checks), None if xfails is None else read(xfails)

    with opened_world(prepare, ranks, strict=strict, watchdog=watchdog) as (world, (plan, nameless, known)):
        out = Output(to_stderr=json_to == STDOUT)
        run = _CheckRun(world, plan, nameless, known, out, json_to, quiet, here)
        # The other ranks wait a little longer: when the first of them is gone, the launcher kills the leader, which has the results.
        with Deadline(run.end_early, _SECONDS_TO_HEED + (0.0 if world.is_leader else _SECONDS_TO_STOP)):
            try:
                with progress_line(is_shown=world.is_leader and not quiet) as line:
                    run.run_all(Budget(cases, ranks, seed, schedules=schedules), folder, line)
            except Exhausted as problem:
                run.stop(ExitCode.RESTART, str(problem))
                return ExitCode.RESTART
            except KeyboardInterrupt as interrupt:
                if isinstance(interrupt, SearchInterrupted):
                    run.add(interrupt.known)
                run.stop(128 + (stopped_by() or signal_of(interrupt)))
                # An exception rather than a code, so that the world is not closed: its ranks need not be in step.
                raise
        code = outcome(run.results)
        run.print_results()
        run.save(code, complete=True)
        if (job_log := supervised()) is not None:
            record_exit_code(job_log.folder, code)
        # The others wait for the leader: where one of them is gone before it has printed, the launcher kills it.
        return world.share(code)


@dataclass
class _CheckRun:
    """The checks that a command runs one after the other, with their results."""

    world: World
    plan: list[tuple[Found, str]]  # a subject and the name of a check
    nameless: list[str]  # lines on subjects that are not checked, because they have no name
    known: KnownFailures | None
    out: Output
    json_to: str | None
    quiet: bool
    here: Path  # where the command was started; user code may have gone elsewhere
    results: list[CheckResult] = field(default_factory=list)
    printed: int = 0  # results whose failures have been printed
    is_stopped: bool = False

    def run_all(self, budget: Budget, folder: Path, line: ProgressLine) -> None:
        """Run every check of the plan."""
        from adjointlab.report.summary import outcome
        from adjointlab.session import run_check, unsupported
        from adjointlab.store.files import printable
        from adjointlab.store.job_log import supervised

        refused = {
            found.subject.location: index
            for index, (found, _) in reversed(list(enumerate(self.plan)))
            if unsupported(self.world, found.subject) is not None
        }
        # Said once of each subject, not of each of its checks.
        self.plan = [
            entry
            for index, entry in enumerate(self.plan)
            if refused.get(entry[0].subject.location, index) == index
        ]
        for number, (found, name) in enumerate(self.plan):
            tick = line.track(
                f"[{number + 1}/{len(self.plan)}] {printable(found.subject.name)} {name}", budget.cases
            )
            result = run_check(self.world, found, name, budget, folder, tick)
            self.add(result)
            # The process may end in the next case, with what is known by then; 0 is earned at the end alone.
            earn(outcome(self.results) or ExitCode.UNJUDGED)
            # Printed and saved at once, because the next case may end the process. A supervised job is started again
            # then and knows its earlier results, so it prints each of them once, at its end.
            if supervised() is None and len(self.results) < len(self.plan):
                with line.paused():
                    self.print_failures()
                if self.json_to is not None and self.json_to != STDOUT and is_replaceable(self.json_to):
                    self.save(ExitCode.UNJUDGED, complete=False)

    def add(self, result: CheckResult) -> None:
        """Add the result of the next check of the plan."""
        if self.known and (listed := self.known.of_check(result.result.subject, result.result.check)):
            result = replace(result, known=str(listed))
        self.results.append(result)

    def stop(self, code: int, reason: str = "") -> None:
        """Print and save what is known, before the plan is done."""
        self.is_stopped = True
        self.print_results()
        self.save(code, complete=False)
        self.out.line(f"{len(self.results)} of {len(self.plan)} are done. {reason}".rstrip())

    def end_early(self, number: int) -> None:
        """Do as :meth:`stop` does, in another thread, unless the main thread does it."""
        if self.is_stopped:
            time.sleep(_SECONDS_TO_STOP)
        else:
            self.stop(128 + number)

    def print_failures(self) -> None:
        """Print the failures that have not been printed."""
        from adjointlab.report.failure_text import failure_text
        from adjointlab.store.files import working_directory

        for result in self.results[self.printed :]:
            if result.is_reported:
                with working_directory(self.here):
                    text = failure_text(result)
                self.out.line(f"{text}\n")
        self.printed = len(self.results)

    def print_results(self) -> None:
        """Print the remaining failures; unless it is to be quiet, also the table and what it does not cover."""
        from adjointlab.report.summary import notes, summary, verdict_table

        if not self.world.is_leader:
            return
        self.print_failures()
        if self.quiet:
            return
        self.out.table(verdict_table(self.results))
        self.out.line()
        for note in (*notes(self.results), *self.nameless):
            self.out.line(f"{note}\n")
        planned = {(found.subject.name, name) for found, name in self.plan}
        for known in self.known.unused(planned) if self.known else ():
            self.out.line(f"{known.position}: lists a failure of something that was not checked")
        self.out.line(f"{summary(self.results, len(self.plan))}, {describe_ranks(self.world)}")

    def save(self, code: int, *, complete: bool) -> None:
        """Write the results as JSON, if that was asked for; on the leader."""
        from adjointlab.report.json_report import as_data
        from adjointlab.store.files import working_directory

        if self.json_to is not None and self.world.is_leader:
            world = self.world
            with working_directory(self.here):
                data = as_data(
                    self.results,
                    world.name,
                    world.ranks,
                    code,
                    len(self.plan),
                    complete=complete,
                    nameless=self.nameless,
                )
            write_json(self.json_to, data)


def _writable(json_to: str) -> str:
    path = Path(json_to)
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--json: the folder of {json_to} does not exist")
    if path.is_dir():
        raise UsageError(f"--json: {json_to} is a folder; name a file in it")
    return str(path.absolute())


def _selected(references: list[str], only: list[str] | None) -> tuple[list[tuple[Found, str]], list[str]]:
    """Pair the subjects with their checks, or with those named in `only`; and lines on subjects that have no name."""
    from adjointlab.checks.check import check_named, checks_of
    from adjointlab.engine.discovery import find_and_note

    found, nameless = find_and_note(references)
    for name in only or ():
        check_named(name)
    plan = [(entry, name) for entry in found for name in checks_of(entry.subject, only)]
    if not plan:
        raise UsageError(
            f"--check: none of the subjects has the check {', '.join(only or ())}; see adjointlab list"
        )
    return plan, nameless
