"""Counts false alarms, and measures what the floating-point form of a check misses.

    python benchmarks/soak.py --cases 20000 --seed 1
    python benchmarks/soak.py --cases 50000 --schedules 2 --trials 0
    mpiexec -n 4 python benchmarks/soak.py --cases 5000 --trials 0

First the subjects of the primitives, which are right, through all their checks until that many cases are judged: none may fail.
Then the adjoint check on large tensors, in its exact and in its floating form: a right operator must pass both, and of its
copies that lose one single contribution in the adjoint the table tells which share each form misses. Exits with 1 at a
false alarm. A series on the way shows what the process holds: memory, threads, requests, communicators.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from timing import least

import adjointlab as al
from adjointlab import MPI
from adjointlab.checks.adjoint import AdjointCheck
from adjointlab.checks.check import Spaces, checks_of
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.verdict import Verdict
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.primitives.subjects import installed as built_in
from adjointlab.worlds.launch import open_world
from adjointlab.worlds.local_calls import LocalCalls
from adjointlab.worlds.world import RankContext, Runner, World


def subjects() -> list[Subject]:
    """Those of the primitives."""
    return [value for value in vars(built_in).values() if isinstance(value, Subject)]


@dataclass(frozen=True)
class Held:
    """Resources held by the leader's process after a number of cases."""

    cases: int
    memory: float  # resident, MiB
    threads: int
    requests: int
    communicators: int
    left: int  # communicators that a world has given up

    @classmethod
    def now(cls, world: World, cases: int) -> Held:
        gc.collect()
        kinds = Counter(type(thing) for thing in gc.get_objects())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            cases,
            pages * resource.getpagesize() / 2**20,
            threading.active_count(),
            sum(count for kind, count in kinds.items() if is_request(kind)),
            sum(count for kind, count in kinds.items() if is_communicator(kind)),
            getattr(world, "leaked_communicators", 0),
        )


def is_request(kind: type) -> bool:
    """Return True for classes of requests, of the worlds and of mpi4py, except that of REQUEST_NULL, which always exists."""
    is_of_a_world = issubclass(kind, MPI.Request) and kind is not MPI.NullRequest
    return is_of_a_world or (kind.__module__ == "mpi4py.MPI" and kind.__name__.lower().endswith("request"))


def is_communicator(kind: type) -> bool:
    """Return True for classes of communicators, with and without a topology, of the worlds and of mpi4py."""
    return issubclass(kind, LocalCalls) or (
        kind.__module__ == "mpi4py.MPI" and kind.__name__.endswith("comm")
    )


def soak(
    world: World, cases: int, seed: int, schedules: int = 1
) -> tuple[Counter[tuple[str, str]], list[str], dict[str, float], list[Held]]:
    """Return the cases judged by subject and check, the alarms, the worst figures, and the resources held on the way.

    A case under several schedules counts once.
    """
    pairs = [(subject, check) for subject in subjects() for check in checks_of(subject)]
    judged: Counter[tuple[str, str]] = Counter()
    alarms: list[str] = []
    worst: dict[str, float] = {}
    series: list[Held] = []
    turn = 0
    while sum(judged.values()) < cases:
        for subject, check in pairs:
            done = sum(judged.values())
            if done >= cases:
                break
            if not series or done >= series[-1].cases + max(1, cases // 10):
                series.append(Held.now(world, done))
            share = max(1, min(200, cases // len(pairs) + 1))
            report = investigate(
                world, subject, check, Budget(cases=share, seed=seed + turn, schedules=schedules)
            )
            judged[subject.name, check] += report.tried
            for name, value in report.figures.items():
                if isinstance(value, float | int):
                    worst[name] = max(worst.get(name, 0.0), float(value))
            if not report.verdict.is_coherent:
                alarms.append(f"{subject.name}, {check}, seed {seed + turn}: {report.verdict}")
        turn += 1
    series.append(Held.now(world, sum(judged.values())))
    return judged, alarms, worst, series


class Gathered(al.LinearOperator):
    """An all-reduce of many elements; its adjoint drops the last rank's contribution to the element `lost`.

    The sum of `ranks` terms, so the floating form must allow for rounding and the exact one need not.
    """

    def __init__(self, comm: Any, size: int, dtype: str, lost: int | None) -> None:
        ranks = comm.Get_size()
        layout = al.Layout((size,), al.Partition((ranks,)), axes=(None,))
        self.comm, self.lost = comm, lost
        self.domain, self.codomain = al.Space(layout, dtype=dtype), al.Space(layout, dtype=dtype, name="y")
        self.gain = self.fan_in = ranks

    def forward(self, x: Any) -> Any:
        total = np.empty(x.shape, x.dtype)
        self.comm.Allreduce(np.ascontiguousarray(x), total, MPI.SUM)
        return total

    def adjoint(self, y: Any) -> Any:
        if self.lost is not None and self.comm.Get_rank() == self.comm.Get_size() - 1:
            y = np.array(y)
            y[self.lost] = 0
        return self.forward(y)


@dataclass(frozen=True)
class Large:
    """One application of the adjoint check to a large tensor."""

    size: int
    dtype: str
    seed: int
    lost: int | None = None


def judge_large(run: Runner, ranks: int, large: Large) -> tuple[Verdict, Verdict]:
    """The verdicts of the exact and of the floating form."""
    result = run(large, ranks, seed=large.seed)
    assert result.completed, result
    observations = [observation for observation, _ in result.values]
    spaces = result.values[0][1]
    verdicts = []
    for exact in (True, False):
        kept = [
            replace(
                seen, products=tuple(products for products in seen.products if bool(products.bound) is exact)
            )
            for seen in observations
        ]
        verdicts.append(AdjointCheck().judge(spaces, kept))
    return verdicts[0], verdicts[1]


def body(rank_context: RankContext, large: Large) -> Any:
    comm = rank_context.comm
    context = CheckContext(
        lambda: Gathered(comm, large.size, large.dtype, large.lost),
        InputSetting(seed=large.seed),
        comm,
    )
    observation = AdjointCheck().observe(context)
    return observation, Spaces(context.domain, context.codomain)


@dataclass
class Share:
    """The result of one size and element type."""

    size: int
    dtype: str
    trials: int
    alarms: int = 0
    missed_exact: int = 0
    missed_floating: int = 0


def large_tensors(
    world: World, sizes: Sequence[int], dtypes: Sequence[str], trials: int, seed: int
) -> list[Share]:
    """False alarms and missed single contributions at each size."""
    ranks = min(4, world.ranks)

    def conduct(run: Runner) -> list[Share]:
        shares = []
        random = np.random.default_rng(seed)
        for dtype in dtypes:
            for size in sizes:
                # As many trials as the time of a large tensor allows.
                share = Share(size, dtype, max(min(5, trials), min(trials, trials * 10**4 // size)))
                for trial in range(share.trials):
                    large = Large(size, dtype, seed + 1000 * trial)
                    share.alarms += sum(not verdict.is_coherent for verdict in judge_large(run, ranks, large))
                    exact, floating = judge_large(run, ranks, replace(large, lost=int(random.integers(size))))
                    share.missed_exact += exact.is_coherent
                    share.missed_floating += floating.is_coherent
                shares.append(share)
        return shares

    return world.lead(body, conduct)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=least(20000))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=1, help="interleavings of each case (simulated)")
    parser.add_argument(
        "--trials", type=int, default=least(40), help="lost contributions to try at each small size"
    )
    parser.add_argument("--largest", type=int, default=10**6, help="elements of the largest tensor")
    options = parser.parse_args(arguments)
    world = open_world(ranks=8)
    started = time.monotonic()
    judged, alarms, worst, series = soak(world, options.cases, options.seed, options.schedules)
    seconds = time.monotonic() - started
    if world.is_leader:
        by_check = Counter[str]()
        for (_, check), count in judged.items():
            by_check[check] += count
        print(
            f"{sum(judged.values())} cases of {len(subjects())} right subjects in {seconds:.0f} s ({world.name}, seed {options.seed})"
        )
        print("| check | cases |\n|---|---|")
        print("\n".join(f"| {check} | {count} |" for check, count in by_check.items()))
        print(f"false alarms: {len(alarms)}")
        print("worst figures: " + ", ".join(f"{name} {value:.3g}" for name, value in worst.items()))
        print("\n".join(alarms))
        print(
            "| cases | resident MiB | threads | requests | communicators | given up |\n|---|---|---|---|---|---|"
        )
        for held in series:
            print(
                f"| {held.cases} | {held.memory:.0f} | {held.threads} | {held.requests} | {held.communicators} | {held.left} |"
            )
    if not options.trials:
        world.close()
        return 1 if alarms else 0
    sizes = least([10**k for k in range(1, 7) if 10**k <= options.largest])
    shares = large_tensors(world, sizes, ("float64", "float32"), options.trials, options.seed)
    if world.is_leader:
        print(
            "\n| element type | elements | trials | false alarms, both forms | lost contributions missed: exact "
            "| floating |\n|---|---|---|---|---|---|"
        )
        for share in shares:
            print(
                f"| {share.dtype} | {share.size} | {share.trials} | {share.alarms} | {_percent(share.missed_exact, share)} "
                f"| {_percent(share.missed_floating, share)} |"
            )
    world.close()
    return 1 if alarms or any(share.alarms for share in shares) else 0


def _percent(count: int, share: Share) -> str:
    return f"{100 * count / share.trials:.0f} %"


if __name__ == "__main__":
    sys.exit(main())
