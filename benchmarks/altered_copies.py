"""Copies of the package in which one file is altered, and tests run in each: do they fail?

A mutant that names no tests has the closest ones of its file; one that names some has these, stage by stage. A parent imports the libraries that tests need, and nothing of the lab; for each mutant it starts a child by a fork, which reads the altered
copy. So a mutant costs the tests alone, and not the import of torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.closest_tests import ALWAYS, ROOT, closest_tests

__all__ = ["LIMIT", "ROOT", "Mutant", "Outcome", "run_all"]

LIMIT = 1200.0
"""Seconds after which the tests of a mutant are ended: it then counts as found, for it does not return."""

_CONTROL = "no mutant"

_OUTPUT, _FINDER = "output.txt", "finder.txt"

_NO_TESTS = 100
"""Exit code of a child that has run no tests, for a reason of its own."""

_COPIED = ("adjointlab", "primitives", "layers", "tests", "benchmarks", "examples", "ci")
_FILES = ("conftest.py", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_PRELOADED = ("numpy", "hypothesis", "hypothesis.internal.conjecture.engine", "pytest", "msgspec", "rich.table", "typer", "torch", "torch.testing")  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file of the package with another text, and its name in reports."""

    name: str
    file: str  # relative to the root of the repository
    text: str
    stages: tuple[tuple[str, ...], ...] = ()
    """Names of tests or of their files, in the order in which they run; a stage runs if those before it have found nothing."""

    limit: float = LIMIT


class Outcome(NamedTuple):
    """The result of one mutant: found by which test, and in which time."""

    mutant: Mutant
    found: bool
    by: str
    seconds: float
    output: str


def run_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Run the closest tests for every mutant, so many at a time; yields as they end.

    First they run without a mutant. Raises `RuntimeError` where they do not pass then: every mutant would count as found; and in
    a process that has imported the lab, which no child would read again. Of the tests that a mutant names, the one that has found
    it runs without the mutant afterwards; where it (or its file) does not pass then either, it is left out and the mutant runs again.
    Where their process has ended or hung, all run without the mutant; if they do so then too, the mutant is not found.
    """
    if "adjointlab" in sys.modules:
        raise RuntimeError("this process has imported the lab: start a new one")
    for module in _PRELOADED:
        with contextlib.suppress(ImportError):
            __import__(module)
    groups: dict[frozenset[str], list[Mutant]] = {}
    for mutant in mutants:
        if not mutant.stages:
            groups.setdefault(frozenset(closest_tests(mutant.file)), []).append(mutant)
    queue = [mutant for mutant in mutants if mutant.stages]
    for group in groups.values():
        file = group[0].file
        queue += [_control(file), *group]
    waiting, confirmed, held = queue[::-1], set[str](), dict[tuple[str, ...], list[Outcome]]()
    with tempfile.TemporaryDirectory() as folder:
        copies = [_copy(Path(folder) / f"copy-{number}") for number in range(jobs)]
        for outcome in _outcomes(waiting, copies):
            mutant, finder = outcome.mutant, outcome.by
            if mutant.name == _CONTROL and not mutant.stages:
                if outcome.found:
                    raise RuntimeError(
                        f"the tests of {mutant.file} do not pass without a mutant: {finder}\n{outcome.output[-2000:]}"
                    )
            elif mutant.name == _CONTROL:
                (tried,) = mutant.stages
                for each in held.pop(tried):
                    if not outcome.found:
                        confirmed |= {each.by} if ".py" in each.by else set()
                        yield each
                    elif ".py" in each.by:
                        waiting.append(_without(each.by, each.mutant))
                    else:
                        yield each._replace(found=False, by=f"without the mutant too: {each.by}")
            elif not outcome.found and mutant.stages[1:]:
                waiting.append(replace(mutant, stages=mutant.stages[1:]))
            elif not outcome.found or not mutant.stages or finder in confirmed:
                yield outcome
            else:
                tried = _to_try(mutant, finder)
                if tried not in held:
                    waiting.append(replace(_control(mutant.file), stages=(tried,), limit=mutant.limit))
                held.setdefault(tried, []).append(outcome)


def _to_try(mutant: Mutant, finder: str) -> tuple[str, ...]:
    """The tests that must pass without the mutant: the one that has found it, or all where their process has ended or hung.

    A file that could not be collected is tried with its first test.
    """
    if "::" in finder:
        return (finder,)
    if ".py" not in finder:
        return mutant.stages[0]
    of_file = (each for each in mutant.stages[0] if each.startswith(finder))
    return (next(of_file, mutant.stages[0][0]),)


def _control(file: str) -> Mutant:
    return Mutant(_CONTROL, file, (ROOT / file).read_text(encoding="utf-8"))


def _without(test: str, mutant: Mutant) -> Mutant:
    """The mutant without a test, or without all of a file; a file that runs as a whole is left out for one of its tests."""
    file = test.split("::")[0]
    left_out = {test, file}
    stages = (
        tuple(each for each in stage if each not in left_out and not (test == file == each.split("::")[0]))
        for stage in mutant.stages
    )
    return replace(mutant, stages=tuple(filter(None, stages)) or ((ALWAYS,),))


def _outcomes(waiting: list[Mutant], copies: Sequence[Path]) -> Iterator[Outcome]:
    """Outcomes of the mutants that are waiting, the last first; who asks for them may add mutants meanwhile, of the same files."""
    # Asked now: who adds a test while they run adds none to the copies.
    tests = {mutant.file: closest_tests(mutant.file) for mutant in waiting}
    originals = {mutant.file: (copies[0] / mutant.file).read_text(encoding="utf-8") for mutant in waiting}
    free, running = list(copies), dict[int, tuple[Mutant, Path, float]]()
    while waiting or running:
        while waiting and free:
            mutant, copy = waiting.pop(), free.pop()
            running[_started(mutant, copy, mutant.stages[0] if mutant.stages else tests[mutant.file])] = (
                mutant,
                copy,
                time.monotonic(),
            )
        ended, status = os.waitpid(-1, os.WNOHANG)
        for process, (mutant, _, began) in running.items():
            if time.monotonic() - began > mutant.limit:
                _end_group(process)
        if ended not in running:
            time.sleep(0.05)
            continue
        mutant, copy, began = running.pop(ended)
        _end_group(ended)  # what the tests have left behind
        (copy / mutant.file).write_text(originals[mutant.file], encoding="utf-8")
        free.append(copy)
        output = (copy / _OUTPUT).read_text(encoding="utf-8", errors="replace")
        found = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (
            0,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        yield Outcome(mutant, found, _finder(copy, status) if found else "", time.monotonic() - began, output)


def _end_group(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _copy(target: Path) -> Path:
    for name in _COPIED:
        shutil.copytree(
            ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in _FILES:
        shutil.copy(ROOT / name, target / name)
    return target


def _started(mutant: Mutant, copy: Path, tests: Sequence[str]) -> int:
    """Start the tests of a mutant in a copy; return the process."""
    (copy / mutant.file).write_text(mutant.text, encoding="utf-8")
    (copy / _FINDER).unlink(missing_ok=True)
    shutil.rmtree(copy / ".adjointlab", ignore_errors=True)
    sys.stdout.flush()
    if process := os.fork():
        return process
    code = _NO_TESTS
    try:
        os.setsid()
        code = _run_tests(copy, tests)
    except BaseException:
        traceback.print_exc()
        code = _NO_TESTS
    finally:
        os._exit(code)


def _run_tests(copy: Path, tests: Sequence[str]) -> int:
    os.chdir(copy)
    output = os.open(_OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for standard, replaced in ((0, nothing), (1, output), (2, output)):
        os.dup2(replaced, standard)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))
    # What was imported before the fork cannot be rewritten, and need not.
    ignored = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    given = [
        *ignored,
        "-x",
        "-q",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--adjointlab-cases=10",
        "--adjointlab-seed=1",
    ]
    files = dict.fromkeys(test.split("::")[0] for test in tests)
    return int(pytest.main([*given, *files], plugins=[_Chosen(tests, copy / _FINDER)]))


class _Chosen:
    """A pytest plugin: of the tests of the given files those that are named run, in that order; the first that fails is written down."""

    def __init__(self, tests: Sequence[str], finder: Path) -> None:
        self.places = {test: place for place, test in enumerate(tests)}
        self.finder = finder

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        placed = [(self._place(item.nodeid), item) for item in items]
        items[:] = [
            item for place, item in sorted(placed, key=lambda each: each[0]) if place < len(self.places)
        ]

    def _place(self, name: str) -> int:
        return self.places.get(name, self.places.get(name.split("::")[0], len(self.places)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.finder.exists():
            self.finder.write_text(report.nodeid, encoding="utf-8")


def _finder(copy: Path, status: int) -> str:
    """The name of the test that has failed, or what else has ended the tests."""
    if (copy / _FINDER).exists():
        return (copy / _FINDER).read_text(encoding="utf-8")
    return "the end of the process" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
