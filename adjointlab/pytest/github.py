"""In a job of GitHub Actions: the failures of a session's coherence tests as annotations, and its counts in the job's summary."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final

import pytest

from adjointlab.pytest.xdist import XdistNode, hand_over, handed_over, is_worker
from adjointlab.report.github_job import Problem, is_github, tell_github
from adjointlab.worlds.interrupts import ended_by, signal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from adjointlab.check_result import CheckResult
    from adjointlab.report.github import Failure
    from adjointlab.report.summary import Tally

__all__ = ["GithubJob", "tell_wrong_call"]

_KEY: Final = "adjointlab_github"


def tell_wrong_call(message: str) -> None:
    """Show a usage error that concerns adjointlab as an error, and in the job's summary: nothing was tested."""
    if "adjointlab" in message and is_github(os.environ):
        tell_github(lambda line: print(line, file=sys.stderr), "pytest", [(message,)])


class GithubJob:
    """Collects the results of a session, and tells GitHub at its end.

    Texts and counts of a result are handed on with pytest's report of the test: to the controller of pytest-xdist's workers, and to
    the session that goes on after a crash (:mod:`adjointlab.pytest.supervised`). `where` describes the ranks.
    """

    def __init__(self, config: pytest.Config, where: str, *, is_leader: bool) -> None:
        self._config, self._where, self._is_leader = config, where, is_leader
        self._told: dict[str, Any] | None = None  # of the test that runs
        self._failures: list[Failure] = []
        self._tallies: list[Tally] = []
        self._asked = 0
        self._problems: list[Problem] = []
        self._running = ""
        self._begun = time.monotonic()
        self._seconds: float | None = None  # of a session that was ended: its last test has none

    def add(self, result: CheckResult) -> None:
        """Add the result of the test that runs."""
        from adjointlab.report.github import failures
        from adjointlab.report.summary import Tally
        from adjointlab.store.files import working_directory

        # Paths are relative to this folder, which the user's code may have left.
        with working_directory(self._config.invocation_params.dir):
            failed = [asdict(failure) for failure in failures([result])]
        self._told = {"failures": failed, "tally": asdict(Tally.of([result]))}

    def add_problem(self, message: str, *evidence: str) -> None:
        """Add what is wrong with the session as a whole, and texts that name the place, if the message does not."""
        # Each worker of pytest-xdist collects the same files.
        if (message, *evidence) not in self._problems:
            self._problems.append((message, *evidence))

    def add_interrupt(self, interrupt: BaseException) -> None:
        """Add that a signal has ended the session, and which test was at work."""
        from adjointlab.store.interrupted import interrupted_at

        at_work = f". {interrupted_at(self._running, interrupt)}" if self._running else ""
        self.add_problem(f"{ended_by(signal_of(interrupt))}{at_work}")
        self._seconds = time.monotonic() - self._begun

    def tell_end(self, message: str, say: Callable[[str], None]) -> None:
        """Tell by `say` that user code ends the process now."""
        self.add_problem(message)
        self._seconds = time.monotonic() - self._begun
        self._tell(say)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note the test that runs."""
        self._running = nodeid

    def pytest_runtest_logfinish(self) -> None:
        """Note that no test runs."""
        self._running = ""

    @pytest.hookimpl(tryfirst=True)  # of those the last that is registered is the first
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note what has ended the session."""
        # pytest's own says what has been told: errors of collection, or an interrupt of a test that had failed.
        if isinstance(excinfo.value, KeyboardInterrupt) and not isinstance(
            excinfo.value, pytest.Session.Interrupted
        ):
            self.add_interrupt(excinfo.value)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file with coherence tests that cannot be imported."""
        file, text = self._config.rootpath / report.fspath, report.longreprtext
        with suppress(OSError):  # which pytest reports
            if report.failed and b"adjointlab" in file.read_bytes():
                # pytest marks the lines of the exception so, below those of the machinery that imports.
                lines = (line[1:] for line in text.split("\n") if line.startswith("E "))
                message = dedent("\n".join(lines)) or text
                self.add_problem(f"{report.nodeid} cannot be collected: {message}", text, f"at {file}:1")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the coherence tests that will run."""
        self._asked = sum("_adjointlab" in getattr(item, "fixturenames", ()) for item in session.items)
        self._begun = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hand on with the report what is told of the test."""
        report = yield
        if self._told is not None:
            setattr(report, _KEY, self._told)
            self._told = None
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what is told of a test."""
        if (told := getattr(report, _KEY, None)) is not None:
            from adjointlab.report.github import Failure
            from adjointlab.report.summary import Tally

            self._failures += [Failure(**failure) for failure in told["failures"]]
            self._tallies.append(Tally(**told["tally"]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: XdistNode, error: object) -> None:
        """Take the number of tests from a worker that has ended; one that has crashed hands over nothing."""
        self._asked = max(self._asked, handed_over(node, _KEY) or 0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over the number of tests, if this is a worker: a controller collects none."""
        hand_over(session.config, _KEY, lambda: self._asked)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the annotations, and add to the summary of the job, which each session does that has a coherence test."""
        if self._is_leader and not is_worker(self._config) and (self._tallies or self._problems):
            self._tell(terminalreporter.write_line)

    def _tell(self, say: Callable[[str], None]) -> None:
        from adjointlab.report.github import error_commands, failure_rows
        from adjointlab.report.summary import Tally
        from adjointlab.store.files import working_directory

        tally = sum(self._tallies, Tally())
        if self._seconds is not None:
            tally = replace(tally, seconds=self._seconds)
        counts = tally.line(max(self._asked, sum(tally.kinds.values())))
        commands, rows = list(error_commands(self._failures)), list(failure_rows(self._failures))
        with working_directory(self._config.invocation_params.dir):
            tell_github(say, f"pytest, {self._where}", self._problems, counts, commands, rows)
