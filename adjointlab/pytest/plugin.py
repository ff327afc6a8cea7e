"""The pytest plugin: coherence tests, in simulation and under mpiexec.

It is loaded in every test run of everybody who has adjointlab installed, so it imports next to nothing until a
coherence test runs; MPI only where mpiexec has started this process (:mod:`adjointlab.pytest.ranks`).
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from adjointlab.worlds.launch import is_launched, launched_rank

if TYPE_CHECKING:
    from adjointlab.engine.subject import Subject
    from adjointlab.pytest.ranks import Ranks
    from adjointlab.store.job_log import JobLog
    from adjointlab.worlds.world import World

__all__ = ["Profile"]

_OPTIONS = {
    # name: (default, what it is)
    "cases": ("", "cases to draw for each coherence test (default: 100, or 50 where the variable CI is set)"),
    "seed": ("", "seed of the session (default: a fresh one, which the header tells)"),
    "schedules": ("1", "legal interleavings to run each case under, with simulated ranks (default: 1)"),
    "ranks": ("8", "largest number of ranks of a case (default: 8, or those of mpiexec)"),
    "world": ("auto", "where coherence tests run: auto (MPI under mpiexec), simulated, or mpi"),
    "folder": (
        ".adjointlab",
        "where failures are stored and replayed from, relative to the root of the tests",
    ),
    "strict": ("no", "whether to compare all collectives before they are carried out, under MPI: yes or no"),
    "watchdog": (
        "",
        "seconds after which a case that has not ended is ended (default: 30, less once one has hung)",
    ),
    "xfails": (
        "",
        "a file of known failures, a line each: SUBJECT CHECK or a test's node id, then  # why; a listed test has to fail",
    ),
    "patience": ("300", "under mpiexec, seconds that ranks wait for one another between tests"),
}
_WORLDS = ("auto", "simulated", "mpi")
_CHOICES = {"world": _WORLDS, "strict": ("yes", "no")}

_ranks_key: pytest.StashKey[Ranks] = pytest.StashKey()
_profile_key: pytest.StashKey[Profile] = pytest.StashKey()
_stderr_key: pytest.StashKey[int] = pytest.StashKey()


@dataclass(frozen=True)
class Profile:
    """What the options say."""

    cases: int
    seed: int
    ranks: int
    world: str
    folder: Path
    schedules: int = 1
    strict: bool = False
    watchdog: float | None = None
    xfails: Path | None = None

    def seed_of(self, subject: str, check: str) -> int:
        """Every test has draws of its own, all of which follow from one number."""
        return zlib.crc32(f"{self.seed}:{subject}:{check}".encode())


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--adjointlab-...`` on the command line, ``adjointlab_...`` in the configuration file."""
    group = parser.getgroup("adjointlab", "distributed adjoints")
    for name, (_, text) in _OPTIONS.items():
        choices = {"choices": _CHOICES[name]} if name in _CHOICES else {"metavar": name.upper()}
        group.addoption(f"--adjointlab-{name}", dest=f"adjointlab_{name}", default=None, help=text, **choices)
        parser.addini(f"adjointlab_{name}", text, default="")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Under mpiexec the ranks meet for the first time when each has loaded its conftest files, or failed to."""
    if not is_launched():
        return (yield)
    from adjointlab.pytest.ranks import Ranks

    given = getattr(early_config.known_args_namespace, "adjointlab_patience", None)
    ranks = early_config.stash[_ranks_key] = Ranks(_number("patience", given or _OPTIONS["patience"][0]))
    early_config.pluginmanager.register(ranks, "adjointlab-ranks")
    problem: BaseException | None = None
    result = None
    try:
        result = yield
    except BaseException as error:
        problem = error
    ranks.begin(problem)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the options; under mpiexec, agree on them."""
    ranks = config.stash.get(_ranks_key, None)
    try:
        profile = _profile(config)
        if ranks is not None and _is_distributed(config):
            raise pytest.UsageError(
                "pytest-xdist (-n) hands tests to workers of its own, so under mpiexec the ranks would not run the same "
                "tests at the same time; leave out either -n or mpiexec"
            )
    except pytest.UsageError as error:
        if launched_rank() == 0:
            raise
        raise pytest.UsageError() from error
    if ranks is not None:
        profile = ranks.agree(profile)
        if ranks.rank != 0:
            # One JUnit file, written by rank 0. The plugin that writes it reads this after us.
            config.option.xmlpath = None
    config.stash[_profile_key] = profile
    # Tests' output is captured, but not that of this one; what the watchdog prints is not to be lost with it.
    stderr = config.stash[_stderr_key] = os.dup(2)
    config.add_cleanup(lambda: os.close(stderr))
    job_log = _job_log(config)
    if job_log is not None:
        from adjointlab.pytest.supervised import Supervised

        config.pluginmanager.register(Supervised(job_log), "adjointlab-supervised")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """The workers of pytest-xdist draw from one seed."""
    node.workerinput["adjointlab_seed"] = node.config.stash[_profile_key].seed


def pytest_report_header(config: pytest.Config) -> str:
    """What will be tried, and the seed that repeats it."""
    profile = config.stash[_profile_key]
    ranks = config.stash.get(_ranks_key, None)
    where = f"MPI, {ranks.size} ranks" if ranks is not None and profile.world != "simulated" else "simulated"
    under = f" under {profile.schedules} schedules" if profile.schedules > 1 else ""
    return (
        f"adjointlab: {where}, {profile.cases} cases for each test{under}, --adjointlab-seed={profile.seed}"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Known failures have to fail."""
    file = config.stash[_profile_key].xfails
    if file is None:
        return
    from adjointlab.store.known_failures import BadList, read

    try:
        failures = read(file)
    except BadList as error:
        raise pytest.UsageError(f"--adjointlab-xfails: {error}") from None
    for item in items:
        subject, check = getattr(getattr(item, "obj", None), "coherence", (None, ""))
        known = failures.of_test(item.nodeid)
        if known is None and subject is not None:
            known = failures.of_check(subject.name, check)
        if known is not None:
            item.add_marker(pytest.mark.xfail(reason=str(known), strict=True))


@pytest.fixture(scope="session")
def adjointlab_world(pytestconfig: pytest.Config) -> Iterator[World]:
    """The world that coherence tests run in. Under mpiexec the first use is collective."""
    from adjointlab.worlds.launch import open_world
    from adjointlab.worlds.watchdog import Watchdog

    profile = pytestconfig.stash[_profile_key]
    watchdog = Watchdog(profile.watchdog, pytestconfig.stash[_stderr_key])
    world = open_world(profile.world, profile.ranks, strict=profile.strict, watchdog=watchdog)
    yield world
    if world.name == "simulated":
        # The MPI world ends with its processes: by now the ranks may not be of one mind.
        world.close()


@pytest.fixture
def _adjointlab(request: pytest.FixtureRequest) -> Callable[[Subject, str], None]:
    """Runs one coherence test."""
    ranks = request.config.stash.get(_ranks_key, None)
    if ranks is not None:
        ranks.gather_before(request.node)
    world: World = request.getfixturevalue("adjointlab_world")
    profile = request.config.stash[_profile_key]

    def examine(subject: Subject, check: str) -> None:
        from adjointlab.engine.discovery import found_as
        from adjointlab.engine.search import Budget
        from adjointlab.engine.subject import SubjectError
        from adjointlab.exit_codes import ExitCode
        from adjointlab.report.failure_text import failure_text
        from adjointlab.session import replay_corpus, run_check
        from adjointlab.worlds.world import Exhausted

        found = found_as(subject)
        budget = Budget(
            profile.cases, profile.ranks, profile.seed_of(subject.name, check), schedules=profile.schedules
        )
        try:
            failing = replay_corpus(world, found, check, profile.folder)
            text = failure_text(failing or run_check(world, found, check, budget, profile.folder))
        except SubjectError as error:
            text = str(error)
        except Exhausted as problem:
            # On all ranks alike.
            pytest.exit(str(problem), ExitCode.RESTART)
        if text:
            pytest.fail(text, pytrace=False)

    return examine


def _profile(config: pytest.Config) -> Profile:
    def value(name: str) -> str:
        given = config.getoption(f"adjointlab_{name}")
        return str(given if given is not None else config.getini(f"adjointlab_{name}") or _OPTIONS[name][0])

    workerinput = getattr(config, "workerinput", {})
    seed = value("seed") or str(workerinput.get("adjointlab_seed", ""))
    world = value("world")
    _one_of("world", world)
    if world == "mpi" and not is_launched():
        raise pytest.UsageError(
            "--adjointlab-world=mpi: start the tests with mpiexec, as in mpiexec -n 4 pytest"
        )
    if not seed and (job_log := _job_log(config)) is not None:
        seed = str(job_log.session_seed)
    return Profile(
        # Continuous integration draws fewer, but fresh ones each time: it runs often.
        cases=_number("cases", value("cases") or ("50" if os.environ.get("CI") else "100"), least=1),
        seed=_number("seed", seed) if seed else secrets.randbits(32),
        ranks=_number("ranks", value("ranks"), least=1),
        world=world,
        folder=config.rootpath / value("folder"),
        schedules=_number("schedules", value("schedules"), least=1),
        strict=_one_of("strict", value("strict")) == "yes",
        watchdog=_seconds("watchdog", value("watchdog")) if value("watchdog") else None,
        xfails=config.rootpath / value("xfails") if value("xfails") else None,
    )


def _job_log(config: pytest.Config) -> JobLog | None:
    """What is known from earlier jobs, if this one is supervised; the workers of pytest-xdist look after themselves."""
    if "ADJOINTLAB_SUPERVISED" not in os.environ or _is_distributed(config) or hasattr(config, "workerinput"):
        return None
    from adjointlab.store.job_log import supervised

    return supervised()


def _number(name: str, text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise pytest.UsageError(f"--adjointlab-{name}: {text!r} is not a whole number of at least {least}")
    return int(text)


def _one_of(name: str, text: str) -> str:
    if text not in _CHOICES[name]:
        raise pytest.UsageError(f"adjointlab_{name}: {text!r} is not one of {', '.join(_CHOICES[name])}")
    return text


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise pytest.UsageError(f"--adjointlab-{name}: {text!r} is not a number of seconds above 0")
    return seconds


def _is_distributed(config: pytest.Config) -> bool:
    """Whether pytest-xdist runs the tests elsewhere."""
    return bool(getattr(config.option, "tx", None)) or getattr(config.option, "dist", "no") != "no"
