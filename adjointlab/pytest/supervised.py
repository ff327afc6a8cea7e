"""pytest in a supervised job (``adjointlab run -- pytest``), which may have been started again after a crash.

Imported only there. Each rank records what its tests do (:mod:`adjointlab.supervisor.pytest_results`). When the job is
started again, tests that all ranks had finished are reported as before without being run, so that the summary, the exit
code and the report files of the last session are those of all tests. A test that ended the job is reported as a failure,
and the session goes on after it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

import pytest

from adjointlab.store.job_log import Death, JobLog, work_of
from adjointlab.supervisor.exit_hooks import install_exit_hooks
from adjointlab.supervisor.pytest_results import (
    Event,
    Finished,
    Reported,
    Started,
    add_event,
    events_in,
    finished_tests,
)
from adjointlab.supervisor.rank_files import RankFiles
from adjointlab.worlds.launch import launched_rank

__all__ = ["SupervisedSession"]


class SupervisedSession:
    """This rank's part in a supervised session; a pytest plugin."""

    def __init__(self, job_log: JobLog) -> None:
        self._job_log = job_log
        self._path = RankFiles(job_log.folder, launched_rank()).path("tests")
        self._earlier: dict[str, list[Reported]] = {}
        self._crashed: dict[str, Death] = {}
        self._running = (
            ""  # the test whose events are being recorded; empty while an earlier test is reported again
        )
        self._work = ""
        self._failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Install the exit hooks, and read what earlier jobs have recorded.

        trylast: the hooks must come after pytest's faulthandler plugin, which would take the stacks to its own file.
        """
        install_exit_hooks(self._job_log.folder)
        finished = finished_tests(self._job_log.folder)
        reports: list[Reported] = []
        for event in events_in(self._path):
            match event:
                case Started():
                    reports = []  # those of a run that did not finish are of no use
                case Reported():
                    reports.append(event)
                case Finished() if event.test in finished:
                    self._earlier[event.test] = reports
        self._crashed = {death.test: death for death in self._job_log.deaths if death.test}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Report a test that earlier jobs have finished, or that ended one; let pytest run any other.

        tryfirst, because the first plugin that returns True here keeps the others from running the test.
        """
        if (earlier := self._earlier.get(item.nodeid)) is not None:
            hook = item.config.hook
            self._log_reports(
                item,
                [
                    hook.pytest_report_from_serializable(config=item.config, data=event.report)
                    for event in earlier
                ],
            )
            return True
        self._start(item)
        if (death := self._crashed.get(item.nodeid)) is not None:
            self._log_reports(item, [_crash_report(item, death)])
            return True
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether the running test failed."""
        if report.nodeid == self._running:
            self._failed = self._failed or report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record a report as soon as it is made, with what other plugins (xfail) make of it."""
        report = yield
        self._record_report(item, report)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record that the running test is done; last, so that no plugin still has work to do for it."""
        if nodeid == self._running:
            self._record(Finished(nodeid, self._failed, self._work))
            self._running = ""

    def _start(self, item: pytest.Item) -> None:
        self._running, self._failed = item.nodeid, False
        subject, check = getattr(getattr(item, "obj", None), "coherence", (None, ""))
        self._work = "" if subject is None else work_of(subject.location, check)
        self._record(Started(item.nodeid))

    def _log_reports(self, item: pytest.Item, reports: Iterable[pytest.TestReport]) -> None:
        """Have pytest log a test that is not run."""
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            self._record_report(item, report)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _record_report(self, item: pytest.Item, report: pytest.TestReport) -> None:
        if item.nodeid == self._running:
            data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
            self._record(Reported(data))

    def _record(self, event: Event) -> None:
        add_event(self._path, event)


def _crash_report(item: pytest.Item, death: Death) -> pytest.TestReport:
    """The report of a test during which the job crashed: failed, or xfailed if the test is marked so."""
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
