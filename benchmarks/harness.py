"""The cost of a case, and its growth with the number of simulated ranks.

    python benchmarks/harness.py

One fixed reference strategy: Broadcast from one worker to all, on up to 4 ranks, tensors of up to 3 dimensions, all
element types. The columns: the draw alone, the bare operator (a world's run of one forward and one adjoint), and what
the lab adds to the two in a whole check (values, memory orders, pairing, judging). A second table has the rates of other subjects.
All by the processor's clock, of all threads of the process, since the machine may be busy with other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import given
from timing import interleaved, is_smoke, least, print_table, seconds_per_rank, words

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.checks.context import InputSetting
from adjointlab.core import strategies
from adjointlab.engine.case import Case, cases
from adjointlab.engine.case_body import body
from adjointlab.engine.discovery import installed
from adjointlab.engine.hypothesis_searches import settings_of
from adjointlab.engine.run_case import run_case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

COUNT = least(300)
RANKS = (2, 16) if is_smoke() else tuple(2**power for power in range(1, 11))


@al.subject.operator(Broadcast, ranks=(1, 2, 3, 4))
def broadcasts(draw: Any, ranks: int) -> dict[str, Any]:
    """The reference strategy."""
    pair = draw(strategies.broadcasting_partitions(ranks))
    layout = draw(strategies.layouts(ranks, partition=pair["source"]))
    return {
        "layout": layout,
        "partition": pair["destination"],
        "dtype": draw(strategies.dtypes(strategies.FLOATING)),
        "transpose_src": pair["transpose_src"],
        "transpose_dest": pair["transpose_dest"],
    }


def drawn(count: int, check: str) -> list[Case]:
    """Cases of the reference strategy."""
    found: list[Case] = []

    @hypothesis.seed(1)
    @settings_of(count)
    @given(case=cases(broadcasts, check, (1, 4)))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def bare(context: RankContext, case: Case) -> None:
    """One forward and one adjoint pass on zeros: what a user's own loop would run."""
    import numpy as np

    operator = Broadcast(context.comm, **case.parameters)
    x, y = operator.domain.tensors[0], operator.codomain.tensors[0]
    operator.forward(np.zeros(x.layout.local_shape(context.rank), x.dtype))
    operator.adjoint(np.zeros(y.layout.local_shape(context.rank), y.dtype))


def per_case() -> None:
    """Microseconds of the draw, of the bare operator, and of the rest of each check."""
    world = SimulatedWorld(4)
    rows = []
    for check in checks_of(broadcasts):
        # Before anything is timed: the first draws of a process make the strategies that the later ones find.
        some = drawn(COUNT, check)

        def draw(check: str = check) -> None:
            drawn(COUNT, check)

        def run_bare(some: list[Case] = some) -> None:
            for case in some:
                world.run(bare, case, case.ranks, seed=case.schedule)

        def run_check(some: list[Case] = some) -> None:
            def conduct(run: Any) -> None:
                for case in some:
                    run_case(run, case)

            world.lead(body(broadcasts), conduct)

        contestants = {"draw": draw, "bare": run_bare, "check": run_check}
        taken = interleaved(contestants, 1, rounds=5, clock=time.process_time)
        draws, operator, whole = (seconds / len(some) for seconds in taken.values())
        rows.append(
            [
                check,
                f"{draws * 1e6:.0f}",
                f"{operator * 1e6:.0f}",
                f"{(whole - operator) * 1e6:.0f}",
                f"{(whole - operator) / draws:.2f}",
                f"{rate(world, broadcasts, check, COUNT):.0f}",
            ]
        )
    print_table(
        "Broadcast on up to 4 simulated ranks, for each case",
        ["check", "draw µs", "bare operator µs", "lab adds µs", "lab / draw", "checks per second"],
        rows,
    )


def rate(world: SimulatedWorld, subject: Subject, check: str, cases: int) -> float:
    """Checks per CPU-second."""
    # What is made once in a process, some of it in a few cases only: torch's first product in forward mode imports for a second.
    investigate(world, subject, check, Budget(cases, seed=9))
    start = time.process_time()
    report = investigate(world, subject, check, Budget(cases, seed=1))
    return report.tried / (time.process_time() - start)


OTHERS = (
    ("Broadcast", "adjoint", 300),
    ("HaloExchange", "adjoint", 200),
    ("Convolution", "gradients", 60),
    ("MaxPooling", "gradients", 60),
    ("Linear", "gradients", 60),
    ("Softmax", "gradients", 60),
    ("GroupNorm", "gradients", 60),
    ("MultiheadAttention", "gradients", 40),
    ("Upsample", "gradients", 60),
    ("Convolution", "sequential", 60),
    ("Linear", "sequential", 60),
    ("Convolution", "jacobian", 60),
    ("Softmax", "jacobian", 60),
    ("Linear", "double_backward", 30),
    ("MultiheadAttention", "double_backward", 30),
)
"""Installed subjects, on up to 8 ranks: check and number of cases."""


def rates() -> None:
    """Checks per second of other subjects."""
    subjects = {each.subject.name: each.subject for each in installed()}
    world = SimulatedWorld(8)
    print_table(
        "checks per second on up to 8 simulated ranks",
        ["subject", "check", "checks per second"],
        [
            [name, check, f"{rate(world, subjects[name], check, least(cases)):.1f}"]
            for name, check, cases in OTHERS
            if name in subjects  # layers need torch
        ],
    )


def adjoint_case(ranks: int) -> Callable[[], object]:
    """A function that checks the adjoint of a Broadcast from one worker to all of `ranks`, once."""
    world = SimulatedWorld(ranks)
    parameters = {"layout": al.Layout((4,), al.Partition((1,))), "partition": al.Partition((ranks,))}
    case = Case("Broadcast", "adjoint", ranks, parameters, InputSetting(1), 0)
    return lambda: world.lead(body(broadcasts), lambda run: run_case(run, case))


def growth() -> None:
    """Time of an adjoint case as the simulated ranks grow; linear growth keeps the last column at 1."""
    taken = seconds_per_rank(
        {ranks: adjoint_case(ranks) for ranks in RANKS}, rounds=7, clock=time.process_time
    )
    print_table(
        "an adjoint case of Broadcast from 1 to P ranks",
        ["ranks", "µs", "µs per rank", "relative to 2 ranks", "relative to 16 ranks"],
        [
            [
                str(ranks),
                f"{each * ranks * 1e6:.0f}",
                f"{each * 1e6:.0f}",
                f"{each / taken[2]:.2f}",
                f"{each / taken[16]:.2f}",
            ]
            for ranks, each in taken.items()
        ],
    )


if __name__ == "__main__":
    words(__doc__)
    per_case()
    rates()
    growth()
