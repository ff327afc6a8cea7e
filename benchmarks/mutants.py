"""The random mutants of the primitives' programs, and how many of them the checks find.

    python benchmarks/mutants.py --seed 1 --count 200
    mpiexec -n 4 python benchmarks/mutants.py --seed 1 --count 200

Prints a table of the mutants found, by kind of edit and by the program that was edited (see ``tests/planted/mutants.py``). The
exit code is 1 if a mutant is missed that is not equivalent to the original.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from timing import least

from adjointlab.worlds.launch import open_world
from tests.planted.mutants import CHECKS, KINDS, PLACES, Result, hunt, mutants


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=least(200))
    parser.add_argument(
        "--ranks", type=int, default=4, help="ranks of a geometry (at most those of the world)"
    )
    options = parser.parse_args(arguments)
    world = open_world(ranks=options.ranks)
    ranks = min(options.ranks, world.ranks)
    drawn, discarded = mutants(options.seed, options.count, ranks)
    results = [hunt(world, mutant, options.seed + number) for number, mutant in enumerate(drawn)]
    missed = [result for result in results if not result.found_by]
    if world.is_leader:
        print(table(results))
        print(
            f"\n{len(results)} mutants (seed {options.seed}, {world.name}, {ranks} ranks), {discarded} equivalent ones "
            f"discarded: {len(results) - len(missed)} found, {len(missed)} missed; most cases until found: "
            f"{max((result.cases for result in results if result.found_by), default=0)}"
        )
        for result in missed:
            print(f"missed: {result.mutant}")
    world.close()
    return 1 if missed else 0


def table(results: Sequence[Result]) -> str:
    """Kinds by places: found of drawn; and which check found how many."""
    lines = ["| edit | " + " | ".join(PLACES) + " |", "|---|" + "---|" * len(PLACES)]
    for kind in KINDS:
        cells = []
        for place in PLACES:
            here = [r for r in results if (r.mutant.kind, r.mutant.place) == (kind, place)]
            cells.append(f"{sum(bool(r.found_by) for r in here)} of {len(here)}")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    finders = Counter(result.found_by for result in results if result.found_by)
    lines.append("")
    lines.append("found by: " + ", ".join(f"{check} {finders[check]}" for check in CHECKS))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
