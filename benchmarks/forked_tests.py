"""Runs the tests of each mutant in a separate process, forked from one that has imported the libraries."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.closest_tests import ALWAYS, ROOT, closest_tests

__all__ = [
    "FINDER",
    "LIMIT",
    "NOT_RUN",
    "OUTPUT",
    "Mutant",
    "Outcome",
    "Runs",
    "confirmed",
    "control",
    "forked",
]

LIMIT = 1200.0
"""Seconds after which the tests of a mutant are ended; the mutant then counts as found."""

OUTPUT, FINDER = "output.txt", "finder.txt"

NOT_RUN = "no test has run"
"""Recorded as the finder of a mutant whose process ended before its tests. Copies are imported there, so the mutant is at fault."""

_CONTROL = "no mutant"

_NO_TESTS = 100
"""Exit code of a child process that could not run its tests."""


@dataclass(frozen=True)
class Mutant:
    """A file of the package with its altered text, and the mutant's name in reports."""

    name: str
    file: str  # relative to the root of the repository
    text: str
    stages: tuple[tuple[str, ...], ...] = ()
    """Names of tests or test files in running order; a stage runs only if those before it found nothing."""

    limit: float = LIMIT


class Outcome(NamedTuple):
    """The result of one mutant: the test that found it, and the time."""

    mutant: Mutant
    found: bool
    by: str
    seconds: float
    output: str


@dataclass(frozen=True)
class Runs:
    """Steps of running the tests of a mutant, and the folders in which they may run concurrently."""

    folders: Sequence[Path]
    prepare: Callable[[Mutant, Path], None]
    run: Callable[[Mutant, Path], int]  # in the child; the exit code of pytest
    tidy: Callable[[Mutant, Path], None]

    def outcomes(self, waiting: list[Mutant]) -> Iterator[Outcome]:
        """Yield the outcomes of the waiting mutants, the last one first; the caller may add mutants meanwhile."""
        free, running = list(self.folders), dict[int, tuple[Mutant, Path, float]]()
        while waiting or running:
            while waiting and free:
                mutant, folder = waiting.pop(), free.pop()
                self.prepare(mutant, folder)
                (folder / FINDER).unlink(missing_ok=True)
                (folder / OUTPUT).write_text("", encoding="utf-8")
                running[self._started(mutant, folder)] = mutant, folder, time.monotonic()
            ended, status = os.waitpid(-1, os.WNOHANG)
            for process, (mutant, _, began) in running.items():
                if time.monotonic() - began > mutant.limit:
                    _end_group(process)
            if ended not in running:
                time.sleep(0.02)
                continue
            mutant, folder, began = running.pop(ended)
            _end_group(ended)  # what the tests have left behind
            self.tidy(mutant, folder)
            free.append(folder)
            output = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")
            found = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (
                pytest.ExitCode.OK,
                pytest.ExitCode.NO_TESTS_COLLECTED,
            )
            by = _finder(folder, status) if found else ""
            yield Outcome(mutant, found, by, time.monotonic() - began, output)

    def _started(self, mutant: Mutant, folder: Path) -> int:
        sys.stdout.flush()
        if process := os.fork():
            return process
        code = _NO_TESTS
        try:
            os.setsid()
            output = os.open(folder / OUTPUT, os.O_WRONLY)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for standard, replaced in ((0, nothing), (1, output), (2, output)):
                os.dup2(replaced, standard)
            code = self.run(mutant, folder)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


def forked(mutant: Mutant) -> tuple[str, ...]:
    """The tests that run next for a mutant: those of its first stage, or the closest ones."""
    return mutant.stages[0] if mutant.stages else closest_tests(mutant.file)


def control(file: str) -> Mutant:
    """A file as it is."""
    return Mutant(_CONTROL, file, (ROOT / file).read_text(encoding="utf-8"))


def confirmed(waiting: list[Mutant], runs: Runs) -> Iterator[Outcome]:
    """Yield outcomes in which a mutant counts as found only by a test that passes without it.

    Of the tests that a mutant names, the one that has found
    it runs without the mutant afterwards; where it (or its file) does not pass then either, it is left out and the mutant runs again.
    Where their process has ended or hung, all run without the mutant; if they do so then too, the mutant is not found.

    Raises `RuntimeError` where a control without named tests is found: every mutant of its file would count as found.
    """
    sure, held = set[str](), dict[tuple[str, ...], list[Outcome]]()
    for outcome in runs.outcomes(waiting):
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
                    sure |= {each.by} if ".py" in each.by else set()
                    yield each
                elif ".py" in each.by:
                    waiting.append(_without(each.by, each.mutant))
                else:
                    yield each._replace(found=False, by=f"without the mutant too: {each.by}")
        elif not outcome.found and mutant.stages[1:]:
            waiting.append(replace(mutant, stages=mutant.stages[1:]))
        elif not outcome.found or not mutant.stages or finder in sure:
            yield outcome
        else:
            tried = _to_try(mutant, finder)
            if tried not in held:
                waiting.append(replace(control(mutant.file), stages=(tried,), limit=mutant.limit))
            held.setdefault(tried, []).append(outcome)


def _to_try(mutant: Mutant, finder: str) -> tuple[str, ...]:
    """The tests that must pass without the mutant: the one that found it, or all if their process died or hung.

    A file that could not be collected is tried with its first test.
    """
    if "::" in finder:
        return (finder,)
    if ".py" not in finder:
        return mutant.stages[0]
    of_file = (each for each in mutant.stages[0] if each.startswith(finder))
    return (next(of_file, mutant.stages[0][0]),)


def _without(test: str, mutant: Mutant) -> Mutant:
    """The mutant without a test, or without a test file; a file that runs as a whole is left out if one of its tests is."""
    file = test.split("::")[0]
    left_out = {test, file}
    stages = (
        tuple(each for each in stage if each not in left_out and not (test == file == each.split("::")[0]))
        for stage in mutant.stages
    )
    return replace(mutant, stages=tuple(filter(None, stages)) or (ALWAYS,))


def _end_group(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _finder(folder: Path, status: int) -> str:
    """The name of the test that failed, or the reason why the tests ended."""
    if (folder / FINDER).exists():
        return (folder / FINDER).read_text(encoding="utf-8")
    if os.WIFSIGNALED(status):
        return "the end of the process"
    code = os.WEXITSTATUS(status)
    return NOT_RUN if code == _NO_TESTS else f"exit code {code}"
