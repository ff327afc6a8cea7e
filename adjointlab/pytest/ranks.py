"""pytest on several ranks at once: one report, one exit code, and an error where the ranks part ways.

Imported only under mpiexec. Ordinary tests run on every rank without any of this; the ranks meet when conftest files
are loaded, when tests are collected, before each coherence test, and at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.terminal import TerminalReporter  # the only way to send a rank's report nowhere

from adjointlab.worlds.mpi.rendezvous import RanksDiverged, Rendezvous

if TYPE_CHECKING:
    from adjointlab.pytest.plugin import Profile

__all__ = ["Ranks"]

_SOON: Final = 10.0
"""Seconds that the others get to end after a Ctrl-C."""

_WORST_LAST: Final = (
    pytest.ExitCode.OK,
    pytest.ExitCode.NO_TESTS_COLLECTED,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
)


@dataclass(frozen=True)
class _Farewell:
    """What a rank leaves with: its exit code, why it left before its tests were done, the tests that it saw fail."""

    code: int
    reason: str
    failures: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class _Collected:
    """What a rank is going to run, and what it could not collect."""

    tests: tuple[str, ...]
    errors: tuple[tuple[str, str], ...]


class Ranks:
    """This rank among the others; a pytest plugin. Making one is collective."""

    def __init__(self, patience: float) -> None:
        self._rendezvous = Rendezvous(patience=patience)
        self.rank, self.size = self._rendezvous.rank, self._rendezvous.size
        self._failed: list[pytest.TestReport] = []
        self._uncollected: list[tuple[str, str]] = []
        self._reason = ""
        self._parted = ""
        self._unanswered = False

    # Before the session

    def begin(self, problem: BaseException | None) -> None:
        """The ranks have loaded their conftest files, or failed to: then all end, and one says why."""
        try:
            told: list[str] = self._rendezvous.allgather("loading conftest.py", _text(problem))
        except RanksDiverged as divergence:
            raise self._usage(f"not all ranks have started:\n{divergence}") from problem
        if problem is not None and (self.rank == 0 or not isinstance(problem, Exception)):
            raise problem
        others = [f"rank {rank}: {text}" for rank, text in enumerate(told) if text]
        if others:
            raise self._usage("\n".join(others)) from problem

    def agree(self, profile: Profile) -> Profile:
        """Rank 0's seed, for all; everything else must be equal anyway."""
        try:
            profiles: list[Profile] = self._rendezvous.allgather("configuring", profile)
        except RanksDiverged as divergence:
            raise self._usage(f"not all ranks have the same options:\n{divergence}") from None
        if any(replace(other, seed=0) != replace(profiles[0], seed=0) for other in profiles):
            shown = "\n".join(f"rank {rank}: {other}" for rank, other in enumerate(profiles))
            raise self._usage(f"the ranks have different options of adjointlab:\n{shown}")
        return profiles[0]

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Only rank 0 reports."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if self.rank != 0 and reporter is not None:
            config.pluginmanager.unregister(reporter)
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as pytest runs
            config.add_cleanup(nowhere.close)
            config.pluginmanager.register(TerminalReporter(config, nowhere), "terminalreporter")

    # Collection

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what could not be collected."""
        if report.failed:
            self._uncollected.append((report.nodeid, report.longreprtext))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        """Compare what the ranks are going to run."""
        try:
            result = yield
        except pytest.UsageError as error:
            self._reason = _text(error)
            raise (error if self.rank == 0 else pytest.UsageError()) from None
        except BaseException as error:
            self._reason = _text(error) or type(error).__name__
            raise
        mine = _Collected(tuple(item.nodeid for item in session.items), tuple(self._uncollected))
        try:
            collected: list[_Collected] = self._rendezvous.allgather("collecting tests", mine)
        except RanksDiverged as divergence:
            self._follow(divergence.departures)
            raise self._usage(f"not all ranks have collected their tests:\n{divergence}") from None
        if any(other != collected[0] for other in collected):
            raise self._usage(_difference(collected))
        return result

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """A rank that has stopped early takes the others along."""
        self._follow(self._rendezvous.departures())

    def gather_before(self, item: pytest.Item) -> None:
        """All ranks are about to run the coherence test `item`, or this one fails and is the last."""
        account = self._parting_before(item)
        if account:
            item.session.shouldstop = "the ranks do not run the same tests"
            pytest.fail(account, pytrace=False)

    def _parting_before(self, item: pytest.Item) -> str:
        try:
            self._rendezvous.allgather(item.nodeid)
        except RanksDiverged as divergence:
            self._follow(divergence.departures)
            self._parted = (
                f"the ranks are not about to run the same coherence test, so none of them can:\n{divergence}\n"
                "Run the tests in the same order on all ranks, and skip them on all ranks or on none."
            )
        return self._parted

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what failed here; that the ranks parted, rank 0 tells anyway."""
        if report.failed and not (self.rank and self._parted and self._parted in report.longreprtext):
            self._failed.append(report)

    # The end

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C, pytest.exit, and what pytest itself calls an interruption."""
        self._reason = self._reason or str(excinfo.value) or "Ctrl-C"

    def pytest_internalerror(self, excrepr: object) -> None:
        """Remember why."""
        self._reason = self._reason or f"internal error: {str(excrepr).splitlines()[-1]}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Agree on the exit code, and bring what failed elsewhere to rank 0."""
        config = session.config
        reason = self._reason or str(session.shouldfail or session.shouldstop or "")
        failures = tuple(
            config.hook.pytest_report_to_serializable(config=config, report=report) for report in self._failed
        )
        farewells = self._rendezvous.depart_together(
            _Farewell(int(exitstatus), reason, failures if self.rank else ()), self._last_patience
        )
        self._unanswered = None in farewells
        codes = [pytest.ExitCode.INTERRUPTED if entry is None else entry.code for entry in farewells]
        session.exitstatus = max(codes, key=_severity)
        if self.rank == 0:
            self._show(config, farewells)

    def pytest_unconfigure(self) -> None:
        """The session is over on this rank, whatever became of it."""
        self._rendezvous.depart(
            _Farewell(int(pytest.ExitCode.INTERNAL_ERROR), "it ended before its tests", ())
        )
        if self._unanswered:
            # Nobody can leave MPI in order while some rank sits in a test.
            sys.stderr.write(
                f"rank {self.rank}: {self._reason or 'tests done'}; not all ranks have ended: ending them\n"
            )
            sys.stderr.flush()
            self._rendezvous.abort(int(pytest.ExitCode.INTERRUPTED))

    def _last_patience(self) -> float:
        interrupted = any(
            farewell.code in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
            for farewell in self._rendezvous.departures().values()
        )
        patience = min(_SOON, self._rendezvous.patience) if interrupted else self._rendezvous.patience
        # Rank 0 gives up first, as it has something to print before all are ended.
        return patience if self.rank == 0 else patience + _SOON / 2

    def _show(self, config: pytest.Config, farewells: list[_Farewell | None]) -> None:
        seen = {(report.nodeid, report.when, report.longreprtext) for report in self._failed}
        elsewhere: dict[tuple[str, str | None, str], tuple[pytest.TestReport, list[int]]] = {}
        for rank, farewell in enumerate(farewells):
            for data in () if farewell is None else farewell.failures:
                report = config.hook.pytest_report_from_serializable(config=config, data=data)
                key = (report.nodeid, report.when, report.longreprtext)
                if key not in seen:
                    elsewhere.setdefault(key, (report, []))[1].append(rank)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and elsewhere:
            reporter.ensure_newline()
            reporter.write_line("failed on other ranks:")
            reporter._show_progress_info = False  # these are no tests of our own, to make 120 % of them
        for report, ranks in elsewhere.values():
            where = f" [rank {', '.join(map(str, ranks))}]"
            file, line, name = report.location
            report.nodeid, report.location = report.nodeid + where, (file, line, name + where)
            config.hook.pytest_runtest_logreport(report=report)
        if reporter is not None:
            for rank, farewell in enumerate(farewells):
                if farewell is None:
                    reporter.write_line(f"rank {rank} did not end; all ranks are being ended", red=True)
                elif rank and farewell.reason and not self._reason:
                    reporter.write_line(f"rank {rank} stopped early: {farewell.reason}", red=True)

    def _follow(self, left: dict[int, _Farewell]) -> None:
        """End as the ranks did that left early."""
        for rank, farewell in left.items():
            if farewell.reason and rank != self.rank:
                told = f"rank {rank} stopped: {farewell.reason}"
                if farewell.code == pytest.ExitCode.USAGE_ERROR:
                    raise self._usage(told)
                if farewell.code == pytest.ExitCode.TESTS_FAILED:
                    raise pytest.Session.Failed(told)
                raise pytest.Session.Interrupted(told)

    def _usage(self, text: str) -> pytest.UsageError:
        """An error that pytest prints, on rank 0."""
        self._reason = self._reason or text
        return pytest.UsageError(text) if self.rank == 0 else pytest.UsageError()


def _difference(collected: list[_Collected]) -> str:
    """In what the ranks' collections differ, and what to do."""
    first = collected[0]
    lines = ["the ranks have not collected the same tests, so none is run:"]
    for rank, other in enumerate(collected):
        only = [error for error in other.errors if any(error not in others.errors for others in collected)]
        lines += [f"rank {rank}: error collecting {nodeid}\n{text}" for nodeid, text in only]
    if any(other.tests != first.tests for other in collected):
        counts = ", ".join(str(len(other.tests)) for other in collected)
        lines.append(f"numbers of tests, by rank: {counts}")
        if all(sorted(other.tests) == sorted(first.tests) for other in collected):
            place = next(
                i for i in range(len(first.tests)) if len({other.tests[i] for other in collected}) > 1
            )
            lines += [
                f"test {place + 1} on rank {rank}: {other.tests[place]}"
                for rank, other in enumerate(collected)
            ]
            lines.append(
                "They are the same tests in another order. With a plugin that shuffles them, give all ranks the same "
                "seed (--randomly-seed=1, --random-order-seed=1) or switch "
                "it off (-p no:randomly, -p no:random_order)."
            )
        else:
            common = set(first.tests).intersection(*(other.tests for other in collected))
            for rank, other in enumerate(collected):
                extra = [test for test in other.tests if test not in common]
                if extra:
                    more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
                    lines.append(f"not on all ranks, but on rank {rank}: {', '.join(extra[:3])}{more}")
    return "\n".join(lines)


def _severity(code: int) -> int:
    try:
        return _WORST_LAST.index(pytest.ExitCode(code))
    except ValueError:
        # A plugin's own code.
        return len(_WORST_LAST)


def _text(error: BaseException | None) -> str:
    if error is None:
        return ""
    cause = getattr(error, "cause", None)  # of pytest's ConftestImportFailure
    where = getattr(error, "path", "")
    told = f"{type(cause).__name__}: {cause}" if cause is not None else str(error)
    return f"{where}: {told}" if where else told or type(error).__name__
