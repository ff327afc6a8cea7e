"""Count alarms of right layers with inputs of every kind of values: ``python benchmarks/values.py --cases 100``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from timing import least  # noqa: E402

from adjointlab.checks.check import check_named  # noqa: E402
from adjointlab.engine.search import investigate  # noqa: E402
from adjointlab.engine.search_result import Budget  # noqa: E402
from adjointlab.engine.subject import Subject  # noqa: E402
from adjointlab.layers.subjects import installed  # noqa: E402
from adjointlab.worlds.simulated.world import SimulatedWorld  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=least(100))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    alarms: Counter[str] = Counter()
    found = {id(each): each for each in vars(installed).values() if isinstance(each, Subject)}
    for subject in least(found).values():
        for check in ("sequential", "gradients"):
            assert check_named(check).varies_values
            budget = Budget(cases=options.cases, seed=options.seed, shrinking=5.0)
            report = investigate(SimulatedWorld(ranks=4), subject, check, budget)
            print(f"{subject.name:20} {check:10} {report.tried} cases", flush=True)
            if not report.verdict.is_coherent:
                alarms[subject.name] += 1
                print(f"{report.case}\n{report.verdict}", flush=True)
    print(f"{alarms.total()} alarms")


if __name__ == "__main__":
    main()
