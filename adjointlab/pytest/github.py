"""In a job of GitHub Actions: the failures of a session's coherence tests as annotations, and its counts in the job's summary."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from adjointlab.report.github_job import (
    add_to_summary,
    error_command,
    folded,
    in_repository,
    is_github,
    place_in,
    quoted,
    run_error,
)
from adjointlab.worlds.process import ended_by, signal_of

if TYPE_CHECKING:
    from adjointlab.session import CheckResult

__all__ = ["GithubJob", "tell_wrong_call"]

_KEY: Final = "adjointlab_github"


class _Node(Protocol):
    """A worker of pytest-xdist that has ended."""

    @property
    def workeroutput(self) -> dict[str, Any]: ...


def tell_wrong_call(message: str) -> None:
    """Show a wrong call that concerns adjointlab as an error, and in the job's summary: nothing was tested."""
    if "adjointlab" in message and is_github(os.environ):
        print(run_error(message), file=sys.stderr)
        with suppress(OSError):
            add_to_summary(quoted(message), "pytest")


class GithubJob:
    """Collects the results of a session, and tells GitHub at its end. Its failures have been made text where they were found.

    With pytest-xdist each worker hands its texts to the controller. `where` describes the ranks.
    """

    def __init__(self, config: pytest.Config, where: str, *, is_leader: bool) -> None:
        self._config, self._where, self._is_leader = config, where, is_leader
        self._results: list[CheckResult] = []
        self._commands: list[str] = []
        self._rows: list[str] = []
        self._tallies: list[dict[str, Any]] = []
        self._asked = 0
        self._problems: list[tuple[str, dict[str, str]]] = []  # with the properties of their errors
        self._running = ""

    def add(self, result: CheckResult) -> None:
        """Add the result of a test."""
        self._results.append(result)

    def add_problem(self, text: str, place: dict[str, str] | None = None) -> None:
        """Add a sentence on what is wrong with the session as a whole."""
        self._problems.append((text, place_in(text) if place is None else place))

    def add_interrupt(self, interrupt: BaseException) -> None:
        """Add that a signal has ended the session, and which test was at work."""
        from adjointlab.store.interrupted import interrupted_at

        at_work = f". {interrupted_at(self._running, interrupt)}" if self._running else ""
        self.add_problem(f"{ended_by(signal_of(interrupt))}{at_work}")

    def tell_end(self, text: str, descriptor: int) -> None:
        """Tell at once that user code ends the process; pytest has captured the usual streams."""
        self.add_problem(text)
        self._make_texts()
        os.write(descriptor, "".join(f"{line}\n" for line in self._lines()).encode(errors="backslashreplace"))
        self._add_to_summary()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note the test that runs."""
        self._running = nodeid

    def pytest_runtest_logfinish(self) -> None:
        """Note that no test runs."""
        self._running = ""

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note what has ended the session."""
        # pytest's own says what has been told: errors of collection, or an interrupt of a test that had failed.
        if isinstance(excinfo.value, KeyboardInterrupt) and not isinstance(
            excinfo.value, pytest.Session.Interrupted
        ):
            self.add_interrupt(excinfo.value)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file with coherence tests that cannot be imported."""
        file = self._config.rootpath / report.fspath
        with suppress(OSError):  # which pytest reports
            if report.failed and b"adjointlab" in file.read_bytes():
                text = f"{report.nodeid} cannot be collected:\n{report.longreprtext}"
                self.add_problem(text, place_in(report.longreprtext) or in_repository(file, 1))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the coherence tests that will run."""
        self._asked = sum("_adjointlab" in getattr(item, "fixturenames", ()) for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: _Node, error: object) -> None:
        """Take the texts of a worker that has ended; one that has crashed hands over none."""
        commands, rows, tallies, asked = getattr(node, "workeroutput", {}).get(_KEY, ([], [], [], 0))
        self._commands += commands
        self._rows += rows
        self._tallies += tallies
        self._asked = max(self._asked, asked)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Make texts of the failures, and hand them over if this is a worker."""
        self._make_texts()
        worker_output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if worker_output is not None:
            worker_output[_KEY] = self._commands, self._rows, self._tallies, self._asked

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the annotations, and add to the summary of the job, which each session does that has a coherence test."""
        is_worker = hasattr(self._config, "workerinput")
        if self._is_leader and not is_worker and (self._tallies or self._problems):
            for line in [*self._lines(), *self._add_to_summary()]:
                terminalreporter.write_line(line)

    def _make_texts(self) -> None:
        if self._results:
            from adjointlab.report.github import error_commands, failure_rows
            from adjointlab.report.summary import Tally
            from adjointlab.store.files import working_directory

            # Paths are relative to this folder, which the user's code may have left.
            with working_directory(self._config.invocation_params.dir):
                self._commands += error_commands(self._results)
                self._rows += failure_rows(self._results)
            self._tallies.append(asdict(Tally.of(self._results)))

    def _lines(self) -> list[str]:
        of_session = [error_command(text, **place, title="adjointlab") for text, place in self._problems]
        return folded([*of_session, *self._commands])

    def _add_to_summary(self) -> list[str]:
        """Add to the summary; return lines that say why that fails."""
        from adjointlab.report.github import job_summary
        from adjointlab.report.summary import Tally

        tally = sum((Tally(**each) for each in self._tallies), Tally())
        counts = tally.line(max(self._asked, sum(tally.kinds.values())))
        try:
            add_to_summary(
                job_summary(counts, self._rows, [text for text, _ in self._problems]),
                f"pytest, {self._where}",
            )
        except OSError as error:
            return [f"adjointlab: the job's summary cannot be written: {error}"]
        return []
