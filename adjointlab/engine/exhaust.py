"""Prove all cases within a bound by their complete matrices, instead of checking a random sample.

The cases are split among processes, each with its own simulated ranks. They are listed from small to large, so that
the first that fails is a small one.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count as numbers_from_zero
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Final, NamedTuple

from adjointlab.checks.context import InputSetting
from adjointlab.checks.proof import PROOF
from adjointlab.checks.verdict import Figure, coherent, unjudged
from adjointlab.cores import cores
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.counts import WITHOUT_REASON, CaseCounts
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.run_case import CaseRunner, Judgement, inapplicable_because, run_case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.options import RANKS
from adjointlab.worlds.exception_text import kind_and_message
from adjointlab.worlds.run import Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.shared_functions import FunctionsReplaced
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import Runner

__all__ = ["Bound", "bound_of", "every_case", "exhaust", "memory_of_proofs"]

Bound = Mapping[str, int]
"""The limits of a subject's cases: the keyword arguments of its enumeration."""

_NO_FAILURE = sys.maxsize
"""Larger than the number of any case."""

_BATCH_SIZE = 32
"""Largest number of cases that run together."""

_BATCHES = 8
"""Least number of batches for each process if there are enough cases: some batches take longer than others."""


@dataclass(frozen=True)
class _Share:
    """The result of one process: the cases and matrix entries that it has proved, and the reason if it ended early."""

    counts: CaseCounts
    entries: int = 0
    failure: tuple[int, Case, Judgement] | None = None
    error: str = ""


def _ended_early(error: str) -> _Share:
    return _Share(CaseCounts(0), error=error)


class _Judged(NamedTuple):
    """A case with its number in the list, its judgement, and its last run."""

    number: int
    case: Case
    judgement: Judgement
    last_run: Run


def bound_of(subject: Subject, given: Mapping[str, int] | None = None) -> Bound:
    """The bound of `subject`: the defaults of its enumeration, overridden by those in `given` that it has.

    Raises :class:`SubjectError` if the subject lists no cases: it has no enumeration, there are none within the bound, or the
    enumeration fails.
    """
    if subject.every is None:
        raise SubjectError(
            f"{subject.name}: lists no cases; give its decorator every=function, where function(ranks=3, side=2) with "
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
    except (KeyboardInterrupt, SubjectError):
        raise
    except BaseException as error:
        text = kind_and_message(error)
        raise SubjectError(f"{subject.name}: every= fails, {text}") from error
    if first is None:
        limits = ", ".join(f"{name} {value}" for name, value in bound.items())
        within = (
            f"there is no case within the bound {limits}; give a larger one"
            if limits
            else "every= lists no case"
        )
        raise SubjectError(f"{subject.name}: {within}")
    return bound


def memory_of_proofs(subject: Subject, device: str | None) -> str:
    """Return the memory in which a subject's cases are proved: except on "cuda", NumPy's, so that torch need not be loaded.

    Raises :class:`SubjectError` if `device` is "cuda" and the subject draws no tensors there.
    """
    return subject.libraries(device)[0] if device == "cuda" else "numpy"


def every_case(subject: Subject, bound: Bound, memory: str = "numpy") -> Iterator[Case]:
    """List all cases within `bound`, in the order of the subject's enumeration, with tensors in `memory`.

    Raises :class:`SubjectError` for an enumeration that yields something else.
    """
    assert subject.every is not None
    for number, entry in enumerate(subject.every(**bound)):
        if not _is_case(entry):
            raise SubjectError(
                f"{subject.name}: every= yields {entry!r}, not a pair of a number of ranks and a dictionary of arguments"
            )
        ranks, parameters = entry
        if not 1 <= ranks <= RANKS.most:
            raise SubjectError(
                f"{subject.name}: every= yields a case on {ranks} ranks; legal are 1 to {RANKS.most}"
            )
        # Each case gets a different random vector by its seed, and a different legal interleaving by its schedule.
        setting = InputSetting(seed=number, library=memory)
        yield Case(subject.name, PROOF.name, ranks, parameters, setting, schedule=number % 2**16)


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
    device: str | None = None,
) -> SearchResult:
    """Prove every case of `subject` within `bound` on `jobs` processes (default: one for each core), in memory of `device`.

    The processes find the subject by its `reference`, as on a command line. `tick` is called with the number of cases done and
    the total. The result's `tried` is the number of cases proved, or the position of the first failing case in the list; its figure
    "entries" is the number of matrix entries. Raises :class:`SubjectError` as :func:`every_case` does.
    """
    started = time.monotonic()
    try:
        total = sum(1 for _ in every_case(subject, bound))
    except (KeyboardInterrupt, SubjectError):
        raise
    except BaseException:
        shares, total = [_ended_early(traceback.format_exc().rstrip())], 0
    else:
        processes = max(1, min(jobs or cores(), total))
        shares = _in_processes(
            reference,
            bound,
            memory_of_proofs(subject, device),
            processes,
            total,
            lambda done: tick(done, total),
        )
    counts, entries = CaseCounts(total), sum(share.entries for share in shares)
    for share in shares:
        counts.add(share.counts)
    proved = counts.judged
    (verdict, spaces), case, tried = Judgement(coherent(), None), None, proved
    if problems := [share.error for share in shares if share.error]:
        verdict = unjudged("the exhaustive run failed", ("because", problems[0]), kind="process")
    elif failures := [share.failure for share in shares if share.failure is not None]:
        number, case, (verdict, spaces) = min(failures, key=lambda failure: failure[0])
        tried = number + 1
    elif proved != total:
        raise RuntimeError(f"{proved} of {total} cases were proved, and nothing says why")
    return SearchResult(
        subject.name,
        PROOF.name,
        SimulatedWorld.name,
        verdict,
        tried,
        seconds=time.monotonic() - started,
        case=case,
        spaces=spaces,
        drawn_ranks=0 if case is None else case.ranks,
        figures={Figure.ENTRIES: entries},
        counts=counts,
    )


@dataclass(frozen=True)
class _Process:
    """One of `count` processes: it takes the batches of `batch_size` cases whose position is `index` modulo `count`.

    Successive cases share spaces and intervals, so a batch makes use of what is cached for these.
    """

    reference: str
    bound: Bound
    memory: str
    index: int
    count: int
    batch_size: int
    done: Synchronized[int]  # cases that it has proved so far
    first_failure: Synchronized[int]  # of all processes
    path: list[str]  # sys.path, so that it finds the subject's module as this process did

    def __call__(self, pipe: Connection[_Share, _Share]) -> None:
        sys.path[:] = self.path
        os.environ.pop(_SAFE_PATH, None)  # user code may start processes too
        try:
            pipe.send(self.share())
        except KeyboardInterrupt:
            pass  # the parent process is interrupted too
        except BaseException:
            pipe.send(_ended_early(traceback.format_exc().rstrip()))

    def share(self) -> _Share:
        subject, world = find_subject(self.reference), SimulatedWorld()

        def conduct(run: Runner) -> _Share:
            run = CaseRunner(run)
            counts, entries = CaseCounts(0), 0
            for batch in self.own_batches(subject):
                for number, case, judgement, last_run in self.judged(world, run, batch):
                    if not judgement.verdict.is_coherent:
                        with self.first_failure.get_lock():
                            self.first_failure.value = min(self.first_failure.value, number)
                        return _Share(counts, entries, (number, case, judgement))
                    counts.judge(case, last_run, judgement.spaces)
                    entries += int(judgement.verdict.figures[Figure.ENTRIES])
                self.done.value = counts.judged
            return _Share(counts, entries)

        try:
            return world.lead(body(replace(subject, arrays=(self.memory,))), conduct)
        finally:
            world.close()

    def own_batches(self, subject: Subject) -> Iterator[list[tuple[int, Case]]]:
        """The numbered cases that this process takes, in batches, until one with a smaller number has failed in any process."""
        numbered = enumerate(every_case(subject, self.bound, self.memory))
        for position in numbers_from_zero():
            batch = list(islice(numbered, self.batch_size))
            if not batch or batch[0][0] > self.first_failure.value:
                return
            if position % self.count == self.index:
                yield batch

    def judged(self, world: SimulatedWorld, run: Runner, batch: Sequence[tuple[int, Case]]) -> list[_Judged]:
        """The cases of a batch with their judgements, up to the first that is not coherent."""
        try:
            with world.together():
                return list(self.judged_one_by_one(run, batch))
        except FunctionsReplaced:
            # Some case of the batch replaced them. They are restored by now, and single runs show which case it was.
            return list(self.judged_one_by_one(run, batch))

    def judged_one_by_one(self, run: Runner, batch: Sequence[tuple[int, Case]]) -> Iterator[_Judged]:
        last: Run

        def recorded(payload: Case, ranks: int, *, seed: int = 0, schedule: Schedule | None = None) -> Run:
            nonlocal last
            last = run(payload, ranks, seed=seed, schedule=schedule)
            return last

        for number, case in batch:
            if number > self.first_failure.value:
                return
            judgement = run_case(recorded, case) or _not_judged(last)
            yield _Judged(number, case, judgement, last)
            if not judgement.verdict.is_coherent:
                return


def _not_judged(run: Run) -> Judgement:
    reason = inapplicable_because(run) or WITHOUT_REASON
    return Judgement(unjudged("a proof can say nothing about this case", ("because", reason)), None)


_SAFE_PATH: Final = "PYTHONSAFEPATH"


@contextmanager
def _safe_path() -> Iterator[None]:
    """Context in which new interpreters, like this one, do not look for Python's own modules in the current folder."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _in_processes(
    reference: str, bound: Bound, memory: str, count: int, total: int, tick: Callable[[int], None]
) -> list[_Share]:
    """Prove the `total` cases in `count` processes; return the result of each. `tick` is called with the number of cases done."""
    # A fork would copy locks that other threads of this process hold, but not these threads.
    context = multiprocessing.get_context("spawn")
    with _safe_path():  # the first value starts multiprocessing's resource tracker, a process
        done = [context.Value("q", 0) for _ in range(count)]
        first_failure = context.Value("q", _NO_FAILURE)
    batch_size = max(1, min(_BATCH_SIZE, total // (_BATCHES * count)))
    pipes, processes = [], []
    shares: list[_Share] = []
    try:
        for index in range(count):
            receiver, sender = context.Pipe(duplex=False)
            shared = done[index], first_failure, sys.path
            target = _Process(reference, dict(bound), memory, index, count, batch_size, *shared)
            process = context.Process(target=target, args=(sender,), daemon=True)
            with _safe_path():
                process.start()
            processes.append(process)
            # The process has this end now. If it stayed open here too, the pipe would not end with the process.
            sender.close()
            pipes.append(receiver)
        for pipe, process in zip(pipes, processes, strict=True):
            while not pipe.poll(0.2):
                tick(sum(value.value for value in done))
            try:
                shares.append(pipe.recv())
            except EOFError:
                process.join()
                shares.append(_ended_early(f"it ended with exit code {process.exitcode}"))
        tick(sum(value.value for value in done))
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return shares
