"""Scores the hints on the kind of fault for planted bugs, recreated faults and right operators.

    python benchmarks/hints.py --seed 1                  prints a Markdown table, and what is told of each fault
    python benchmarks/hints.py --part layers             only those of one part
    python benchmarks/hints.py --write docs/power.md     puts the table between the marks in that page

A hint is *wrong* if `tests/planted/fault_kinds.py` does not list its kind for the fault, or if it is told of a right subject. A fault is
*silent* if results differ and no hint is told; a crash, a hang, or a tensor that is written into says itself what is wrong, and needs none.
Exits with 1 if 2 % of the hints or more are wrong, or 30 % of the faults or more are silent.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from detection import write  # noqa: E402
from timing import is_smoke, least  # noqa: E402

from adjointlab.checks.check import checks_of  # noqa: E402
from adjointlab.checks.hints import FaultKind  # noqa: E402
from adjointlab.checks.told import hints_told  # noqa: E402
from adjointlab.checks.verdict import Status, Verdict  # noqa: E402
from adjointlab.engine.search import investigate  # noqa: E402
from adjointlab.engine.search_result import Budget  # noqa: E402
from adjointlab.engine.subject import Subject  # noqa: E402
from adjointlab.worlds.launch import open_world  # noqa: E402
from adjointlab.worlds.world import World  # noqa: E402  # noqa: E402
from tests.planted import layers, parallel_layers, reductions  # noqa: E402
from tests.planted.bug import PlantedBug  # noqa: E402
from tests.planted.conventions import CONVENTIONS  # noqa: E402
from tests.planted.fault_kinds import MAY_BE_NAMED  # noqa: E402
from tests.planted.halos import PLANTED as PLANTED_HALOS  # noqa: E402
from tests.planted.halos import RIGHT as RIGHT_HALOS  # noqa: E402
from tests.planted.recreated import table  # noqa: E402

MOST_WRONG, MOST_SILENT = 0.02, 0.3

_CASES_OF_RIGHT = 20

_SAYS_ITSELF = ("writes into", "declared space", "different spaces", "returned nan", "returned inf")
"""Headlines of incoherent verdicts that are no comparison of results."""

FAULTS: dict[str, tuple[PlantedBug, ...]] = {
    "operators": reductions.PLANTED,
    "halos": PLANTED_HALOS,
    "recreated": table.FAULTS,
    "layers": (*layers.PLANTED, *parallel_layers.PLANTED),
}

RIGHT: dict[str, tuple[Subject, ...]] = {
    "operators": reductions.RIGHT,
    "halos": RIGHT_HALOS,
    "recreated": (*table.RIGHT, *(subject for _, subject in CONVENTIONS)),
    "layers": layers.RIGHT,
}


@dataclass
class Score:
    """Counts of one part."""

    faults: int = 0
    in_need: int = 0  # faults that do not say themselves what is wrong
    silent: int = 0
    hints: int = 0
    wrong: int = 0
    right_subjects: int = 0

    def plus(self, other: Score) -> Score:
        """The sum of two parts."""
        return Score(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def row(self, name: str) -> str:
        """The line of the table."""
        silent = f"{self.silent} ({_percent(self.silent, self.in_need)})"
        wrong = f"{self.wrong} ({_percent(self.wrong, self.hints)})"
        return f"| {name} | {self.faults} | {self.in_need} | {silent} | {self.hints} | {wrong} | {self.right_subjects} |"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def needs_hint(verdict: Verdict) -> bool:
    """Return True for a verdict on results that differ."""
    return verdict.status is Status.INCOHERENT and not any(text in verdict.headline for text in _SAYS_ITSELF)


def scored(bug: str, verdict: Verdict) -> Score:
    """The score of one planted bug."""
    told = {hint.kind for hint in hints_told(verdict)}
    wrong = told - MAY_BE_NAMED[bug]
    in_need = needs_hint(verdict)
    return Score(1, int(in_need), int(in_need and not told), len(told), len(wrong))


def scored_right(world: World, subject: Subject, seed: int) -> Score:
    """The score of a right subject, under all checks: each hint is wrong."""
    told: list[FaultKind] = []
    for check in checks_of(subject):
        verdict = investigate(world, subject, check, Budget(_CASES_OF_RIGHT, seed=seed)).verdict
        told += [hint.kind for hint in hints_told(verdict)]
    return Score(hints=len(told), wrong=len(told), right_subjects=1)


def part(world: World, name: str, seed: int, say: Callable[[str], None]) -> Score:
    """The score of one part; `say` is told each fault."""
    score = Score()
    for planted in least(FAULTS[name]):
        budget = Budget(seed=seed, shrinking=0.1 if is_smoke() else 2.0)
        verdict = investigate(world, planted.subject, planted.check, budget).verdict
        one = scored(planted.bug, verdict)
        kinds = ", ".join(hint.kind.value for hint in hints_told(verdict))
        state = "WRONG" if one.wrong else "silent" if one.silent else "" if kinds else "needs none"
        say(f"{planted.bug}: {kinds or '-'} {f'[{state}]' if state else ''}")
        score = score.plus(one)
    for subject in least(RIGHT[name]):
        score = score.plus(scored_right(world, subject, seed))
    return score


def table_lines(scores: dict[str, Score], seed: int) -> Iterator[str]:
    """The table, with the sum of its lines last."""
    yield "| | faults | results differ | silent | hints | wrong | right subjects |"
    yield "|---|---|---|---|---|---|---|"
    total = Score()
    for name, score in scores.items():
        yield score.row(name)
        total = total.plus(score)
    yield total.row("all")
    yield ""
    yield f"Seed {seed}, simulated world of 8 ranks."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=FAULTS, help="only this part")
    parser.add_argument("--write", type=Path, help="a page to put the table into")
    options = parser.parse_args(arguments)
    world = open_world(ranks=8)
    names = [options.part] if options.part else list(FAULTS)
    scores = {name: part(world, name, options.seed, lambda line: print(line, flush=True)) for name in names}
    world.close()
    lines = list(table_lines(scores, options.seed))
    print("\n".join(lines))
    if options.write:
        write(options.write, "hints", lines)
    total = Score()
    for score in scores.values():
        total = total.plus(score)
    is_good = total.wrong <= MOST_WRONG * max(total.hints, 1) and total.silent <= MOST_SILENT * max(
        total.in_need, 1
    )
    return 0 if is_good or is_smoke() else 1


if __name__ == "__main__":
    sys.exit(main())
