"""The lab's power: which check finds each planted bug and each documented fault, after how many cases, shrunk to what.

    python benchmarks/detection.py --seed 1              prints Markdown tables
    python benchmarks/detection.py --write docs/power.md puts them between the marks in that page

Every check of the lab that applies is run on every subject, with the default budget of 100 cases. The tables name all checks
that see the fault, and tell cases and smallest case for the one that saw it first. Exits with 1 if one is found by none.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from adjointlab.harness.engine import Budget, Report, investigate  # noqa: E402
from adjointlab.harness.examine import checks_of  # noqa: E402
from adjointlab.harness.subject import Subject  # noqa: E402
from adjointlab.worlds.launch import open_world  # noqa: E402
from adjointlab.worlds.world import World  # noqa: E402
from tests.power.faults.table import FAULTS  # noqa: E402
from tests.power.planted import PLANTED  # noqa: E402

HEADER = (
    "| {first} | what it is | found by | cases | shrunk to | also seen by |",
    "|---|---|---|---|---|---|",
)


def found(world: World, subject: Subject, seed: int) -> list[Report]:
    """The reports of the checks that see a fault, the one with the fewest cases first."""
    reports = [
        investigate(world, subject, check, Budget(seed=seed, shrinking=20.0)) for check in checks_of(subject)
    ]
    return sorted(
        (report for report in reports if not report.verdict.is_coherent), key=lambda report: report.tried
    )


def row(name: str, what: str, reports: Sequence[Report]) -> str:
    if not reports:
        return f"| {name} | {what} | **none** | | | |"
    first, *others = reports
    also = ", ".join(report.check for report in others) or "-"
    return f"| {name} | {what} | {first.check}: {first.verdict.kind} | {first.tried} | {smallest(first)} | {also} |"


def smallest(report: Report) -> str:
    """Ranks and global elements of the smallest failing case."""
    if report.case is None:
        return "-"
    ranks = f"{report.case.ranks} rank{'s' * (report.case.ranks > 1)}"
    if report.spaces is None:  # the ranks did not come back with them
        return f"{ranks}, tensor {list(report.case.parameters.get('shape', ()))}"
    spaces = (report.spaces.domain, report.spaces.codomain)
    elements = max(sum(math.prod(tensor.layout.shape) for tensor in space.tensors) for space in spaces)
    return f"{ranks}, {elements} element{'s' * (elements != 1)}"


def tables(world: World, seed: int) -> tuple[list[str], int]:
    """The lines of both tables, and how many faults were missed."""
    started = time.monotonic()
    lines, missed, cases = [], 0, []
    for title, first, entries in (
        ("Planted operator bugs", "bug", [("", planted.bug, planted.subject) for planted in PLANTED]),
        ("Documented faults", "fault", [(fault.number, fault.what, fault.subject) for fault in FAULTS]),
    ):
        lines += [f"### {title}", "", HEADER[0].format(first=first), HEADER[1]]
        for number, (name, what, subject) in enumerate(entries, start=1):
            reports = found(world, subject, seed)
            missed += not reports
            cases += [report.tried for report in reports[:1]]
            lines.append(row(name or str(number), what, reports))
        lines.append("")
    lines.append(
        f"Seed {seed}, {world.name} world of {world.ranks} ranks: {len(cases)} of {len(cases) + missed} found, after "
        f"{sorted(cases)[len(cases) // 2]} cases in the median and {max(cases)} at most; all checks of all subjects "
        f"together took {time.monotonic() - started:.0f} s."
    )
    return lines, missed


def write(page: Path, lines: Sequence[str]) -> None:
    """Put the lines between the marks of the page."""
    begin, end = "<!-- detection: begin -->", "<!-- detection: end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text(before + "\n".join([begin, *lines, end]) + after, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="a page to put the tables into")
    options = parser.parse_args(arguments)
    world = open_world(ranks=8)
    lines, missed = tables(world, options.seed)
    if world.is_leader:
        print("\n".join(lines))
        if options.write:
            write(options.write, lines)
    world.close()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
