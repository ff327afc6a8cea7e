"""Measures which tests reach each line of the lab, and their seconds, so that `own_mutants.py` can choose the tests of a mutant.

    python benchmarks/reaching_tests.py --jobs 2      runs the suite once, measured line by line; writes build/reaching_tests

Left out are tests that are marked as slow: most of them start processes, whose lines are not measured. The measurement is made by
coverage.py, with a context for each test; the threads of simulated ranks are measured too. Of a file that has changed since, it is known
which tests reach it, and no longer which reach a line of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import coverage
import pytest

from benchmarks.timing import is_smoke

__all__ = ["Reached", "has_been_measured"]

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "reaching_tests"
_LINES = "lines.coverage"
_FILES = "files.json"
_LEFT_OUT = ("examples", "tests/documentation", "tests/benchmarks")


class _Measuring:
    """A pytest plugin that makes each test a context of the coverage measurement, and times it."""

    def __init__(self, worker: str) -> None:
        self.seconds: dict[str, float] = {}
        self.worker = f"{worker}-{os.getpid()}"
        self.coverage = coverage.Coverage(
            data_file=str(FOLDER / f"{_LINES}.{self.worker}"),
            config_file=False,
            include=[str(ROOT / "adjointlab" / "*")],
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.monotonic() - began, 4)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (FOLDER / f"seconds.{self.worker}.json").write_text(json.dumps(self.seconds), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in every worker of pytest-xdist, but not in the process that starts them."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        config.pluginmanager.register(_Measuring(worker))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def has_been_measured() -> bool:
    """True where the table has been written."""
    return (FOLDER / _LINES).exists()


class Reached:
    """The table: the tests that reach lines of a file, and the seconds of each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        for path in FOLDER.glob("seconds.*.json"):
            self.seconds |= json.loads(path.read_text(encoding="utf-8"))
        self._measured: dict[str, str] = json.loads((FOLDER / _FILES).read_text(encoding="utf-8"))
        self._data = coverage.CoverageData(str(FOLDER / _LINES))
        self._data.read()
        self._of: dict[str, dict[int, list[str]]] = {}

    def tests(self, file: str, lines: Sequence[int] | None = None) -> set[str]:
        """The tests that reach one of the given lines of a file, or any line of it."""
        if file not in self._of:
            found: Any = self._data.contexts_by_lineno(str(ROOT / file))
            self._of[file] = found
        contexts = self._of[file]
        is_known = self._measured.get(file) == _digest(ROOT / file)
        chosen = contexts if lines is None or not is_known else lines
        return {test for line in chosen for test in contexts.get(line, ()) if test}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "tests", nargs="*", help="tests to measure anew; where none are given all, with an empty table"
    )
    options = parser.parse_args(arguments)
    if is_smoke():
        print(f"{len(Reached().seconds) if has_been_measured() else 'no'} tests have been measured")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not options.tests:
        for path in FOLDER.iterdir():
            path.unlink()
        digests = {str(path.relative_to(ROOT)): _digest(path) for path in (ROOT / "adjointlab").rglob("*.py")}
        (FOLDER / _FILES).write_text(json.dumps(digests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(options.jobs), "-m", "not slow"]
    command += ["-p", "benchmarks.reaching_tests", "-p", "no:cacheprovider"]
    command += ["--adjointlab-cases=10", "--adjointlab-seed=1", *options.tests]
    command += [f"--ignore={folder}" for folder in _LEFT_OUT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if status not in (0, 1):  # 1: tests that failed, for time perhaps; what they reached is known
        return status
    together = coverage.Coverage(data_file=str(FOLDER / _LINES), config_file=False)
    if options.tests and has_been_measured():
        together.load()
    together.combine([str(path) for path in FOLDER.glob(f"{_LINES}.*")])
    together.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
