"""Runs tests in copies of the package, each with one altered file, to see if they fail.

A mutant that names no tests has the closest ones of its file; one that names some has these, stage by stage. A parent imports the
libraries that tests need, and nothing of the lab; for each mutant it starts a child by a fork, which reads the altered copy. So a
mutant costs the import of the lab and the tests, and not the import of torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.closest_tests import ROOT, closest_tests
from benchmarks.forked_tests import FINDER, Mutant, Outcome, Runs, confirmed, control, forked

__all__ = ["PRELOADED", "preload", "run_all"]

_COPIED = ("adjointlab", "primitives", "layers", "tests", "benchmarks", "examples", "ci", "docs")
_FILES = ("conftest.py", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PRELOADED = ("numpy", "hypothesis", "hypothesis.internal.conjecture.engine", "pytest", "msgspec", "rich.table", "typer", "torch", "torch.testing")  # fmt: skip
"""Modules of other libraries that tests import, where they are installed."""


def preload() -> None:
    """Import the libraries that tests need.

    Raises `RuntimeError` in a process that has imported the lab, which no child would read again.
    """
    if "adjointlab" in sys.modules:
        raise RuntimeError("this process has imported the lab: start a new one")
    for module in PRELOADED:
        with contextlib.suppress(ImportError):
            __import__(module)


def run_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Run the tests of every mutant, `jobs` mutants at a time; yield outcomes as they end.

    Where mutants name no tests, the closest first run without a mutant. Raises `RuntimeError` as :func:`preload` and
    :func:`benchmarks.forked_tests.confirmed` do.
    """
    preload()
    groups: dict[frozenset[str], list[Mutant]] = {}
    for mutant in mutants:
        if not mutant.stages:
            groups.setdefault(frozenset(closest_tests(mutant.file)), []).append(mutant)
    queue = [mutant for mutant in mutants if mutant.stages]
    for group in groups.values():
        queue += [control(group[0].file), *group]
    # Asked now: who adds a test while they run adds none to the copies.
    tests = {mutant.file: closest_tests(mutant.file) for mutant in queue}
    originals = {mutant.file: (ROOT / mutant.file).read_text(encoding="utf-8") for mutant in queue}

    def prepare(mutant: Mutant, copy: Path) -> None:
        (copy / mutant.file).write_text(mutant.text, encoding="utf-8")
        shutil.rmtree(copy / ".adjointlab", ignore_errors=True)

    def run(mutant: Mutant, copy: Path) -> int:
        return _run_tests(copy, forked(mutant) if mutant.stages else tests[mutant.file])

    def tidy(mutant: Mutant, copy: Path) -> None:
        (copy / mutant.file).write_text(originals[mutant.file], encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        copies = [_copy(Path(folder) / f"copy-{number}") for number in range(jobs)]
        yield from confirmed(queue[::-1], Runs(copies, prepare, run, tidy))


def _copy(target: Path) -> Path:
    for name in _COPIED:
        shutil.copytree(
            ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in _FILES:
        shutil.copy(ROOT / name, target / name)
    return target


def _run_tests(copy: Path, tests: Sequence[str]) -> int:
    os.chdir(copy)
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
    return int(pytest.main([*given, *files], plugins=[_Chosen(tests, copy / FINDER)]))


class _Chosen:
    """A pytest plugin that runs only the named tests of the given files, in that order, and writes down the first that fails."""

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
