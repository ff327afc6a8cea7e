"""Copies of the package in which one file is altered, and the closest tests run in each: do they fail?

A parent imports the libraries that tests need, and nothing of the lab; for each mutant it starts a child by a fork, which reads the altered
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
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = ["CLOSEST", "Mutant", "Outcome", "closest_tests", "run_all"]

ROOT = Path(__file__).resolve().parent.parent

_LOOKS = "tests/checks/looks"
_LAYERS = (f"{_LOOKS}/test_layers.py", "tests/checks/test_checks_of_layers.py")
_SEARCH = (
    "tests/engine/test_looks_of_a_search.py",
    "tests/engine/test_promises_of_a_search.py",
    "tests/engine/test_counts.py",
    "tests/engine/test_search.py",
)
_SIMULATED = "tests/worlds/simulated"
_CALLS = tuple(
    f"{_SIMULATED}/test_{name}.py"
    for name in (
        "collectives",
        "messages",
        "communicators",
        "constants",
        "buffers",
        "nondeterminism",
        "communicating",
        "findings",
    )
)

CLOSEST: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("checks/layers/sensitivity", ("tests/checks/test_sensitivity.py", *_LAYERS)),
    ("checks/layers/differences", ("tests/checks/test_jacobian_at_kinks.py",)),
    ("checks/layers/jacobian", (*_LAYERS, "tests/checks/test_jacobian_at_kinks.py")),
    ("checks/layers/training", (*_LAYERS, "tests/torch_distributed/test_check_parallel.py")),
    ("checks/layers/passes", (*_LAYERS, "tests/engine/test_drawn_cases.py")),
    ("checks/layers/sequential", (f"{_LOOKS}/test_sequential.py", *_LAYERS)),
    ("checks/layers/", (*_LAYERS, "tests/checks/test_values_of_inputs.py")),
    ("checks/basis_probe", ("tests/checks/test_basis_probe.py", _LOOKS)),
    ("checks/hints", ("tests/checks/test_hints.py", "tests/pictures/test_failures.py")),
    ("checks/check.", ("tests/checks/test_registry.py", "tests/checks/test_figures.py", _LOOKS, *_SEARCH)),
    (
        "checks/",
        (
            "tests/checks/test_figures.py",
            _LOOKS,
            "tests/checks/test_outputs_that_are_not_finite.py",
            "tests/engine/test_looks_of_a_search.py",
            "tests/checks/test_each_check_catches_its_own.py",
            "tests/checks/test_hints.py",
            "tests/pictures/test_failures.py",
            "tests/engine/test_search.py",
        ),
    ),
    ("core/strategies", ("tests/core/test_drawn.py", "tests/core/test_strategies.py")),
    ("core/kept_strategies", ("tests/core/test_drawn.py", "tests/core/test_strategies.py")),
    (
        "core/placements",
        ("tests/torch_distributed/test_spaces.py", "tests/torch_distributed/test_parallel_modules.py"),
    ),
    ("core/agreement", ("tests/primitives/test_checked_operator.py", "tests/primitives/test_validation.py")),
    ("core/layer", ("tests/checks/test_checks_of_layers.py", f"{_LOOKS}/test_layers.py")),
    (
        "core/",
        (
            *(
                f"tests/core/test_{name}.py"
                for name in [
                    "arguments",
                    "arrays",
                    "executor_and_notation",
                    "layout",
                    "operator",
                    "pairing",
                    "partition",
                    "program",
                    "program_equations",
                    "space",
                    "values",
                    "local_types",
                ]
            ),
            "tests/checks/test_figures.py",
            _LOOKS,
            "tests/primitives/test_compositions.py",
        ),
    ),
    ("engine/parallel", ("tests/torch_distributed/test_check_parallel.py",)),
    ("engine/pipeline", ("tests/torch_distributed/test_pipelines.py",)),
    ("engine/single_steps", ("tests/engine/test_looks_of_a_search.py", "tests/engine/test_single_steps.py")),
    ("engine/exhaust", ("tests/engine/test_exhaust.py",)),
    (
        "engine/explain",
        (
            "tests/core/test_executor_and_notation.py",
            "tests/primitives/test_compositions.py",
            "tests/cli/test_cli.py",
        ),
    ),
    (
        "engine/subject",
        (
            "tests/engine/test_subject.py",
            "tests/engine/test_drawn_cases.py",
            "tests/engine/test_search.py",
            "tests/engine/test_discovery.py",
        ),
    ),
    (
        "engine/adapters",
        ("tests/engine/test_subject.py", "tests/engine/test_search.py", "tests/adapters/test_released.py"),
    ),
    ("engine/discovery", ("tests/engine/test_discovery.py", "tests/cli/test_cli.py")),
    (
        "engine/case",
        (
            "tests/engine/test_drawn_cases.py",
            "tests/store/test_reproducer.py",
            "tests/store/test_mutated_files.py",
        ),
    ),
    ("engine/interleavings", (*_SEARCH[:2], f"{_SIMULATED}/test_schedules.py")),
    ("engine/counts", ("tests/report", *_SEARCH)),
    (
        "engine/",
        (*_SEARCH, "tests/report", "tests/engine/test_single_steps.py", f"{_SIMULATED}/test_schedules.py"),
    ),
    ("store/script", ("tests/store/test_reproducer.py", "tests/store/test_scripts.py")),
    ("store/job_log", ("tests/store/test_job_log.py",)),
    ("store/known_failures", ("tests/store/test_known_failures.py",)),
    ("store/running_case", ("tests/store/test_running_case.py",)),
    ("store/json_lines", ("tests/store/test_job_log.py", "tests/report/test_printed_figures.py")),
    (
        "store/",
        (
            "tests/engine/test_looks_of_a_search.py",
            "tests/store/test_reproducer.py",
            "tests/store/test_mutated_files.py",
            "tests/store/test_hostile_texts.py",
            "tests/store/test_job_log.py",
            "tests/store/test_running_case.py",
            "tests/cli/test_outputs.py",
        ),
    ),
    ("worlds/simulated/schedules/", (f"{_SIMULATED}/test_schedules.py",)),
    ("worlds/simulated/world", (*_CALLS, f"{_SIMULATED}/test_isolation.py")),
    (
        "worlds/simulated/scheduler",
        (*_CALLS, f"{_SIMULATED}/test_isolation.py", f"{_SIMULATED}/test_schedules.py"),
    ),
    ("worlds/simulated/", (*_CALLS, f"{_SIMULATED}/test_isolation.py", "tests/worlds/test_conformance.py")),
    ("report/", ("tests/report", "tests/engine/test_counts.py")),
    (
        "session",
        (
            "tests/report",
            "tests/store/test_reproducer.py",
            "tests/cli/test_outputs.py",
            "tests/cli/test_cli.py",
        ),
    ),
)
"""The tests that are run for a mutant of a file, the closest first: of the first line with which the file's name begins."""

LIMIT = 1200.0
"""Seconds after which the tests of a mutant are ended: it then counts as found, for it does not return."""

_ALWAYS = "tests/core/test_frozen.py"
"""Quick, and of all packages."""

_CONTROL = "no mutant"

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


class Outcome(NamedTuple):
    """The result of one mutant: found by which test, and in which time."""

    mutant: Mutant
    found: bool
    by: str
    seconds: float
    output: str


def closest_tests(file: str) -> tuple[str, ...]:
    """The files of tests to run for a mutant of `file`, those that are there; first those that have its name."""
    tests = next((tests for prefix, tests in CLOSEST if file.startswith(f"adjointlab/{prefix}")), ("tests",))
    files = dict.fromkeys(found for test in (_ALWAYS, *tests) for found in _files_of_tests(test))
    own = f"test_{Path(file).name}"
    return tuple(sorted(files, key=lambda found: Path(found).name != own))


def _files_of_tests(test: str) -> list[str]:
    path = ROOT / test
    if path.is_dir():
        return [str(found.relative_to(ROOT)) for found in sorted(path.rglob("test_*.py"))]
    return [test] if path.exists() else []


def run_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Run the closest tests for every mutant, so many at a time; yields as they end.

    First they run without a mutant. Raises `RuntimeError` where they do not pass then: every mutant would count as found; and in
    a process that has imported the lab, which no child would read again.
    """
    if "adjointlab" in sys.modules:
        raise RuntimeError("this process has imported the lab: start a new one")
    for module in _PRELOADED:
        with contextlib.suppress(ImportError):
            __import__(module)
    groups: dict[frozenset[str], list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(frozenset(closest_tests(mutant.file)), []).append(mutant)
    queue: list[Mutant] = []
    for group in groups.values():
        file = group[0].file
        queue += [Mutant(_CONTROL, file, (ROOT / file).read_text(encoding="utf-8")), *group]
    with tempfile.TemporaryDirectory() as folder:
        copies = [_copy(Path(folder) / f"copy-{number}") for number in range(jobs)]
        for outcome in _outcomes(queue, copies):
            if outcome.mutant.name != _CONTROL:
                yield outcome
            elif outcome.found:
                raise RuntimeError(
                    f"the tests of {outcome.mutant.file} do not pass without a mutant: {outcome.by}\n{outcome.output[-2000:]}"
                )


def _outcomes(mutants: Sequence[Mutant], copies: Sequence[Path]) -> Iterator[Outcome]:
    # Asked now: who adds a test while they run adds none to the copies.
    tests = {mutant.file: closest_tests(mutant.file) for mutant in mutants}
    originals = {mutant.file: (copies[0] / mutant.file).read_text(encoding="utf-8") for mutant in mutants}
    waiting, free, running = list(mutants)[::-1], list(copies), dict[int, tuple[Mutant, Path, float]]()
    while waiting or running:
        while waiting and free:
            mutant, copy = waiting.pop(), free.pop()
            running[_started(mutant, copy, tests[mutant.file])] = mutant, copy, time.monotonic()
        ended, status = os.waitpid(-1, os.WNOHANG)
        for process, (_, _, began) in running.items():
            if time.monotonic() - began > LIMIT:
                _end_group(process)
        if ended not in running:
            time.sleep(0.05)
            continue
        mutant, copy, began = running.pop(ended)
        _end_group(ended)  # what the tests have left behind
        (copy / mutant.file).write_text(originals[mutant.file], encoding="utf-8")
        free.append(copy)
        output = (copy / "output.txt").read_text(encoding="utf-8", errors="replace")
        yield Outcome(mutant, status != 0, _finder(output, status), time.monotonic() - began, output)


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
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for standard, replaced in ((0, nothing), (1, output), (2, output)):
        os.dup2(replaced, standard)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))
    import pytest

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
    ]
    return int(pytest.main([*given, *tests]))


def _finder(output: str, status: int) -> str:
    """The name of the test that has failed, or what else has ended the tests."""
    if not status:
        return ""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 1)[1].split(" - ")[0]
    return "the end of the process" if os.WIFSIGNALED(status) else "an error"
