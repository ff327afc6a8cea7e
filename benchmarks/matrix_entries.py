"""Time of the matrix probe and of the exhaustive proof for each matrix entry, as cases grow.

    python benchmarks/matrix_entries.py

A case is made larger in two ways: more elements on each of 4 simulated ranks, and more ranks of 4 elements each. The probe takes 24
basis vectors in each direction, and the proof all of them. Nanoseconds of the processor's time for each entry that the verdict rests on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from timing import interleaved, least, print_table, words

from adjointlab import Layout, Partition
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Figure
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.run_case import run_case
from adjointlab.engine.subject import Subject
from adjointlab.primitives.subjects.halos import halo_exchanges
from adjointlab.primitives.subjects.reductions import broadcasts
from adjointlab.worlds.simulated.world import SimulatedWorld

ELEMENTS = least((4, 16, 64, 256))
RANKS = least((4, 16, 64))


def broadcast(elements: int, ranks: int) -> dict[str, object]:
    """Arguments of a Broadcast from one worker to all."""
    return {"layout": Layout((elements,), Partition((1,))), "partition": Partition((ranks,))}


def halos(elements: int, ranks: int) -> dict[str, object]:
    """Arguments of an exchange of halos of width 1 around a ring."""
    bulk = Layout((elements * ranks,), Partition((ranks,)))
    wider = [(start - 1, stop + 1) for start, stop in bulk.windows[0]]
    return {"layout": bulk, "windows": Layout(bulk.shape, bulk.partition, [wider]), "periodic": [0]}


def proved(world: SimulatedWorld, subject: Subject, case: Case) -> int:
    """Run and judge the case; return the number of matrix entries behind the verdict."""
    judgement = world.lead(body(subject), lambda run: run_case(run, case))
    assert judgement is not None
    assert judgement.verdict.is_coherent, judgement.verdict
    return int(judgement.verdict.figures[Figure.ENTRIES])


def row(subject: Subject, arguments: Callable[[int, int], dict[str, object]], check: str) -> list[str]:
    """Nanoseconds for each entry, with more elements and with more ranks."""
    sizes = [*((elements, 4) for elements in ELEMENTS), *((4, ranks) for ranks in RANKS[1:])]
    runs, entries = {}, {}
    for elements, ranks in sizes:
        case = Case(subject.name, check, ranks, arguments(elements, ranks), InputSetting(1), 0)
        name, world = f"{elements} {ranks}", SimulatedWorld(ranks)
        entries[name] = proved(world, subject, case)
        runs[name] = partial(proved, world, subject, case)
    taken = interleaved(runs, 1, 5, summary=min, clock=time.process_time)
    return [f"{subject.name}, {check}", *(f"{taken[name] / entries[name] * 1e9:.1f}" for name in runs)]


def main() -> None:
    columns = [f"{each} on 4 ranks" for each in ELEMENTS] + [f"4 on {each} ranks" for each in RANKS[1:]]
    rows = [
        row(subject, arguments, check)
        for subject, arguments in ((broadcasts, broadcast), (halo_exchanges, halos))
        for check in ("matrix", "proof")
    ]
    print_table("nanoseconds for each matrix entry, by elements of a rank and ranks", ["", *columns], rows)


if __name__ == "__main__":
    words(__doc__)
    main()
