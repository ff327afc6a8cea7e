"""The time that a user waits for a failing subject: that of all its checks until the smallest case is reported.

    python benchmarks/failing_runs.py                     simulated ranks
    mpiexec -n 4 python benchmarks/failing_runs.py        real ones
    python benchmarks/failing_runs.py --every 1           all planted bugs and recreated faults, not each fourth

Each bug is put to every check that applies, with the default budget of cases and of the time for smaller ones. What is not in the figures: to start
Python and to import torch. Times are of one machine; the table is for comparing commits, and for the share that hangs take.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from timing import is_smoke, print_table  # noqa: E402

from adjointlab.checks.check import checks_of  # noqa: E402
from adjointlab.engine.search import investigate  # noqa: E402
from adjointlab.engine.search_result import Budget  # noqa: E402
from adjointlab.engine.subject import Subject  # noqa: E402
from adjointlab.worlds.launch import open_world  # noqa: E402
from adjointlab.worlds.world import World  # noqa: E402  # noqa: E402
from tests.planted.bug import PlantedBug  # noqa: E402
from tests.planted.halos import PLANTED as HALOS  # noqa: E402
from tests.planted.layers import PLANTED as LAYERS  # noqa: E402
from tests.planted.recreated.table import FAULTS  # noqa: E402
from tests.planted.reductions import PLANTED as REDUCTIONS  # noqa: E402

GROUPS: dict[str, Sequence[PlantedBug]] = {
    "reductions": REDUCTIONS,
    "recreated": FAULTS,
    "halos": HALOS,
    "layers": LAYERS,
}


def seconds_of(world: World, subject: Subject, seed: int) -> float:
    """Seconds for all checks of a subject."""
    start = time.perf_counter()
    for check in checks_of(subject):
        investigate(world, subject, check, Budget(1 if is_smoke() else Budget().cases, seed=seed))
    return time.perf_counter() - start


def row(name: str, seconds: Sequence[float]) -> list[str]:
    """The line of the table."""
    longest = sorted(seconds)
    figures = (statistics.median(longest), longest[int(0.9 * (len(longest) - 1))], longest[-1])
    return [name, str(len(longest)), *(f"{figure:.1f}" for figure in figures)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=4, metavar="N", help="take each N-th bug")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    world = open_world()
    taken: dict[str, list[float]] = {}
    for name, bugs in GROUPS.items():
        subjects = [bug.subject for bug in bugs[:: options.every]]
        taken[name] = [
            seconds_of(world, subject, options.seed) for subject in subjects[: 1 if is_smoke() else None]
        ]
    if world.is_leader:
        rows = [row(name, seconds) for name, seconds in taken.items()]
        rows.append(row("all", [each for seconds in taken.values() for each in seconds]))
        title = f"All checks of a failing subject, {world.name} world, {world.ranks} ranks"
        print_table(title, ["bugs", "number", "median s", "90 %", "most"], rows)
    world.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
