"""Running all checks of ``adjointlab check``, in this process or in several others."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adjointlab import options
from adjointlab.cli.held_streams import HeldStreams
from adjointlab.cli.output import Output, ProgressLine, progress_line
from adjointlab.cli.result_files import tell_of_run
from adjointlab.cli.run_record import RunRecord
from adjointlab.cores import cores
from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.deadline import Deadline
from adjointlab.worlds.exit_guard import ended_by_user_code
from adjointlab.worlds.interrupts import ended_by, signal_of
from adjointlab.worlds.launch import launched_rank

if TYPE_CHECKING:
    from adjointlab.check_result import CheckResult
    from adjointlab.cli.parallel import CheckProcesses, Ended, Printed
    from adjointlab.cli.parallel_messages import Setup
    from adjointlab.engine.discovery import Found
    from adjointlab.worlds.world import World

__all__ = ["CHECKS_FOR_A_PROCESS", "CheckRun", "processes_for"]

CHECKS_FOR_A_PROCESS = 16
"""Number of checks, with the default number of cases, for which starting another process pays off."""

_SECONDS_TO_HEED = 3.0
"""Seconds that the main thread has to react to a signal. With the seconds below, less than the 5 s after which SIGKILL may come."""

_SECONDS_TO_STOP = 1.0
"""Seconds that the main thread has to print the results so far, once it has begun."""


@dataclass
class CheckRun:
    """Runs the checks of a plan, here or in other processes, and adds their results to a record."""

    record: RunRecord
    setup: Setup
    processes: CheckProcesses
    jobs: int | None  # asked for
    interrupted: str = ""  # sentences on the checks in other processes that a signal has ended
    deadline: float = math.inf  # for drawing cases

    @property
    def world(self) -> World:
        """The world in which the checks run."""
        return self.record.world

    def to_end(self, seconds: float | None) -> int:
        """Run every check of the plan, within `seconds` if given; print and save the results, and return the exit code.

        If a signal ends the run, print and save the results so far, and re-raise the `KeyboardInterrupt`.
        """
        from adjointlab.check_result import SearchInterrupted
        from adjointlab.report.summary import outcome
        from adjointlab.store.job_log import stopped_by, supervised
        from adjointlab.supervisor.exit_hooks import record_exit_code
        from adjointlab.worlds.world import Exhausted

        self.record.save_so_far()
        # The other ranks wait a little longer: once one of them has ended, the launcher kills the leader, which has the results.
        with Deadline(self.end_early, _SECONDS_TO_HEED + (0.0 if self.world.is_leader else _SECONDS_TO_STOP)):
            try:
                with progress_line(is_shown=self.world.is_leader and not self.record.report.quiet) as line:
                    self.run_all(line, seconds)
            except Exhausted as problem:
                self.record.stop(ExitCode.RESTART, "the run is not complete", str(problem))
                return ExitCode.RESTART
            except KeyboardInterrupt as interrupt:
                at_work = self.interrupted_at(interrupt)
                if isinstance(interrupt, SearchInterrupted):
                    self.record.add(interrupt.known)
                number = stopped_by() or signal_of(interrupt)
                self.record.stop(128 + number, ended_by(number), at_work)
                # An exception rather than an exit code, so that the world is not closed, which is collective: the ranks may be in
                # different places.
                raise
        code = outcome(self.record.results)
        self.record.print_results()
        if HeldStreams.lost_output():
            code = code or ExitCode.UNJUDGED
        if not self.record.save(code):
            code = code or ExitCode.UNJUDGED
        if (job_log := supervised()) is not None:
            record_exit_code(job_log.folder, code)
        # The other ranks wait for the leader here: if one ended before the leader has printed, the launcher would kill the leader.
        return self.world.share(code)

    def run_all(self, line: ProgressLine, seconds: float | None = None) -> None:
        """Run every check of the plan, in this process or in several others, within `seconds` if given."""
        from adjointlab.checks.check import check_named
        from adjointlab.session import check_with_corpus
        from adjointlab.store.files import printable

        budget, folder = self.setup.budget, self.setup.folder
        self.record.report.plan = self._plan_of_report()
        processes = self._other_processes(budget.cases)
        if seconds is not None:
            self.deadline = time.monotonic() + seconds
        if processes:
            self._run_in_processes(processes, line)
            return
        self.processes.close()
        for number, (found, name) in enumerate(self.record.plan):
            if self.record.passes_over(found.subject):
                continue
            tick = line.track(
                f"[{number + 1}/{len(self.record.plan)}] {printable(found.subject.label)} {name}",
                check_named(name).cases_of(budget.cases, found.subject),
                self.record.report.time_left,
            )
            within = replace(budget, seconds=self._share(len(self.record.plan) - number))
            self.record.take(check_with_corpus(self.world, found, name, within, folder, tick), line)

    def _plan_of_report(self) -> list[tuple[Found, str]]:
        """Return the plan with only the first check of each subject that cannot run here, so that this is reported once."""
        from adjointlab.unjudged_checks import unsupported

        refused: set[int] = set()
        plan = []
        for found, name in self.record.plan:
            if id(found.subject) not in refused:
                plan.append((found, name))
            if unsupported(self.world, found.subject, self.setup.budget.device) is not None:
                refused.add(id(found.subject))
        return plan

    def _share(self, checks: int, processes: int = 1) -> float:
        """Return the seconds that each of the remaining `checks` has for drawing cases."""
        return max(0.0, self.deadline - time.monotonic()) * processes / max(1, checks)

    def _other_processes(self, cases: int) -> int:
        """Return the number of other processes to run the checks in, with `cases` each; 0 to run them in this process."""
        from adjointlab.store.job_log import supervised

        # A supervised job runs one check at a time, and is restarted after a crash.
        if not self.world.can_schedule or supervised() is not None:
            return 0
        if self.jobs is None:
            count = processes_for(len(self.record.plan), cases, cores())
            return count if count > 1 else 0
        # With --jobs above 1 even a single check gets a process, so that this one survives if the check crashes its process.
        return min(self.jobs, len(self.record.plan)) if self.jobs > 1 else 0

    def _run_in_processes(self, count: int, line: ProgressLine) -> None:
        """Run every check of the plan in other processes, and record the results in the order of the plan."""
        from adjointlab.cli.parallel_messages import PlannedCheck

        tick = line.track(f"{len(self.record.plan)} checks in {count} processes", len(self.record.plan))
        ended: dict[int, Ended] = {}
        self.record.begun = time.monotonic()
        plan = [PlannedCheck.of(found, name) for found, name in self.record.plan]
        try:
            for each in self.processes.run(plan, count, lambda left: self._share(left, count)):
                ended[each.number] = each
                tick(len(ended), note=self.record.report.time_left)
                while (following := ended.get(self.record.position)) is not None:
                    with line.paused():
                        self._print(following.printed)
                    self.record.take(self._result_of(following), line)
            for printed in self.processes.finish():
                self._print(printed)
        except KeyboardInterrupt as interrupt:
            self.interrupted = self.at_work(signal_of(interrupt))
            self._take_interrupted(
                [*ended.values(), *self.processes.interrupt(signal_of(interrupt))], interrupt
            )
            raise
        finally:
            self.processes.close()

    def _take_interrupted(self, ended: list[Ended], interrupt: KeyboardInterrupt) -> None:
        """Record the results of checks in other processes when a signal ends the command."""
        from adjointlab.store.running_case import left_behind

        taken = self.record.position
        for each in sorted(ended, key=lambda each: each.number):
            if each.number < taken:
                continue
            if each.outcome is not None:
                self._print(each.printed)
                self.record.add(self._result_of(each))
            elif each.death and signal_of(interrupt) == signal.SIGINT:
                # The process had no time to remove its record of the running case, which is not kept after Ctrl-C.
                found, name = self.record.plan[each.number]
                left_behind(self.setup.folder, found.subject.location, name)

    def _result_of(self, ended: Ended) -> CheckResult:
        """Return the result of a check in another process; if the process could not send it, run the check here."""
        from adjointlab.check_result import CheckResult
        from adjointlab.session import check_with_corpus, lost

        found, name = self.record.plan[ended.number]
        budget, folder = self.setup.budget, self.setup.folder
        if ended.outcome is not None:
            return CheckResult(found, **ended.outcome._asdict())
        if ended.death:
            return lost(self.world, found, name, budget, folder, ended.death)
        within = replace(budget, seconds=self._share(len(self.record.plan) - ended.number))
        return check_with_corpus(self.world, found, name, within, folder)

    def _print(self, printed: Printed) -> None:
        """Print the text that user code printed in another process."""
        for of_stderr in (False, True):
            for text in printed.text(of_stderr=of_stderr):
                if text:
                    Output(to_stderr=of_stderr or self.record.files.leave_stdout).raw(text)

    def interrupted_at(self, interrupt: KeyboardInterrupt) -> str:
        """Return sentences on the checks that were interrupted, with the seeds of their draws."""
        from adjointlab.store.interrupted import interrupted_at

        if self.record.begun is not None or not self.record.position < len(self.record.plan):
            return self.interrupted
        found, name = self.record.plan[self.record.position]
        return interrupted_at(f"{found.subject.label} {name}", interrupt)

    def at_work(self, number: int = 0) -> str:
        """Return sentences on the checks that are running when the signal `number`, or user code (0), ends the run.

        Their cases are stored, except after Ctrl-C.
        """
        from adjointlab.store.files import working_directory
        from adjointlab.store.interrupted import checks_at_work

        by = signal.Signals(number).name if number else "user code"
        labels = {
            (found.subject.location, name): f"{found.subject.label} {name}"
            for found, name in self.record.plan
        }
        with working_directory(self.setup.surroundings.folder):
            return checks_at_work(self.setup.folder, labels, by, are_kept=number != signal.SIGINT)

    def end_early(self, number: int) -> None:
        """Call :meth:`RunRecord.stop` from the thread of the deadline, unless the main thread has done so."""
        if self.record.is_stopped:
            time.sleep(_SECONDS_TO_STOP)
        else:
            self.record.stop(128 + number, ended_by(number), self.at_work(number))

    def end_by_user_code(self, code: int, call: str) -> None:
        """Call :meth:`RunRecord.stop` when user code ends the process with the exit code `code` through `call`."""
        if self.record.is_stopped:
            return
        why = ended_by_user_code(call, self.setup.surroundings.folder)
        if self.world.is_leader:
            self.record.stop(code, why, self.at_work())
        else:
            # The other ranks end with this one, and may have no time to report it.
            tell_of_run(self.record.known_so_far(code, f"{why}, on rank {launched_rank()}"))


def processes_for(checks: int, cases: int, cores: int) -> int:
    """Return the number of processes that finish so many checks, with so many cases each, soonest."""
    worth = checks * min(1.0, cases / options.CASES.default)
    return max(1, min(cores, int(worth) // CHECKS_FOR_A_PROCESS))
