"""Every case up to a bound, instead of some that are drawn: each is proved by its whole matrices.

The cases are split among processes, each with simulated ranks of its own. They are listed from the small to the large,
so the first that fails is a small one.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from adjointlab.checks.context import InputSetting
from adjointlab.checks.proof import PROOF
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.case_runner import run_case
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.run_case import body
from adjointlab.engine.search import SearchResult
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.worlds.simulated.world import SimulatedWorld

__all__ = ["Bound", "bound_of", "every_case", "exhaust"]

Bound = Mapping[str, int]
"""What limits the cases of a subject: the keyword arguments of its enumeration."""

_FAR = 2**62


@dataclass(frozen=True)
class _Share:
    """What a process has done: how many cases and matrix entries it has proved, and what ended it before its time."""

    proved: int
    entries: int
    failure: tuple[int, Case, Verdict, Any] | None = None
    error: str = ""


def bound_of(subject: Subject, given: Mapping[str, int] | None = None) -> Bound:
    """The bound of `subject`: the defaults of its enumeration, with those `given` that it knows in their place.

    Raises :class:`SubjectError` for a subject that lists no cases: none at all, none within the bound, or none because its
    enumeration fails.
    """
    if subject.every is None:
        raise SubjectError(
            f"{subject.name}: lists no cases; give @subject(..., every=function), where function(ranks=3, side=2) with "
            "any bounds as keyword arguments yields pairs of a number of ranks and a dictionary of arguments"
        )
    defaults = {name: entry.default for name, entry in inspect.signature(subject.every).parameters.items()}
    for name, default in defaults.items():
        if not isinstance(default, int):
            raise SubjectError(
                f"{subject.name}: the bound {name} of every= has no whole number as its default; give one, as {name}=3"
            )
    bound = {name: (given or {}).get(name, default) for name, default in defaults.items()}
    try:
        first = next(every_case(subject, bound), None)
    except SubjectError:
        raise
    except Exception as error:
        raise SubjectError(f"{subject.name}: every= fails, {type(error).__name__}: {error}") from error
    if first is None:
        told = ", ".join(f"{name} {value}" for name, value in bound.items())
        raise SubjectError(f"{subject.name}: there is no case within the bound {told}; give a larger one")
    return bound


def every_case(subject: Subject, bound: Bound) -> Iterator[Case]:
    """All cases within `bound`, in the order of the subject's enumeration."""
    assert subject.every is not None
    for number, entry in enumerate(subject.every(**bound)):
        if not _is_case(entry):
            raise SubjectError(
                f"{subject.name}: every= yields {entry!r}, not a pair of a number of ranks and a dictionary of arguments"
            )
        ranks, parameters = entry
        # The seed makes the random vector, and the schedule another legal interleaving, of each case.
        yield Case(
            subject.name, PROOF.name, ranks, parameters, InputSetting(seed=number), schedule=number % 2**16
        )


def _is_case(entry: object) -> bool:
    return (
        isinstance(entry, Sequence)
        and len(entry) == 2
        and isinstance(entry[0], int)
        and isinstance(entry[1], Mapping)
    )


def exhaust(
    subject: Subject,
    reference: str,
    bound: Bound,
    jobs: int | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> SearchResult:
    """Prove every case of `subject` within `bound` on `jobs` processes (default: one for each core).

    `reference` is what names the subject on a command line: the processes find it by that. `tick` is called with the
    number of cases done and of all cases. The report's `tried` is the number of cases proved, or that of the first that
    fails among all; its figure "entries" is the number of matrix entries.
    """
    started = time.monotonic()
    try:
        total = sum(1 for _ in every_case(subject, bound))
    except Exception:
        shares, total = [_Share(0, 0, error=traceback.format_exc().rstrip())], 0
    else:
        count = max(1, min(jobs or _cores(), total))
        shares = _side_by_side(reference, bound, count, lambda done: tick(done, total))
    proved, entries = sum(share.proved for share in shares), sum(share.entries for share in shares)
    verdict, case, spaces, tried = Verdict(Status.COHERENT), None, None, proved
    if problems := [share.error for share in shares if share.error]:
        verdict = Verdict(
            Status.UNJUDGED, "the exhaustive run failed", "process", (("because", problems[0]),)
        )
    elif failures := [share.failure for share in shares if share.failure is not None]:
        number, case, verdict, spaces = min(failures, key=lambda failure: failure[0])
        tried = number + 1
    elif proved != total:
        raise RuntimeError(f"{proved} of {total} cases were proved, and nothing says why")
    return SearchResult(
        subject.name,
        PROOF.name,
        "simulated",
        verdict,
        tried,
        0,
        time.monotonic() - started,
        case,
        spaces,
        0 if case is None else case.ranks,
        {"entries": entries},
    )


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _side_by_side(reference: str, bound: Bound, count: int, tick: Callable[[int], None]) -> list[_Share]:
    """What `count` processes did, of which the w-th takes every case whose number is w modulo `count`."""
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of threads that it has not
    done = [context.Value("q", 0) for _ in range(count)]
    first_failure = context.Value("q", _FAR)
    pipes, processes = [], []
    for place in range(count):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_process,
            args=(theirs, reference, dict(bound), place, count, done[place], first_failure, sys.path),
            daemon=True,
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    shares: list[_Share] = []
    try:
        for pipe, process in zip(pipes, processes, strict=True):
            while not pipe.poll(0.2):
                tick(sum(value.value for value in done))
            try:
                shares.append(pipe.recv())
            except EOFError:
                process.join()
                shares.append(_Share(0, 0, error=f"it ended with exit code {process.exitcode}"))
        tick(sum(value.value for value in done))
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return shares


def _process(
    pipe: Any,
    reference: str,
    bound: Bound,
    place: int,
    count: int,
    done: Synchronized[int],
    first_failure: Synchronized[int],
    path: list[str],
) -> None:
    """One process of an exhaustive run."""
    sys.path[:] = path
    try:
        pipe.send(_share(find_subject(reference), bound, place, count, done, first_failure))
    except KeyboardInterrupt:
        pass  # the process that started this one has it too
    except Exception:
        pipe.send(_Share(0, 0, error=traceback.format_exc().rstrip()))


def _share(
    subject: Subject,
    bound: Bound,
    place: int,
    count: int,
    done: Synchronized[int],
    first_failure: Synchronized[int],
) -> _Share:
    world = SimulatedWorld()
    proved = entries = 0

    def conduct(run: Any) -> _Share:
        nonlocal proved, entries
        cases = islice(enumerate(every_case(subject, bound)), place, None, count)
        for number, case in cases:
            if number > first_failure.value:
                break  # a smaller one has failed
            outcome = run_case(run, case)
            verdict, spaces = (
                outcome if outcome is not None else (Verdict(Status.UNJUDGED, "inapplicable"), None)
            )
            if not verdict.is_coherent:
                with first_failure.get_lock():
                    first_failure.value = min(first_failure.value, number)
                return _Share(proved, entries, (number, case, verdict, spaces))
            proved += 1
            entries += int(verdict.figures["entries"])
            done.value = proved
        return _Share(proved, entries)

    try:
        return world.lead(body(subject), conduct)
    finally:
        world.close()
