"""pytest on several ranks at once: one report, one exit code, and an error if the ranks run different tests.

Imported only under a launcher. Ordinary tests run on every rank without synchronisation. The ranks synchronise

1. when their conftest files are loaded (:meth:`CollectiveSession.begin`),
2. when their options are read (:meth:`CollectiveSession.agree`),
3. when their tests are collected,
4. before each coherence test (:meth:`CollectiveSession.align_before`), and
5. at the end.

Each of these is a labelled allgather with a time limit (:mod:`adjointlab.worlds.rendezvous`) rather than a plain
collective call: a rank whose pytest ended early does not hang the others, because they are notified of its departure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest
from _pytest.terminal import TerminalReporter  # the only way to send a rank's report nowhere

from adjointlab.worlds.launch import open_channel
from adjointlab.worlds.rendezvous import RanksDiverged, Rendezvous

if TYPE_CHECKING:
    from adjointlab.pytest.profile import Profile

__all__ = ["CollectiveSession"]

_INTERRUPTED_PATIENCE: Final = 10.0
"""Seconds that the other ranks have to end after one was interrupted."""

_BY_SEVERITY: Final = (
    pytest.ExitCode.OK,
    pytest.ExitCode.NO_TESTS_COLLECTED,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
)


@dataclass(frozen=True)
class _Departure:
    """A rank's exit code, the reason if it stopped before its tests were done, and its failed tests as data."""

    code: int
    reason: str
    failures: tuple[dict[str, object], ...]


@dataclass(frozen=True)
class _Collection:
    """The tests that a rank has collected, and the errors of its collection."""

    tests: tuple[str, ...]
    errors: tuple[tuple[str, str], ...]


_FailureKey: TypeAlias = tuple[str, str | None, str]
"""Node id, phase and text, which are equal for the same failure on several ranks."""


class CollectiveSession:
    """This rank's part in a test session of all ranks; a pytest plugin. The constructor is collective."""

    def __init__(self, patience: float) -> None:
        self._rendezvous = Rendezvous(open_channel("pytest"), patience)
        self.rank, self.size = self._rendezvous.rank, self._rendezvous.size
        self._failed: list[pytest.TestReport] = []
        self._uncollected: list[tuple[str, str]] = []
        self._reason = ""
        self._out_of_step = ""
        self._has_missing_ranks = False

    # Before the session

    def begin(self, problem: BaseException | None) -> None:
        """Collective, after conftest files are loaded: raise on all ranks if loading raised `problem` on any.

        Only rank 0 prints the reason; a `problem` that is not an `Exception`, such as Ctrl-C, is raised on its own rank.
        """
        try:
            problems: list[str] = self._rendezvous.allgather("loading conftest.py", _message(problem))
        except RanksDiverged as divergence:
            raise self._usage_error(f"not all ranks have started:\n{divergence}") from problem
        if problem is not None and (self.rank == 0 or not isinstance(problem, Exception)):
            raise problem
        others = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text]
        if others:
            raise self._usage_error("\n".join(others)) from problem

    def agree(self, profile: Profile, problem: str = "") -> Profile:
        """Collective: return rank 0's profile, and use its patience from now on.

        The profiles may differ only in the seed, which each rank draws by itself. Raises on all ranks if a rank has a `problem`, such
        as a missing device.
        """
        try:
            gathered: list[tuple[Profile, str]] = self._rendezvous.allgather(
                "configuring", (profile, problem)
            )
        except RanksDiverged as divergence:
            raise self._usage_error(f"not all ranks have the same options:\n{divergence}") from None
        profiles = [each for each, _ in gathered]
        if problems := [f"rank {rank}: {text}" for rank, (_, text) in enumerate(gathered) if text]:
            raise self._usage_error("\n".join(problems))
        if any(replace(other, seed=0) != replace(profiles[0], seed=0) for other in profiles):
            shown = "\n".join(f"rank {rank}: {other}" for rank, other in enumerate(profiles))
            raise self._usage_error(f"the ranks have different options of adjointlab:\n{shown}")
        # Until now the patience was that of the command line, because the ranks synchronise before configuration files are read.
        self._rendezvous.patience = profiles[0].patience
        return profiles[0]

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Silence the terminal report on all ranks but 0, and a warning on all ranks.

        The reporter is not removed, because other plugins look it up and call it, but replaced by one that writes to the null
        device. trylast, because pytest's own plugin registers it in pytest_configure.
        """
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if self.rank != 0 and reporter is not None:
            config.pluginmanager.unregister(reporter)
            null_device = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as pytest runs
            config.add_cleanup(null_device.close)
            config.pluginmanager.register(TerminalReporter(config, null_device), "terminalreporter")
        # Ranks that end at the same time remove the same old temporary folders. With pytest 9.2 and warnings as errors, the rank
        # that finds one filled again ended with an internal error, after all its tests had passed.
        config.addinivalue_line("filterwarnings", r"ignore:\(rm_rf\) error removing:pytest.PytestWarning")

    # Collection

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a collection error."""
        if report.failed:
            self._uncollected.append((report.nodeid, report.longreprtext))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        """Compare the collected tests of all ranks; run none if they differ.

        Two different tests that both communicate would receive each other's messages, or wait forever. This is the outermost
        wrapper (tryfirst), so that it compares the tests after all plugins have shuffled or deselected them.
        """
        try:
            result = yield
        except pytest.UsageError as error:
            # This rank does not reach the allgather. The others are notified of its departure instead.
            self._reason = _message(error)
            raise (error if self.rank == 0 else pytest.UsageError()) from None
        except BaseException as error:
            self._reason = _message(error) or type(error).__name__
            raise
        collection = _Collection(tuple(item.nodeid for item in session.items), tuple(self._uncollected))
        try:
            collected: list[_Collection] = self._rendezvous.allgather("collecting tests", collection)
        except RanksDiverged as divergence:
            self._stop_with(divergence.departures)
            raise self._usage_error(f"not all ranks have collected their tests:\n{divergence}") from None
        if any(other != collected[0] for other in collected):
            raise self._usage_error(_difference(collected))
        return result

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """Stop before the next test if another rank has stopped, with -x or Ctrl-C for example."""
        self._stop_with(self._rendezvous.departures())

    def align_before(self, item: pytest.Item) -> None:
        """Collective: fail the coherence test `item` and stop the session unless all ranks are about to run it.

        A skip mark or a fixture may prevent a rank from running a test that it has collected.
        """
        try:
            self._rendezvous.allgather(item.nodeid)
        except RanksDiverged as divergence:
            self._stop_with(divergence.departures)
            # Kept for all later tests, which cannot run either: after a divergence the ranks' labels no longer match.
            self._out_of_step = (
                f"the ranks are not about to run the same coherence test, so none of them can:\n{divergence}\n"
                "Run the tests in the same order on all ranks, and skip them on all ranks or on none."
            )
        if self._out_of_step:
            item.session.shouldstop = "the ranks do not run the same tests"
            pytest.fail(self._out_of_step, pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure of this rank, to be reported on rank 0.

        Except for a divergence of the ranks, which rank 0 reports itself.
        """
        is_reported = self.rank != 0 and self._out_of_step and self._out_of_step in report.longreprtext
        if report.failed and not is_reported:
            self._failed.append(report)

    # The end

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Record the reason of a Ctrl-C, of pytest.exit, or of an interruption by pytest itself."""
        self._reason = self._reason or str(excinfo.value) or "Ctrl-C"

    def pytest_internalerror(self, excrepr: object) -> None:
        """Record the reason."""
        self._reason = self._reason or f"internal error: {str(excrepr).splitlines()[-1]}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Collective: agree on the exit code, and report the failures of other ranks on rank 0.

        tryfirst, so that the hooks after this one (the JUnit file, the summary) include those reports.
        """
        config = session.config
        reason = self._reason or str(session.shouldfail or session.shouldstop or "")
        failures = tuple(
            config.hook.pytest_report_to_serializable(config=config, report=report) for report in self._failed
        )
        departures: list[_Departure | None] = self._rendezvous.depart_together(
            _Departure(int(exitstatus), reason, failures if self.rank else ()), self._patience_at_end
        )
        self._has_missing_ranks = None in departures
        codes = [pytest.ExitCode.INTERRUPTED if entry is None else entry.code for entry in departures]
        session.exitstatus = max(codes, key=_severity)
        if self.rank == 0:
            self._report_other_ranks(config, departures)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Depart, if the session ended without :meth:`pytest_sessionfinish` (an error in the configuration)."""
        self._rendezvous.depart(
            _Departure(int(pytest.ExitCode.INTERNAL_ERROR), "it ended before its tests", ())
        )
        if self._has_missing_ranks:
            # MPI_Finalize is collective, and would wait for a rank that is still in a test.
            sys.stderr.write(
                f"rank {self.rank}: {self._reason or 'tests done'}; not all ranks have ended: ending them\n"
            )
            sys.stderr.flush()
            self._rendezvous.abort(int(pytest.ExitCode.INTERRUPTED))
        self._rendezvous.leave(_INTERRUPTED_PATIENCE)

    def _patience_at_end(self) -> float:
        """Return the seconds to wait at the end. Called repeatedly, because a rank may be interrupted during the wait."""
        interrupted = any(
            departure.code in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
            for departure in self._rendezvous.departures().values()
        )
        patience = self._rendezvous.patience
        if interrupted:
            patience = min(_INTERRUPTED_PATIENCE, patience)
        # Rank 0 times out before the others: the first rank that does aborts them all, and rank 0 must print its report before that.
        return patience if self.rank == 0 else patience + _INTERRUPTED_PATIENCE / 2

    def _report_other_ranks(self, config: pytest.Config, departures: list[_Departure | None]) -> None:
        """Report the failures of other ranks that did not occur here. A failure that several ranks share is reported once."""
        own = {_key(report) for report in self._failed}
        elsewhere: dict[_FailureKey, tuple[pytest.TestReport, list[int]]] = {}
        for rank, departure in enumerate(departures):
            for data in () if departure is None else departure.failures:
                report = config.hook.pytest_report_from_serializable(config=config, data=data)
                if (key := _key(report)) not in own:
                    elsewhere.setdefault(key, (report, []))[1].append(rank)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and elsewhere:
            reporter.ensure_newline()
            reporter.write_line("failed on other ranks:")
            # The reporter would count these in addition to the tests of this rank, and show a progress of more than 100 %.
            reporter._show_progress_info = False
        for report, ranks in elsewhere.values():
            where = f" [rank {', '.join(map(str, ranks))}]"
            file, line, name = report.location
            report.nodeid, report.location = report.nodeid + where, (file, line, name + where)
            config.hook.pytest_runtest_logreport(report=report)
        if reporter is not None:
            for rank, departure in enumerate(departures):
                if departure is None:
                    reporter.write_line(f"rank {rank} did not end; all ranks are being ended", red=True)
                elif rank and departure.reason and not self._reason:
                    reporter.write_line(f"rank {rank} stopped early: {departure.reason}", red=True)

    def _stop_with(self, departures: dict[int, _Departure]) -> None:
        """If a rank has stopped early, raise an exception that ends this session in the same way."""
        for rank, departure in departures.items():
            if departure.reason and rank != self.rank:
                text = f"rank {rank} stopped: {departure.reason}"
                if departure.code == pytest.ExitCode.USAGE_ERROR:
                    raise self._usage_error(text)
                if departure.code == pytest.ExitCode.TESTS_FAILED:
                    raise pytest.Session.Failed(text)
                raise pytest.Session.Interrupted(text)

    def _usage_error(self, text: str) -> pytest.UsageError:
        """Return an error with exit code 4. pytest prints its `text` on rank 0, and nothing on other ranks."""
        self._reason = self._reason or text
        return pytest.UsageError(text) if self.rank == 0 else pytest.UsageError()


def _key(report: pytest.TestReport) -> _FailureKey:
    return report.nodeid, report.when, report.longreprtext


def _difference(collected: list[_Collection]) -> str:
    """Describe the difference between the ranks' collections, and say what to do about it."""
    first = collected[0]
    lines = ["the ranks have not collected the same tests, so none is run:"]
    for rank, other in enumerate(collected):
        only = [error for error in other.errors if any(error not in others.errors for others in collected)]
        lines += [f"rank {rank}: error collecting {nodeid}\n{text}" for nodeid, text in only]
    tests = [other.tests for other in collected]
    if any(other != first.tests for other in tests):
        lines.append(f"numbers of tests, by rank: {', '.join(str(len(other)) for other in tests)}")
        is_order = all(sorted(other) == sorted(first.tests) for other in tests)
        lines += _in_another_order(tests) if is_order else _not_on_all_ranks(tests)
    return "\n".join(lines)


def _in_another_order(by_rank: Sequence[Sequence[str]]) -> Iterator[str]:
    index = next(index for index, tests in enumerate(zip(*by_rank, strict=True)) if len(set(tests)) > 1)
    for rank, tests in enumerate(by_rank):
        yield f"test {index + 1} on rank {rank}: {tests[index]}"
    yield (
        "They are the same tests in another order. With a plugin that shuffles them, give all ranks the same "
        "seed (--randomly-seed=1, --random-order-seed=1) or switch "
        "it off (-p no:randomly, -p no:random_order)."
    )


def _not_on_all_ranks(by_rank: Sequence[Sequence[str]]) -> Iterator[str]:
    common = set(by_rank[0]).intersection(*by_rank)
    for rank, tests in enumerate(by_rank):
        if extra := [test for test in tests if test not in common]:
            more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
            yield f"not on all ranks, but on rank {rank}: {', '.join(extra[:3])}{more}"


def _severity(code: int) -> int:
    try:
        return _BY_SEVERITY.index(pytest.ExitCode(code))
    except ValueError:
        # An exit code of a plugin, such as ours for a job that must be restarted, is the most severe.
        return len(_BY_SEVERITY)


def _message(error: BaseException | None) -> str:
    if error is None:
        return ""
    cause = getattr(error, "cause", None)  # of pytest's ConftestImportFailure
    where = getattr(error, "path", "")
    text = f"{type(cause).__name__}: {cause}" if cause is not None else str(error)
    return f"{where}: {text}" if where else text or type(error).__name__
