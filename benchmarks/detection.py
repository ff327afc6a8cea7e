"""Measures the lab's power: which check finds each planted bug and documented fault, after how many cases, and the smallest case.

    python benchmarks/detection.py --seed 1              prints Markdown tables
    python benchmarks/detection.py --part halos          only those of one part
    python benchmarks/detection.py --write docs/power.md puts them between the marks in that page

Every check of the lab that applies is run on every subject, with the default budget, and for the tables of checks with twice that. The tables name all checks
that see the fault, and tell cases and smallest case for the one that saw it first. For halo exchanges and repartitions the
column "dot test" tells whether the customary one (even layouts, one draw) sees the bug too. Exits with 1 if one is found by
none.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from timing import is_smoke, least  # noqa: E402

from adjointlab.checks.check import all_checks, check_named, checks_of  # noqa: E402
from adjointlab.engine.search import investigate  # noqa: E402
from adjointlab.engine.search_result import Budget, SearchResult  # noqa: E402
from adjointlab.engine.subject import Subject  # noqa: E402
from adjointlab.worlds.launch import open_world  # noqa: E402
from adjointlab.worlds.world import World  # noqa: E402
from tests.planted.halos import PLANTED as PLANTED_HALOS  # noqa: E402
from tests.planted.halos import customary_dot_test  # noqa: E402
from tests.planted.layers import PLANTED as PLANTED_LAYERS  # noqa: E402
from tests.planted.recreated.table import FAULTS  # noqa: E402
from tests.planted.reductions import PLANTED  # noqa: E402

CASES, MOST_SHRINKING = (10, 0.1) if is_smoke() else (Budget().cases, math.inf)

HEADER = (
    "| {first} | what it is | found by | cases | shrunk to | also seen by |",
    "|---|---|---|---|---|---|",
)
HALO_HEADER = (
    "| bug | what it is | dot test | found by | cases | shrunk to | also seen by |",
    "|---|---|---|---|---|---|---|",
)


class HasSubject(Protocol):
    """A planted bug or a recreated fault."""

    @property
    def subject(self) -> Subject: ...


def found(
    world: World, subject: Subject, seed: int, shrinking: float = 20.0, cases: int = CASES
) -> list[SearchResult]:
    """The reports of the checks that find a fault, the one after the fewest cases first."""
    reports = [
        investigate(world, subject, check, Budget(cases, seed=seed, shrinking=min(shrinking, MOST_SHRINKING)))
        for check in checks_of(subject)
    ]
    return sorted(
        (report for report in reports if not report.verdict.is_coherent), key=lambda report: report.tried
    )


class Tally:
    """Counts for a table: the number of missed faults, and the cases until each other fault was found."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed, self.started = world, seed, time.monotonic()
        self.cases: list[int] = []
        self.missed = 0

    def found(self, subject: Subject) -> list[SearchResult]:
        """The reports of :func:`found`, counting them."""
        reports = found(self.world, subject, self.seed)
        self.missed += not reports
        self.cases += [report.tried for report in reports[:1]]
        return reports

    def summary(self) -> str:
        cases, world, seconds = sorted(self.cases), self.world, time.monotonic() - self.started
        return (
            f"Seed {self.seed}, {world.name} world of {world.ranks} ranks: {len(cases)} of {len(cases) + self.missed} found, after "
            f"{cases[len(cases) // 2]} cases in the median and {cases[-1]} at most; all checks of all subjects "
            f"together took {seconds:.0f} s."
        )


def furthest_shrunk(reports: Sequence[SearchResult]) -> list[SearchResult]:
    """Sort the reports so that, among those after equally many cases, the one with the smallest case comes first."""
    return sorted(reports, key=lambda report: (report.tried, report.case.ranks if report.case else 0))


def row(name: str, what: str, reports: Sequence[SearchResult]) -> str:
    if not reports:
        return f"| {name} | {what} | **none** | | | |"
    first, *others = reports
    also = ", ".join(report.check for report in others) or "-"
    kind = first.verdict.headline if first.verdict.kind == first.check else first.verdict.kind
    return f"| {name} | {what} | {first.check}: {kind} | {first.tried} | {smallest(first)} | {also} |"


def smallest(report: SearchResult) -> str:
    """Ranks and global elements of the smallest failing case."""
    if report.case is None:
        return "-"
    ranks = f"{report.case.ranks} rank{'s' * (report.case.ranks > 1)}"
    if report.spaces is None:  # the ranks did not come back with them
        parameters = report.case.parameters
        return f"{ranks}, tensor {list(parameters.get('shape', parameters.get('input_shape', ())))}"
    spaces = (report.spaces.domain, report.spaces.codomain)
    elements = max(sum(math.prod(tensor.layout.shape) for tensor in space.tensors) for space in spaces)
    return f"{ranks}, {elements} element{'s' * (elements != 1)}"


def tables(world: World, seed: int) -> tuple[list[str], int]:
    """Return the lines of both tables, and the number of missed faults."""
    tally, lines = Tally(world, seed), []
    for title, first, entries in (
        ("Planted operator bugs", "bug", [("", planted.bug, planted.subject) for planted in least(PLANTED)]),
        (
            "Documented faults",
            "fault",
            [(f"[{fault.source}]", fault.bug, fault.subject) for fault in least(FAULTS)],
        ),
    ):
        lines += [f"### {title}", "", HEADER[0].format(first=first), HEADER[1]]
        for number, (name, what, subject) in enumerate(entries, start=1):
            lines.append(row(name or str(number), what, tally.found(subject)))
        lines.append("")
    lines.append(tally.summary())
    return lines, tally.missed


def halo_table(world: World, seed: int) -> tuple[list[str], int]:
    """Return the lines of the table of halo exchanges and repartitions, and the number of missed bugs."""
    tally, lines, unseen, alike = Tally(world, seed), list(HALO_HEADER), 0, 0
    for number, planted in enumerate(least(PLANTED_HALOS), start=1):
        reports = furthest_shrunk(tally.found(planted.subject))
        seen = customary_dot_test(planted.subject, world)
        unseen += not seen
        alike += {report.check for report in reports} == {"sequential"}
        lines.append(row(str(number), f"{planted.bug} | {'sees it' if seen else '**blind**'}", reports))
    lines += [
        "",
        f"{unseen} of the {len(PLANTED_HALOS)} pass the customary dot test; {alike} are wrong in both directions alike, so that "
        f"no dot test sees them. {tally.summary()}",
    ]
    return lines, tally.missed


def layer_table(world: World, seed: int) -> tuple[list[str], int]:
    """Return the lines of the table of layers, and the number of missed bugs."""
    tally, lines = Tally(world, seed), [HEADER[0].format(first="bug"), HEADER[1]]
    for number, planted in enumerate(least(PLANTED_LAYERS), start=1):
        reports = furthest_shrunk(tally.found(planted.subject))
        lines.append(row(str(number), planted.bug, reports))
    lines += ["", tally.summary()]
    return lines, tally.missed


def check_table(world: World, seed: int) -> tuple[list[str], int]:
    """Return the lines of the table of checks, for all planted bugs."""
    return table_of_checks(world, seed, (*PLANTED, *FAULTS, *PLANTED_HALOS, *PLANTED_LAYERS))


def layer_check_table(world: World, seed: int) -> tuple[list[str], int]:
    """Return the lines of the table of checks, for bugs of layers alone."""
    return table_of_checks(world, seed, PLANTED_LAYERS)


def table_of_checks(world: World, seed: int, bugs: Sequence[HasSubject]) -> tuple[list[str], int]:
    """Return the lines of a table of checks, with the cases that each needs to find the planted bugs.

    The last tells how many bugs no check sees in its part of the cases, which is a figure and no failure: another seed may show them.
    """
    planted = [each.subject for each in bugs]
    tried: dict[str, list[int]] = {}
    alone: dict[str, list[int]] = {}
    drawn: dict[str, set[float]] = {}  # parts of the cases
    missed = 0
    for subject in least(planted):
        seen = found(world, subject, seed, shrinking=0.1, cases=2 * CASES)
        parts = {report.check: check_named(report.check).cases_of(CASES, subject) for report in seen}
        missed += not any(report.tried <= parts[report.check] for report in seen)
        for report in seen:
            drawn.setdefault(report.check, set()).add(parts[report.check] / CASES)
            tried.setdefault(report.check, []).append(report.tried)
            alone.setdefault(report.check, []).extend([report.tried] if len(seen) == 1 else [])
    lines = [
        "| check | part of the cases | sees | median | 90 % | most | sees alone | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for check in (name for name in all_checks() if name in tried):
        cases = tried[check]
        cases.sort()
        of_these = f"{cases[len(cases) // 2]} | {cases[9 * len(cases) // 10]} | {cases[-1]}"
        lines.append(
            f"| {check} | {', '.join(f'{part:g}' for part in sorted(drawn[check]))} | {len(cases)} | {of_these} | {len(alone[check])} | {max(alone[check], default='-')} |"
        )
    lines += [
        "",
        f"Seed {seed}, {len(planted)} bugs, {world.name} world of {world.ranks} ranks. {len(planted) - missed} of them are seen by some check "
        f"in its part of {CASES} cases.",
    ]
    return lines, 0


PARTS: dict[str, tuple[str, Callable[[World, int], tuple[list[str], int]]]] = {
    "planted": ("detection", tables),
    "halos": ("halo bugs", halo_table),
    "layers": ("layer bugs", layer_table),
    "checks": ("checks", check_table),
    "layer-checks": ("layer checks", layer_check_table),
}
"""The parts, with the mark in the page and what makes the lines."""


def write(page: Path, mark: str, lines: Sequence[str]) -> None:
    """Put the lines between the marks of the page."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text(before + "\n".join([begin, *lines, end]) + after, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--write", type=Path, help="a page to put the tables into")
    options = parser.parse_args(arguments)
    world = open_world(ranks=8)
    missed = 0
    for part in [options.part] if options.part else PARTS:
        mark, make = PARTS[part]
        lines, missed_here = make(world, options.seed)
        missed += missed_here
        if world.is_leader:
            print("\n".join(lines), flush=True)
            if options.write:
                write(options.write, mark, lines)
    world.close()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
