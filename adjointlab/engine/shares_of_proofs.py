"""The processes that prove the cases of a list, each a share of them, on simulated ranks of its own."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count as numbers_from_zero
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Final, NamedTuple

from adjointlab.checks.verdict import Figure, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.counts import WITHOUT_REASON, CaseCounts
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.listed_cases import Bound, every_case
from adjointlab.engine.run_case import CaseRunner, Judgement, inapplicable_because, run_case
from adjointlab.engine.subject import Subject
from adjointlab.worlds.run import Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.shared_functions import FunctionsReplaced
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import Runner

__all__ = ["ProofProcess", "Share", "ended_early", "in_processes"]

_NO_FAILURE = sys.maxsize
"""Larger than the number of any case."""

_BATCH_SIZE = 32
"""Largest number of cases that run together."""

_BATCHES = 8
"""Least number of batches for each process if there are enough cases: some batches take longer than others."""


@dataclass(frozen=True)
class Share:
    """The result of one process: the cases and matrix entries that it has proved, and the reason if it ended early."""

    counts: CaseCounts
    entries: int = 0
    failure: tuple[int, Case, Judgement] | None = None
    error: str = ""


def ended_early(error: str) -> Share:
    """The result of a process of which nothing is known but an `error`."""
    return Share(CaseCounts(0), error=error)


class _Judged(NamedTuple):
    """A case with its number in the list, its judgement, and its last run."""

    number: int
    case: Case
    judgement: Judgement
    last_run: Run


@dataclass(frozen=True)
class ProofProcess:
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

    def __call__(self, pipe: Connection[Share, Share]) -> None:
        sys.path[:] = self.path
        os.environ.pop(_SAFE_PATH, None)  # user code may start processes too
        try:
            pipe.send(self.share())
        except KeyboardInterrupt:
            pass  # the parent process is interrupted too
        except BaseException:
            pipe.send(ended_early(traceback.format_exc().rstrip()))

    def share(self) -> Share:
        subject, world = find_subject(self.reference), SimulatedWorld()

        def conduct(run: Runner) -> Share:
            run = CaseRunner(run)
            counts, entries = CaseCounts(0), 0
            for batch in self.own_batches(subject):
                for number, case, judgement, last_run in self.judged(world, run, batch):
                    if not judgement.verdict.is_coherent:
                        with self.first_failure.get_lock():
                            self.first_failure.value = min(self.first_failure.value, number)
                        return Share(counts, entries, (number, case, judgement))
                    counts.judge(case, last_run, judgement.spaces)
                    entries += int(judgement.verdict.figures[Figure.ENTRIES])
                self.done.value = counts.judged
            return Share(counts, entries)

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


def in_processes(
    reference: str, bound: Bound, memory: str, count: int, total: int, tick: Callable[[int], None]
) -> list[Share]:
    """Prove the `total` cases in `count` processes; return the result of each. `tick` is called with the number of cases done."""
    # A fork would copy locks that other threads of this process hold, but not these threads.
    context = multiprocessing.get_context("spawn")
    with _safe_path():  # the first value starts multiprocessing's resource tracker, a process
        done = [context.Value("q", 0) for _ in range(count)]
        first_failure = context.Value("q", _NO_FAILURE)
    batch_size = max(1, min(_BATCH_SIZE, total // (_BATCHES * count)))
    pipes, processes = [], []
    shares: list[Share] = []
    try:
        for index in range(count):
            receiver, sender = context.Pipe(duplex=False)
            shared = done[index], first_failure, sys.path
            target = ProofProcess(reference, dict(bound), memory, index, count, batch_size, *shared)
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
                shares.append(ended_early(f"it ended with exit code {process.exitcode}"))
        tick(sum(value.value for value in done))
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return shares
