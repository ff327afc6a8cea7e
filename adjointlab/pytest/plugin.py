"""The pytest plugin: coherence tests, in simulation and under mpiexec or torchrun.

pytest loads it in every session of every environment with adjointlab installed. So it imports almost nothing until a
coherence test runs, and connects ranks only if a launcher has started this process (:mod:`adjointlab.pytest.ranks`).
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
    """Plugin that records the node ids of the tests that have ended. One per session, because sessions may be nested."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test at the end of its teardown."""
        if report.when == "teardown":
            self.nodes.add(report.nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Under a launcher, synchronise the ranks after they have loaded their conftest files.

    These are the first user code to run, and the first that can fail on one rank only.
    """
    # Installed before them, so that exit handlers that they register find the process guarded, if coherence tests follow.
    install_exit_guard(is_active=False)
    if not is_launched():
        return (yield)
    try:
        check_partners()
    except NoPartners as problem:
        # Raised on every process; the first one prints the reason.
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
            # Only rank 0 writes the JUnit file. pytest's junitxml plugin reads this option in its own
            # pytest_configure, which runs after this one (tryfirst).
            config.option.xmlpath = None
    elif problem:
        raise pytest.UsageError(problem)
    config.stash[_profile_key] = profile
    _register_reports(config, profile)
    # While a test runs, pytest captures file descriptor 2. If the watchdog ends the process then, its report would be
    # lost with the capture. So it writes to a copy of the descriptor, made before the capture.
    stderr = config.stash[_stderr_key] = os.dup(2)
    config.add_cleanup(lambda: os.close(stderr))
    if job_log is not None:
        from adjointlab.pytest.supervised import SupervisedSession

        config.pluginmanager.register(SupervisedSession(job_log), "adjointlab-supervised")


def _own_profile(config: pytest.Config, session: CollectiveSession | None, job_log: JobLog | None) -> Profile:
    """Return the options of this process."""
    try:
        profile = read_profile(config, None if job_log is None else job_log.session_seed)
        if session is not None and is_distributed(config):
            raise pytest.UsageError(
                "pytest-xdist (-n) distributes tests over its own workers, so under a launcher the ranks would not run the same "
                "tests at the same time; leave out either -n or the launcher"
            )
    except pytest.UsageError as error:
        # Every rank has the same options and so the same error; only rank 0 prints it.
        if launched_rank() == 0:
            raise
        raise pytest.UsageError() from error
    return profile


def _register_reports(config: pytest.Config, profile: Profile) -> None:
    """Register the report to GitHub Actions, in a job there, and the HTML page, if it is requested."""
    is_leader, job = launched_rank() == 0, None
    if is_github(os.environ):
        job = config.stash[_github_key] = GithubJob(config, _where(config), is_leader=is_leader)
        config.pluginmanager.register(job, "adjointlab-github")
    if profile.html is not None:
        path, tell = profile.html if is_leader else None, None if job is None else job.add_problem
        page = config.stash[_html_key] = HtmlPage(path, tell)
        config.pluginmanager.register(page, "adjointlab-html")


def _without_device(config: pytest.Config, profile: Profile) -> str:
    """Return the reason why this process cannot use the requested device; empty if it can, or if none is requested."""
    # The controller of pytest-xdist has checked it for its workers.
    if profile.device != "cuda" or is_worker(config):
        return ""
    from adjointlab.devices.probes import NoDevice, require_device

    try:
        require_device()
    except NoDevice as problem:
        return f"--adjointlab-{problem}"
    return ""


def _read_known_failures(config: pytest.Config, profile: Profile) -> str:
    """Read the list of known failures, if there is one; return the reason if that fails, else "".

    Called before tests are collected, because the controller of pytest-xdist collects none.
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
    """Send a new worker of pytest-xdist the session's seed, so that all workers have the same one."""
    node.workerinput["adjointlab_seed"] = node.config.stash[_profile_key].seed


def pytest_report_header(config: pytest.Config) -> str:
    """Return the header line: the world, the number of cases, and the seed that repeats the session."""
    profile = config.stash[_profile_key]
    under = f" under {profile.schedules} schedules" if profile.schedules > 1 else ""
    # The device is part of it, because equal seeds draw equal cases only from equal sets of memories.
    device = f" --adjointlab-device={profile.device}" if profile.device else ""
    return (
        f"adjointlab: {_where(config)}, {profile.cases} cases for each test{under}, "
        f"--adjointlab-seed={profile.seed}{device}"
    )


def _where(config: pytest.Config) -> str:
    """Describe the world of the session."""
    profile, session = config.stash[_profile_key], config.stash.get(_session_key, None)
    if session is None or profile.world is WorldName.SIMULATED:
        return "simulated"
    return f"{WorldName(launched_world()).ranks_run_under}, {session.size} ranks"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Report a usage error to GitHub, because pytest then ends without a summary."""
    try:
        return (yield)
    except pytest.UsageError as error:
        tell_wrong_call(str(error))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shorten the message of a coherence test in the short summary, which is not truncated in CI, to the headline of the failure."""
    report = yield
    place = getattr(report.longrepr, "reprcrash", None)
    if place is not None and "_adjointlab" in getattr(item, "fixturenames", ()):
        place.message = place.message.partition("\n")[0]
    return report


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Before a file that mentions the lab is imported, guard against calls that would end the session with exit code 0 and no test."""
    if isinstance(collector, pytest.Module):
        with suppress(OSError):  # pytest reports it
            if b"adjointlab" in collector.path.read_bytes():
                _guard_ends(collector.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Reject a file in which a subject has taken the variable of another one, which would then not be tested."""
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
    """Warn about coherence tests that pytest does not collect because of their name."""
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
    """Get the known failures that match none of the tests from a worker of pytest-xdist: all workers collect the same tests."""
    if (unused := handed_over(node, _UNUSED)) is not None:
        node.config.stash[_unused_key] = unused


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Return a line for each known failure that matches none of the collected tests."""
    return [
        f"{position}: lists a failure of something that is not among the tests here"
        for position in config.stash.get(_unused_key, [])
    ]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Change exit code 0 if coherence tests have not run, for example because a fixture has called ``pytest.exit(returncode=0)``."""
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
    sys.exit = _EXIT  # user code may have replaced it, and pytest ends with it
    if ended:
        # A copy, because the descriptor in the stash is closed before the interpreter ends.
        end_despite_leftovers(session.exitstatus, os.dup(session.config.stash[_stderr_key]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what is known only after all tests: known failures that match no test of the workers, and subjects that never communicated."""
    config = terminalreporter.config
    for line in pytest_report_collectionfinish(config) if is_distributed(config) else ():
        terminalreporter.write_line(line)
    _name_silent(terminalreporter)


def _name_silent(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the subjects whose coherence tests passed although their ranks never communicated."""
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
    """The world in which coherence tests run. Under a launcher, the first use is collective."""
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
    # The default action of SIGTERM would end the session without a summary or a JUnit file.
    handlers = install_handlers(raise_interrupt)
    yield world
    restore(handlers)
    if not world.can_revoke:
        # A world of processes is not closed but ends with its processes, because closing is collective, and a session may end on
        # one rank before the others (-x, Ctrl-C).
        world.close()


@pytest.fixture
def _adjointlab(request: pytest.FixtureRequest) -> Callable[[Subject, str], None]:
    """Fixture: a function that runs one coherence test."""
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

    Returns `None` with pytest-xdist too, whose controller runs no tests and handles crashes of its workers itself. The controller
    nevertheless claims the job, so that no worker does.
    """
    if SUPERVISED not in os.environ or is_worker(config):
        return None
    from adjointlab.store.job_log import claimed

    job_log = claimed(launched_rank())
    return None if is_distributed(config) else job_log
