"""pytest in a job that is supervised (``adjointlab run -- pytest``), and may have been started again after a death.

Imported only there. Each rank writes down what its tests come to in ``rank-R.tests``, one JSON object a line:
``{"start": NODEID}``, ``{"report": ...}`` for each of its reports, ``{"finish": NODEID, "failed": ..., "work": ...}``.
When the job is started again, tests that all ranks had finished are reported as they were then, without being run, so
that the last session's summary, exit code and files are those of all the tests. A test that ended the job is reported as
a failure, and the session goes on after it.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from adjointlab.store import json_lines as journal
from adjointlab.store.job_log import Death, JobLog, work_of
from adjointlab.supervisor.exit_hooks import install_exit_hooks
from adjointlab.worlds.launch import launched_rank

__all__ = ["Supervised"]


class Supervised:
    """This rank's side of a supervised session; a pytest plugin."""

    def __init__(self, job_log: JobLog) -> None:
        self._job_log = job_log
        self._path = job_log.folder / f"rank-{launched_rank()}.tests"
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._deaths: dict[str, Death] = {}
        self._running = ""
        self._work = ""
        self._failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Leave word, after pytest's own fault handler is in place; and read what the jobs before have left."""
        install_exit_hooks(self._job_log.folder)
        done = set(json.loads((self._job_log.folder / "tests.json").read_text(encoding="utf-8")))
        reports: list[dict[str, Any]] = []
        for line in journal.lines(self._path):
            if "start" in line:
                reports = []
            elif "report" in line:
                reports.append(line["report"])
            elif line["finish"] in done:
                self._known[line["finish"]] = reports
        self._deaths = {death.test: death for death in self._job_log.deaths if death.test}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Report what is known already; run the rest."""
        if item.nodeid in self._known:
            hook = item.config.hook
            self._report(
                item,
                [
                    hook.pytest_report_from_serializable(config=item.config, data=data)
                    for data in self._known[item.nodeid]
                ],
            )
            return True
        if item.nodeid in self._deaths:
            self._begin(item)
            self._report(item, [_report_of(item, self._deaths[item.nodeid])])
            return True
        self._begin(item)
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember whether the test that is running failed."""
        if report.nodeid == self._running:
            self._failed = self._failed or report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Write down a report as it is made."""
        report = yield
        if item.nodeid == self._running:
            data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
            self._write({"report": data})
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """The test that is running is done."""
        if nodeid == self._running:
            self._write({"finish": nodeid, "failed": self._failed, "work": self._work})
            self._running = ""

    def _begin(self, item: pytest.Item) -> None:
        self._running, self._failed = item.nodeid, False
        subject, check = getattr(getattr(item, "obj", None), "coherence", (None, ""))
        self._work = "" if subject is None else work_of(subject.location, check)
        self._write({"start": item.nodeid})

    def _report(self, item: pytest.Item, reports: list[Any]) -> None:
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            if self._running:
                data = hook.pytest_report_to_serializable(config=item.config, report=report)
                self._write({"report": data})
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _write(self, content: dict[str, Any]) -> None:
        journal.append(self._path, content)


def _report_of(item: pytest.Item, death: Death) -> pytest.TestReport:
    """What the test came to that ended the job."""
    lines = [f"rank {rank}: {reason}" for rank, reason in sorted(death.ranks.items())]
    lines += [f"{label}:\n{text}" for label, text in death.lines]
    text = "\n".join([f"{death.kind} while this test ran, which ended all ranks", *lines])
    report = pytest.TestReport(item.nodeid, item.location, {item.name: 1}, "failed", text, "call")
    mark = item.get_closest_marker("xfail")
    if mark is not None:
        report.outcome = "skipped"
        report.wasxfail = str(mark.kwargs.get("reason", ""))
    return report
