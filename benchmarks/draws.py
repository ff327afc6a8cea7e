"""Cases that a check needs to find each planted bug, drawn independently or by Hypothesis itself, which varies earlier ones.

    python benchmarks/draws.py                          prints a Markdown table, of seed 1
    python benchmarks/draws.py --bugs layers --seed 2   of some bugs

Each bug is put to the checks that compare values, each with up to 200 cases of either kind, and is not shrunk.
"Seen in n" is a share of those that either kind sees in that check. The last column is the processor's time of all cases.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from timing import least  # noqa: E402

from adjointlab.checks.check import checks_of  # noqa: E402
from adjointlab.engine import hypothesis_searches  # noqa: E402
from adjointlab.engine.independent_draws import INDEPENDENT  # noqa: E402
from adjointlab.engine.search import investigate  # noqa: E402
from adjointlab.engine.search_result import Budget  # noqa: E402
from adjointlab.engine.subject import Subject  # noqa: E402
from adjointlab.worlds.simulated.world import SimulatedWorld  # noqa: E402
from tests.planted.halos import PLANTED as PLANTED_HALOS  # noqa: E402
from tests.planted.layers import PLANTED as PLANTED_LAYERS  # noqa: E402
from tests.planted.recreated.table import FAULTS  # noqa: E402
from tests.planted.reductions import PLANTED  # noqa: E402

KINDS: Final = {"varied": "hypothesis", "independent": INDEPENDENT}
"""Backends of Hypothesis."""

CASES = least(200)
LIMITS = (20, 35, 50, 100)
BUGS: dict[str, tuple[Subject, ...]] = {
    "layers": tuple(each.subject for each in PLANTED_LAYERS),
    "operators": tuple(each.subject for each in (*PLANTED, *PLANTED_HALOS, *FAULTS)),
}
CHECKS = ("adjoint", "matrix", "sequential", "gradients", "jacobian", "double_backward")


@dataclass
class Needed:
    """The cases until each bug was found, and the CPU seconds of all cases."""

    cases: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, bug: int, tried: int | None, seconds: float) -> None:
        """Add a bug that was found after `tried` cases, or missed (None)."""
        self.seconds += seconds
        if tried is not None:
            self.cases[bug] = tried

    def row(self, check: str, kind: str, seen_by_either: set[int]) -> str:
        """A line of the table."""
        needed = [self.cases.get(bug, CASES + 1) for bug in sorted(seen_by_either)]
        shares = (f"{sum(cases <= limit for cases in needed) / len(needed):.0%}" for limit in LIMITS)
        median = f"{statistics.median(needed):g}"
        return f"| {check} | {kind} | {len(needed)} | {median} | {' | '.join(shares)} | {self.seconds:.0f} |"


def measured(bugs: Sequence[Subject], seed: int) -> dict[str, dict[str, Needed]]:
    """Measure the cases that each check needs with either kind of draws."""
    world = SimulatedWorld(8)
    found: dict[str, dict[str, Needed]] = {}
    for bug, subject in enumerate(bugs):
        for check in checks_of(subject, CHECKS):
            needs = found.setdefault(check, {kind: Needed() for kind in KINDS})
            # By turns, since the first search of a subject makes strategies that the second finds.
            for kind in sorted(KINDS, reverse=bool(bug % 2)):
                begin = time.process_time()
                with patch.object(hypothesis_searches, "INDEPENDENT", KINDS[kind]):
                    result = investigate(world, subject, check, Budget(CASES, seed=seed, shrinking=0.0))
                tried = None if result.verdict.is_coherent else result.tried
                needs[kind].add(bug, tried, time.process_time() - begin)
    world.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bugs", choices=BUGS, help="only these")
    options = parser.parse_args()
    for name in [options.bugs] if options.bugs else BUGS:
        print(f"\nBugs of {name}, seed {options.seed}\n")
        print("| check | draws | bugs | median |", " | ".join(f"seen in {n}" for n in LIMITS), "| seconds |")
        print("|---|---|---|---|" + "---|" * (len(LIMITS) + 1))
        for check, by_kind in measured(least(BUGS[name]), options.seed).items():
            seen = set().union(*(needed.cases for needed in by_kind.values()))
            for kind, needed in by_kind.items():
                if seen:
                    print(needed.row(check, kind, seen), flush=True)


if __name__ == "__main__":
    main()
