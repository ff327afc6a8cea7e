"""The checks that ``adjointlab check`` runs, here or in several processes, from the first to the last."""

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
"""Checks, of as many cases as is the default, by which another process gains more than it takes to start."""

_SECONDS_TO_HEED = 3.0
"""Seconds that a signal has to get through to the main thread; with those below, less than the 5 s after which SIGKILL may come."""

_SECONDS_TO_STOP = 1.0
"""Seconds that the main thread gets to print what is known, once it has begun."""


@dataclass
class CheckRun:
    """Runs the checks of a plan, here or in other processes, and adds their results to a record."""

    record: RunRecord
    setup: Setup
    processes: CheckProcesses
    jobs: int | None  # asked for
    interrupted: str = ""  # on the checks in other processes that a signal has ended
    deadline: float = math.inf  # of the drawing of cases

    @property
    def world(self) -> World:
        """The world in which the checks run."""
        return self.record.world

    def to_end(self, seconds: float | None) -> int:
        """Run every check of the plan, in so many `seconds` if that is given, and print and save the results; return the exit code.

        Where a signal ends the run, that is done with what is known, and `KeyboardInterrupt` goes on.
        """
        from adjointlab.check_result import SearchInterrupted
        from adjointlab.report.summary import outcome
        from adjointlab.store.job_log import stopped_by, supervised
        from adjointlab.supervisor.exit_hooks import record_exit_code
        from adjointlab.worlds.world import Exhausted

        self.record.save_so_far()
        # The other ranks wait a little longer: when the first of them is gone, the launcher kills the leader, which has the results.
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
                # An exception rather than a code, so that the world is not closed: its ranks need not be in step.
                raise
        code = outcome(self.record.results)
        self.record.print_results()
        if HeldStreams.lost_output():
            code = code or ExitCode.UNJUDGED
        if not self.record.save(code):
            code = code or ExitCode.UNJUDGED
        if (job_log := supervised()) is not None:
            record_exit_code(job_log.folder, code)
        # The others wait for the leader: where one of them is gone before it has printed, the launcher kills it.
        return self.world.share(code)

    def run_all(self, line: ProgressLine, seconds: float | None = None) -> None:
        """Run every check of the plan, here or in several processes; in so many `seconds`, if that is given."""
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
        """The plan, with one check alone of each subject that cannot be checked: that is said once."""
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
        """The seconds that each of so many checks that are left has to draw cases in."""
        return max(0.0, self.deadline - time.monotonic()) * processes / max(1, checks)

    def _other_processes(self, cases: int) -> int:
        """The number of other processes to run the checks in, of so many cases each; 0 where they run in this one."""
        from adjointlab.store.job_log import supervised

        # A supervised job is at one check at a time, and started again after its death.
        if not self.world.can_schedule or supervised() is not None:
            return 0
        if self.jobs is None:
            count = processes_for(len(self.record.plan), cases, cores())
            return count if count > 1 else 0
        # Who asks for several outlives what a check does to its process, also where there is one check alone.
        return min(self.jobs, len(self.record.plan)) if self.jobs > 1 else 0

    def _run_in_processes(self, count: int, line: ProgressLine) -> None:
        """Run every check of the plan in other processes, and take the results in the order of the plan."""
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
        """Add what is known of the checks in other processes when a signal ends the command."""
        from adjointlab.store.running_case import left_behind

        taken = self.record.position
        for each in sorted(ended, key=lambda each: each.number):
            if each.number < taken:
                continue
            if each.outcome is not None:
                self._print(each.printed)
                self.record.add(self._result_of(each))
            elif each.death and signal_of(interrupt) == signal.SIGINT:
                # It had no time to remove its record, and after Ctrl-C nobody asks for the case.
                found, name = self.record.plan[each.number]
                left_behind(self.setup.folder, found.subject.location, name)

    def _result_of(self, ended: Ended) -> CheckResult:
        """The result of a check in another process; of one that could not be had, by running the check here."""
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
        """Print the text that user code has printed in another process."""
        for of_stderr in (False, True):
            for text in printed.text(of_stderr=of_stderr):
                if text:
                    Output(to_stderr=of_stderr or self.record.files.leave_stdout).raw(text)

    def interrupted_at(self, interrupt: KeyboardInterrupt) -> str:
        """Sentences on the checks that were interrupted, with the seeds of their draws."""
        from adjointlab.store.interrupted import interrupted_at

        if self.record.begun is not None or not self.record.position < len(self.record.plan):
            return self.interrupted
        found, name = self.record.plan[self.record.position]
        return interrupted_at(f"{found.subject.label} {name}", interrupt)

    def at_work(self, number: int = 0) -> str:
        """Sentences on the checks that are at work while a signal of that `number`, or user code, ends the run.

        Their cases are stored, but after Ctrl-C nobody asks for them.
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
        """Do as :meth:`RunRecord.stop` does, in another thread, unless the main thread does it."""
        if self.record.is_stopped:
            time.sleep(_SECONDS_TO_STOP)
        else:
            self.record.stop(128 + number, ended_by(number), self.at_work(number))

    def end_by_user_code(self, code: int, call: str) -> None:
        """Do as :meth:`RunRecord.stop` does, once user code has ended the process with this exit code, by that call."""
        if self.record.is_stopped:
            return
        why = ended_by_user_code(call, self.setup.surroundings.folder)
        if self.world.is_leader:
            self.record.stop(code, why, self.at_work())
        else:
            # The others end with this process, and may have no time to say so.
            tell_of_run(self.record.known_so_far(code, f"{why}, on rank {launched_rank()}"))


def processes_for(checks: int, cases: int, cores: int) -> int:
    """The number of processes in which so many checks, of so many cases each, are done soonest."""
    worth = checks * min(1.0, cases / options.CASES.default)
    return max(1, min(cores, int(worth) // CHECKS_FOR_A_PROCESS))
