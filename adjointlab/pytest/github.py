"""In a job of GitHub Actions: the failures of a session's coherence tests as annotations and in the job's summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from adjointlab.report.github_job import add_to_summary

if TYPE_CHECKING:
    from adjointlab.session import CheckResult

__all__ = ["GithubJob"]

_KEY: Final = "adjointlab_github"


class _Node(Protocol):
    """A worker of pytest-xdist that has ended."""

    @property
    def workeroutput(self) -> dict[str, Any]: ...


class GithubJob:
    """Collects the results of a session, and tells GitHub at its end. Its failures have been made text where they were found.

    With pytest-xdist each worker hands its texts to the controller.
    """

    def __init__(self, *, is_leader: bool) -> None:
        self._is_leader = is_leader
        self._results: list[CheckResult] = []
        self._commands: list[str] = []
        self._rows: list[str] = []

    def add(self, result: CheckResult) -> None:
        """Add the result of a test."""
        self._results.append(result)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: _Node, error: object) -> None:
        """Take the texts of a worker that has ended; one that has crashed hands over none."""
        commands, rows = getattr(node, "workeroutput", {}).get(_KEY, ([], []))
        self._commands += commands
        self._rows += rows

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Make texts of the failures, and hand them over if this is a worker."""
        if self._results:
            from adjointlab.report.github import error_commands, failure_rows
            from adjointlab.store.files import working_directory

            # Paths are relative to this folder, which the user's code may have left.
            with working_directory(session.config.invocation_params.dir):
                self._commands += error_commands(self._results)
                self._rows += failure_rows(self._results)
        worker_output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if worker_output is not None:
            worker_output[_KEY] = self._commands, self._rows

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the annotations, and add to the summary of the job, which each session does that has a failure."""
        if not (self._is_leader and self._commands):
            return
        from adjointlab.report.github import job_summary

        for line in self._commands:
            terminalreporter.write_line(line)
        failures = (
            f"{len(self._commands)} failure{'' if len(self._commands) == 1 else 's'} in coherence tests"
        )
        try:
            add_to_summary(job_summary(failures, self._rows))
        except OSError as error:
            terminalreporter.write_line(f"adjointlab: the job's summary cannot be written: {error}")
