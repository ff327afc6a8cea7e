"""Count alarms of `jacobian` on right functions with kinks, ties and zero rows: ``python benchmarks/smooth.py --cases 300``."""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from timing import least  # noqa: E402

from adjointlab.engine.search import investigate  # noqa: E402
from adjointlab.engine.search_result import Budget  # noqa: E402
from adjointlab.worlds.simulated.world import SimulatedWorld  # noqa: E402
from tests.checks.test_jacobian_at_kinks import RIGHT, rows  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=least(100))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    judged = alarms = 0
    for (name, (function, roundings, reach)), dtype, forward_mode, copies in product(
        least(RIGHT).items(), ("float32", "float64"), (True, False), (False, True)
    ):
        subject = rows(function, function, dtype, roundings, reach, forward_mode=forward_mode, copies=copies)
        budget = Budget(cases=options.cases, seed=options.seed)
        report = investigate(SimulatedWorld(ranks=3), subject, "jacobian", budget)
        judged += report.tried
        if not report.verdict.is_coherent:
            alarms += 1
            print(f"{name}, {dtype}, forward mode {forward_mode}, copies {copies}:\n{report.verdict}")
    print(f"{judged} cases, {alarms} alarms")


if __name__ == "__main__":
    main()
