"""pytest in a supervised job (``adjointlab run -- pytest``), which may have been restarted after a crash.

Imported only there. In a restarted job, tests that all ranks have finished are not run again but reported as before, so that
the summary, the exit code and the report files of the last session cover all tests. A test that crashed the job is reported
as failed, and the session goes on after it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from adjointlab.pytest.coherence_tests import coherence_of
from adjointlab.store import json_lines
from adjointlab.store.job_log import Death, JobLog, check_id_of
from adjointlab.supervisor.exit_hooks import install_exit_hooks
from adjointlab.supervisor.pytest_results import RecordedTest, finished_tests
from adjointlab.supervisor.rank_files import RankFiles
from adjointlab.worlds.launch import launched_rank

__all__ = ["SupervisedSession"]


class SupervisedSession:
    """This rank's part in a supervised session; a pytest plugin."""

    def __init__(self, job_log: JobLog) -> None:
        self._job_log = job_log
        self._path = RankFiles(job_log.folder, launched_rank()).path("tests")
        self._earlier: dict[str, RecordedTest] = {}
        self._crashed: dict[str, Death] = {}
        self._running = ""  # the running test; empty while an earlier one is reported again
        self._check_id = ""
        self._failed = False
        self._reports: list[dict[str, object]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Install the exit hooks, and read the records of earlier jobs.

        trylast, because the hooks must come after pytest's faulthandler plugin, which would redirect the stacks to its own file.
        """
        self._hook, self._config = session.config.hook, session.config
        install_exit_hooks(self._job_log.folder)
        finished = finished_tests(self._job_log.folder)
        lines = [line for line in json_lines.lines(self._path, RecordedTest) if line.is_finished]
        self._earlier = {line.test: line for line in lines if line.test in finished}
        self._crashed = {death.test: death for death in self._job_log.deaths if death.test}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Report a test that earlier jobs have finished, or that crashed one; let pytest run any other.

        tryfirst, because pytest stops at the first plugin that returns True, and the test is then not run.
        """
        if (earlier := self._earlier.get(item.nodeid)) is not None:
            restore = self._hook.pytest_report_from_serializable
            self._log(item, [restore(config=self._config, data=data) for data in earlier.reports])
            return True
        self._running, self._failed, self._reports = item.nodeid, False, []
        coherence = coherence_of(item)
        self._check_id = "" if coherence is None else check_id_of(coherence[0].location, coherence[1])
        json_lines.note(self._path, RecordedTest(item.nodeid))
        if (death := self._crashed.get(item.nodeid)) is not None:
            self._log(item, [_crash_report(item, death)])
            return True
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a report of the running test."""
        if report.nodeid == self._running:
            self._failed = self._failed or report.failed
            data = self._hook.pytest_report_to_serializable(config=self._config, report=report)
            self._reports.append(data)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record that the running test is done. trylast, so that all other plugins are done with it."""
        if nodeid == self._running:
            test = RecordedTest(nodeid, True, self._failed, self._check_id, self._reports)
            json_lines.note(self._path, test)
            self._running = ""

    def _log(self, item: pytest.Item, reports: Iterable[pytest.TestReport]) -> None:
        """Log a test that is not run."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _crash_report(item: pytest.Item, death: Death) -> pytest.TestReport:
    """Return the report of a test during which the job crashed: failed, or xfailed if the test has that mark."""
    lines = [f"rank {rank}: {reason}" for rank, reason in sorted(death.ranks.items())]
    lines += [f"{label}:\n{text}" for label, text in death.lines]
    text = "\n".join([f"{death.kind} while this test ran, which ended all ranks", *lines])
    report = pytest.TestReport(item.nodeid, item.location, {item.name: 1}, "failed", text, "call")
    mark = item.get_closest_marker("xfail")
    if mark is not None:
        # This is how pytest's own skipping plugin represents an expected failure.
        report.outcome = "skipped"
        report.wasxfail = str(mark.kwargs.get("reason", ""))
    return report
