"""The pytest plugin: coherence tests, in simulation and under mpiexec or torchrun.

pytest loads it in every test run of everybody who has adjointlab installed, so it imports next to nothing until a
coherence test runs, and what connects ranks only where a launcher has started this process (:mod:`adjointlab.pytest.ranks`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from adjointlab.engine.noted import declarations
from adjointlab.exit_codes import ExitCode
from adjointlab.options import PATIENCE
from adjointlab.pytest.github import GithubJob, tell_wrong_call
from adjointlab.pytest.html import HtmlPage
from adjointlab.pytest.interrupted import InterruptedTest
from adjointlab.pytest.profile import Profile, add_options, read_profile, unwritable
from adjointlab.pytest.running import COUNTS, KNOWN, CoherenceTest
from adjointlab.pytest.xdist import XdistNode, hand_over, handed_over, is_distributed, is_worker
from adjointlab.report.github_job import is_github
from adjointlab.variables import SUPERVISED
from adjointlab.worlds.exit_guard import earn, install_exit_guard
from adjointlab.worlds.exit_of_c import guard_exit_of_c
from adjointlab.worlds.interrupts import install_handlers, raise_interrupt, restore
from adjointlab.worlds.launch import NoPartners, check_partners, is_launched, launched_rank, launched_world
from adjointlab.worlds.process_end import end_despite_leftovers
from adjointlab.worlds.world import WorldName

if TYPE_CHECKING:
    from adjointlab.engine.subject import Subject
    from adjointlab.pytest.ranks import CollectiveSession
    from adjointlab.store.job_log import JobLog
    from adjointlab.store.known_failures import KnownFailures
    from adjointlab.worlds.world import World

__all__ = ["adjointlab_world"]

_session_key: pytest.StashKey[CollectiveSession] = pytest.StashKey()
_profile_key: pytest.StashKey[Profile] = pytest.StashKey()
_html_key: pytest.StashKey[HtmlPage] = pytest.StashKey()
_github_key: pytest.StashKey[GithubJob] = pytest.StashKey()
_failures_key: pytest.StashKey[KnownFailures] = pytest.StashKey()
_unused_key: pytest.StashKey[list[str]] = pytest.StashKey()
_stderr_key: pytest.StashKey[int] = pytest.StashKey()
_ended_key: pytest.StashKey[EndedTests] = pytest.StashKey()
_UNUSED: Final = "adjointlab_unused"
_EXIT = sys.exit


class EndedTests:
    """The tests that a session has run to their ends, by node: a plugin of that session, for one may run within another."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which tests have come to an end."""
        if report.when == "teardown":
            self.nodes.add(report.nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Under a launcher, let the ranks compare whether each has loaded its conftest files.

    They are the first code of the user's to run, and the first that can fail on one rank only.
    """
    # What they register for the end of the process is to find it guarded, if coherence tests follow.
    install_exit_guard(is_active=False)
    if not is_launched():
        return (yield)
    try:
        check_partners()
    except NoPartners as problem:
        # On every process, and the launcher's first one says why.
        raise (pytest.UsageError(str(problem)) if launched_rank() == 0 else pytest.UsageError()) from None
    from adjointlab.pytest.ranks import CollectiveSession

    # The configuration file has been read, but options are parsed completely only after this hook.
    given = getattr(early_config.known_args_namespace, "adjointlab_patience", None)
    try:
        patience = PATIENCE.parse(given) if given else PATIENCE.default
    except ValueError as problem:
        raise pytest.UsageError(f"--adjointlab-{problem}") from None
    session = early_config.stash[_session_key] = CollectiveSession(patience)
    early_config.pluginmanager.register(session, "adjointlab-ranks")
    problem_here: BaseException | None = None
    result = None
    try:
        result = yield
    except BaseException as error:
        problem_here = error
    session.begin(problem_here)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the options; under a launcher, agree on them."""
    ended = config.stash[_ended_key] = EndedTests()
    config.pluginmanager.register(ended)
    config.pluginmanager.register(InterruptedTest())
    session = config.stash.get(_session_key, None)
    job_log = _job_log(config)
    profile = _own_profile(config, session, job_log)
    problem = (
        _without_device(config, profile)
        or unwritable(config, profile)
        or _read_known_failures(config, profile)
    )
    if session is not None:
        profile = session.agree(profile, problem)
        if session.rank != 0:
            # Rank 0 alone writes the JUnit file. pytest's junitxml plugin reads this option in its own
            # pytest_configure, which runs after this one (tryfirst).
            config.option.xmlpath = None
    elif problem:
        raise pytest.UsageError(problem)
    config.stash[_profile_key] = profile
    _register_reports(config, profile)
    # While a test runs, pytest captures file descriptor 2. The watchdog may end the process then, and its report
    # would be lost with the capture; so it is given a copy of the descriptor from before.
    stderr = config.stash[_stderr_key] = os.dup(2)
    config.add_cleanup(lambda: os.close(stderr))
    if job_log is not None:
        from adjointlab.pytest.supervised import SupervisedSession

        config.pluginmanager.register(SupervisedSession(job_log), "adjointlab-supervised")


def _own_profile(config: pytest.Config, session: CollectiveSession | None, job_log: JobLog | None) -> Profile:
    """The options as this process has them."""
    try:
        profile = read_profile(config, None if job_log is None else job_log.session_seed)
        if session is not None and is_distributed(config):
            raise pytest.UsageError(
                "pytest-xdist (-n) hands tests to workers of its own, so under a launcher the ranks would not run the same "
                "tests at the same time; leave out either -n or the launcher"
            )
    except pytest.UsageError as error:
        # Every rank has the same options and so the same error; rank 0 alone prints it.
        if launched_rank() == 0:
            raise
        raise pytest.UsageError() from error
    return profile


def _register_reports(config: pytest.Config, profile: Profile) -> None:
    """Register what a job of GitHub's shows, and the page that is asked for."""
    is_leader, job = launched_rank() == 0, None
    if is_github(os.environ):
        job = config.stash[_github_key] = GithubJob(config, _where(config), is_leader=is_leader)
        config.pluginmanager.register(job, "adjointlab-github")
    if profile.html is not None:
        path, tell = profile.html if is_leader else None, None if job is None else job.add_problem
        page = config.stash[_html_key] = HtmlPage(path, tell)
        config.pluginmanager.register(page, "adjointlab-html")


def _without_device(config: pytest.Config, profile: Profile) -> str:
    """Return the reason why this process cannot use the device that is asked for; empty if it can, or if none is."""
    # The controller of xdist's workers has looked.
    if profile.device != "cuda" or is_worker(config):
        return ""
    from adjointlab.devices.probes import NoDevice, require_device

    try:
        require_device()
    except NoDevice as problem:
        return f"--adjointlab-{problem}"
    return ""


def _read_known_failures(config: pytest.Config, profile: Profile) -> str:
    """Read the list of known failures; return the reason why that fails, and "" where it does not or there is none.

    Before any test is collected, which the controller of pytest-xdist's workers leaves to them.
    """
    if profile.xfails is None:
        return ""
    from adjointlab.store.known_failures import BadList, read

    try:
        config.stash[_failures_key] = read(profile.xfails)
    except BadList as error:
        return f"{profile.xfails_from}: {error}"
    return ""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: XdistNode) -> None:
    """Give a new worker of pytest-xdist the session's seed, so that all workers draw from one."""
    node.workerinput["adjointlab_seed"] = node.config.stash[_profile_key].seed


def pytest_report_header(config: pytest.Config) -> str:
    """Name the world, the number of cases, and the seed that repeats the session."""
    profile = config.stash[_profile_key]
    under = f" under {profile.schedules} schedules" if profile.schedules > 1 else ""
    # Equal seeds draw equal cases where they draw from the same memories.
    device = f" --adjointlab-device={profile.device}" if profile.device else ""
    return (
        f"adjointlab: {_where(config)}, {profile.cases} cases for each test{under}, "
        f"--adjointlab-seed={profile.seed}{device}"
    )


def _where(config: pytest.Config) -> str:
    """The world of the session, in words."""
    profile, session = config.stash[_profile_key], config.stash.get(_session_key, None)
    if session is None or profile.world is WorldName.SIMULATED:
        return "simulated"
    return f"{WorldName(launched_world()).ranks_run_under}, {session.size} ranks"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Tell GitHub of a usage error, after which pytest ends without a summary."""
    try:
        return (yield)
    except pytest.UsageError as error:
        tell_wrong_call(str(error))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have the short summary, which is not cut in CI, say the headline of a failure, whose whole text stands above it."""
    report = yield
    place = getattr(report.longrepr, "reprcrash", None)
    if place is not None and "_adjointlab" in getattr(item, "fixturenames", ()):
        place.message = place.message.partition("\n")[0]
    return report


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Before a file that names the lab is imported, guard what would end the session with 0 and no test."""
    if isinstance(collector, pytest.Module):
        with suppress(OSError):  # which pytest reports
            if b"adjointlab" in collector.path.read_bytes():
                _guard_ends(collector.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse a file in which a subject has taken the name of another: its tests would be green, and the other not tested."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with declarations() as declared:
        report = yield
    if declared and report.passed:
        from adjointlab.engine.discovery import NotFound, require_own_names

        try:
            require_own_names(collector.obj, declared)
        except NotFound as problem:
            return pytest.CollectReport(collector.nodeid, "failed", str(problem), [])
    return report


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Warn of tests of the lab's that pytest leaves out for their name: the session would be green without them."""
    coherence_tests = sys.modules.get("adjointlab.pytest.coherence_tests")
    if coherence_tests is None or not coherence_tests.is_left_out(collector, name, obj):
        return
    collector.warn(
        pytest.PytestCollectionWarning(
            f"{name} is not collected: give what coherence_tests returns a name that begins with "
            f"{' or '.join(collector.config.getini('python_classes'))}"
        )
    )


def _guard_ends(config: pytest.Config) -> None:
    install_exit_guard(config.stash[_stderr_key])
    if SUPERVISED not in os.environ:
        guard_exit_of_c(config.stash[_stderr_key])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the known failures as strict xfails."""
    failures = config.stash.get(_failures_key, None)
    if failures is None:
        return
    from adjointlab.pytest.coherence_tests import coherence_of

    pairs: set[tuple[str, str]] = set()
    for item in items:
        known = failures.of_test(item.nodeid)
        if (coherence := coherence_of(item)) is not None:
            pair = coherence[0].label, coherence[1]
            pairs.add(pair)
            known = known or failures.of_check(*pair)
        if known is not None:
            item.stash[KNOWN] = str(known)
            item.add_marker(pytest.mark.xfail(reason=str(known), strict=True))
    unused = failures.unused(pairs, {item.nodeid for item in items})
    config.stash[_unused_key] = [each.position for each in unused]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: XdistNode) -> None:
    """Take from a worker of pytest-xdist which known failures none of the tests matches: all workers collect the same ones."""
    if (unused := handed_over(node, _UNUSED)) is not None:
        node.config.stash[_unused_key] = unused


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Name the known failures that none of the tests here matches."""
    return [
        f"{position}: lists a failure of something that is not among the tests here"
        for position in config.stash.get(_unused_key, [])
    ]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let no session end with 0 that left out coherence tests, as ``pytest.exit(returncode=0)`` in a fixture makes it."""
    option, ended = session.config.option, session.config.stash[_ended_key].nodes
    if exitstatus == 0 and session.items and not (option.collectonly or option.setuponly or option.setupplan):
        from adjointlab.pytest.coherence_tests import coherence_of

        missing = [
            item for item in session.items if coherence_of(item) is not None and item.nodeid not in ended
        ]
        if missing and not is_distributed(session.config):
            session.exitstatus = ExitCode.UNJUDGED
    hand_over(session.config, _UNUSED, lambda: session.config.stash.get(_unused_key, []))
    earn(session.exitstatus)
    sys.exit = _EXIT  # pytest ends by it
    if ended:
        # A copy, for the one that tests have is closed before the interpreter ends.
        end_despite_leftovers(session.exitstatus, os.dup(session.config.stash[_stderr_key]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what is known only once all tests have ended: known failures that workers have found to match no test, and what was silent."""
    config = terminalreporter.config
    for line in pytest_report_collectionfinish(config) if is_distributed(config) else ():
        terminalreporter.write_line(line)
    _name_silent(terminalreporter)


def _name_silent(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the subjects of coherent tests whose ranks never communicated."""
    counts = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == COUNTS
    ]
    if counts:
        from adjointlab.engine.counts import CaseCounts
        from adjointlab.report.summary import silence, told_apart
        from adjointlab.store.files import printable

        entries = [json.loads(each) for each in counts]
        names = told_apart([(subject, reference) for subject, reference, _ in entries])
        fields = (CaseCounts(**each) for _, _, each in entries)
        if line := silence(zip(names, fields, strict=True)):
            terminalreporter.section("adjointlab")
            terminalreporter.write_line(printable(line), yellow=True)


@pytest.fixture(scope="session")
def adjointlab_world(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[World]:
    """The world that coherence tests run in. Under a launcher the first use is collective."""
    from adjointlab.pytest.coherence_tests import coherence_of
    from adjointlab.replaying import say_not_replayed
    from adjointlab.worlds.launch import open_world
    from adjointlab.worlds.watchdog import Watchdog

    profile = pytestconfig.stash[_profile_key]
    watchdog = Watchdog(profile.watchdog, pytestconfig.stash[_stderr_key])
    world = open_world(profile.world or "auto", profile.ranks, strict=profile.strict, watchdog=watchdog)
    if getattr(pytestconfig, "workerinput", {}).get("workerid", "gw0") == "gw0":  # of pytest-xdist
        tested = filter(None, map(coherence_of, request.session.items))
        say_not_replayed(world, profile.folder, [subject for subject, _ in tested])
    # By itself SIGTERM would end the session without a summary or a JUnit file.
    handlers = install_handlers(raise_interrupt)
    yield world
    restore(handlers)
    if not world.can_revoke:
        # Closing a world of processes is collective, and a session may end on one rank before the others (-x, Ctrl-C).
        # Such a world ends with its processes.
        world.close()


@pytest.fixture
def _adjointlab(request: pytest.FixtureRequest) -> Callable[[Subject, str], None]:
    """A function that runs one coherence test."""
    session = request.config.stash.get(_session_key, None)
    if session is not None:
        session.align_before(request.node)
    world: World = request.getfixturevalue("adjointlab_world")
    _guard_ends(request.config)
    stash = request.config.stash
    page, job = stash.get(_html_key, None), stash.get(_github_key, None)
    return CoherenceTest(request.node, world, stash[_profile_key], page, job, stash[_stderr_key]).run


def _job_log(config: pytest.Config) -> JobLog | None:
    """Return the log of earlier jobs, if a supervisor started this session.

    `None` also with pytest-xdist: its controller runs no tests, and its workers' deaths are its own affair. The controller
    claims the job nevertheless, so that none of the workers does.
    """
    if SUPERVISED not in os.environ or is_worker(config):
        return None
    from adjointlab.store.job_log import claimed

    job_log = claimed(launched_rank())
    return None if is_distributed(config) else job_log
