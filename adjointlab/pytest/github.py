"""Reporting to GitHub Actions: annotations for the failed coherence tests of a session, and its counts in the job's summary."""

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
    """Report a usage error that concerns adjointlab as an error and in the job's summary, because nothing was tested."""
    if "adjointlab" in message and is_github(os.environ):
        tell_github(lambda line: print(line, file=sys.stderr), "pytest", [(message,)])


class GithubJob:
    """Collects the results of a session, and reports them to GitHub at its end.

    The texts and counts of a result are attached to pytest's report of the test, which carries them to the controller of pytest-xdist,
    and to the session that continues after a crash (:mod:`adjointlab.pytest.supervised`). `where` describes the ranks.
    """

    def __init__(self, config: pytest.Config, where: str, *, is_leader: bool) -> None:
        self._config, self._where, self._is_leader = config, where, is_leader
        self._attached: dict[str, Any] | None = None  # texts and counts of the running test
        self._failures: list[Failure] = []
        self._tallies: list[Tally] = []
        self._asked = 0
        self._problems: list[Problem] = []
        self._running = ""
        self._begun = time.monotonic()
        self._seconds: float | None = (
            None  # duration of a session that was interrupted, whose last test has no report
        )

    def add(self, result: CheckResult) -> None:
        """Add the result of the running test."""
        from adjointlab.report.github import failures
        from adjointlab.report.summary import Tally
        from adjointlab.store.files import working_directory

        # Paths are relative to this folder, which the user's code may have left.
        with working_directory(self._config.invocation_params.dir):
            failed = [asdict(failure) for failure in failures([result])]
        self._attached = {"failures": failed, "tally": asdict(Tally.of([result]))}

    def add_problem(self, message: str, *evidence: str) -> None:
        """Add a problem of the session as a whole; `evidence` are texts that name its location, if the message does not."""
        # Each worker of pytest-xdist collects the same files.
        if (message, *evidence) not in self._problems:
            self._problems.append((message, *evidence))

    def add_interrupt(self, interrupt: BaseException) -> None:
        """Add that a signal has ended the session, and the test that was running."""
        from adjointlab.store.interrupted import interrupted_at

        at_work = f". {interrupted_at(self._running, interrupt)}" if self._running else ""
        self.add_problem(f"{ended_by(signal_of(interrupt))}{at_work}")
        self._seconds = time.monotonic() - self._begun

    def tell_end(self, message: str, say: Callable[[str], None]) -> None:
        """Report, through `say`, that user code is ending the process."""
        self.add_problem(message)
        self._seconds = time.monotonic() - self._begun
        self._tell(say)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember the running test."""
        self._running = nodeid

    def pytest_runtest_logfinish(self) -> None:
        """Forget the test that was running."""
        self._running = ""

    @pytest.hookimpl(tryfirst=True)  # among these, the one registered last is called first
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Add the signal that has ended the session."""
        # pytest's own Interrupted stands for problems that have been reported: collection errors, or an interrupted test that had failed.
        if isinstance(excinfo.value, KeyboardInterrupt) and not isinstance(
            excinfo.value, pytest.Session.Interrupted
        ):
            self.add_interrupt(excinfo.value)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Add a problem for a file with coherence tests that cannot be imported."""
        file, text = self._config.rootpath / report.fspath, report.longreprtext
        with suppress(OSError):  # pytest reports it
            if report.failed and b"adjointlab" in file.read_bytes():
                # pytest marks the lines of the exception with "E", below the frames of the import system.
                lines = (line[1:] for line in text.split("\n") if line.startswith("E "))
                message = dedent("\n".join(lines)) or text
                self.add_problem(f"{report.nodeid} cannot be collected: {message}", text, f"at {file}:1")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the coherence tests that will run."""
        self._asked = sum("_adjointlab" in getattr(item, "fixturenames", ()) for item in session.items)
        self._begun = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the texts and counts of the test to its report."""
        report = yield
        if self._attached is not None:
            setattr(report, _KEY, self._attached)
            self._attached = None
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the texts and counts that are attached to a report."""
        if (attached := getattr(report, _KEY, None)) is not None:
            from adjointlab.report.github import Failure
            from adjointlab.report.summary import Tally

            self._failures += [Failure(**failure) for failure in attached["failures"]]
            self._tallies.append(Tally(**attached["tally"]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: XdistNode, error: object) -> None:
        """Get the number of tests from a worker that has ended; a worker that has crashed sends nothing."""
        self._asked = max(self._asked, handed_over(node, _KEY) or 0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the number of tests, if this is a worker: a controller collects no tests."""
        hand_over(session.config, _KEY, lambda: self._asked)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the annotations and add to the job's summary, if the session has coherence tests or problems."""
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
