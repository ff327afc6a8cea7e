"""Cases that an exhaustive run proves per CPU-second, for each primitive.

    python benchmarks/proofs.py

From each list batches of neighbouring cases are proved, in one process, at even distances from the first to the last. Of some rounds
the least time of each batch counts, since other processes on the machine make all of them longer and none shorter.
"""

from __future__ import annotations

import time
from dataclasses import replace

from timing import is_smoke, least, print_table, words

from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.discovery import find
from adjointlab.engine.listed_cases import bound_of, every_case
from adjointlab.engine.run_case import run_case
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import Runner

BATCHES = 10
BATCH_SIZE = 20
ROUNDS = least(3)


def batches_of(cases: list[Case]) -> list[list[Case]]:
    """Batches of neighbours, from the first case to the last."""
    count = max(2, least(BATCHES))
    last = max(0, len(cases) - BATCH_SIZE)
    starts = dict.fromkeys(number * last // (count - 1) for number in range(count))
    return [cases[start : start + BATCH_SIZE] for start in starts]


def seconds_per_case(subject: Subject, cases: list[Case]) -> float:
    """CPU time of a case: its share of a batch."""
    batches, world = batches_of(cases), SimulatedWorld()
    least_of = [float("inf")] * len(batches)

    def conduct(run: Runner) -> None:
        for _ in range(ROUNDS):
            for number, batch in enumerate(batches):
                start = time.process_time()
                with world.together():
                    for case in batch:
                        judgement = run_case(run, case)
                        assert judgement is not None
                        assert judgement.verdict.is_coherent
                least_of[number] = min(least_of[number], time.process_time() - start)

    try:
        world.lead(body(replace(subject, arrays=("numpy",))), conduct)
    finally:
        world.close()
    return sum(least_of) / sum(map(len, batches))


def main() -> None:
    """Print the rate of each primitive, and that of all lists together."""
    rows, total, seconds = [], 0, 0.0
    for found in least(find(["adjointlab.primitives.subjects.installed"])):
        subject = found.subject
        smallest = {"ranks": 1, "side": 1, "free": 1} if is_smoke() else None
        cases = list(every_case(subject, bound_of(subject, smallest)))
        each = seconds_per_case(subject, cases)
        rows.append((subject.name, f"{len(cases):,}", f"{1 / each:.0f}"))
        total, seconds = total + len(cases), seconds + len(cases) * each
    rows.append(("all", f"{total:,}", f"{total / seconds:.0f}"))
    print_table("Exhaustive proofs", ("primitive", "cases", "cases per second"), rows)


if __name__ == "__main__":
    words(__doc__)
    main()
