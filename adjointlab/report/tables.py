"""The tables of results: a row for each check as soon as it has a verdict, and the table of an exhaustive run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich import markup
from rich.cells import cell_len
from rich.table import Table

from adjointlab.check_result import CheckResult, ReportedAs
from adjointlab.checks.check import checks_of
from adjointlab.checks.verdict import VARIOUS, Figure, Status
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.discovery import Found
from adjointlab.engine.search_result import SearchResult
from adjointlab.quantities import counted
from adjointlab.spelling import from_here
from adjointlab.store.files import printable

__all__ = ["VerdictRows", "proof_table", "subject_table"]

_TELLING: Final = 2.0**-9
"""Smallest relative difference that a row mentions when it was counted as rounding, as of bfloat16, or of a sum of many terms."""

_DISPENSABLE: Final = (6, 5, 0, 4)
"""Positions of the columns (seed, ranks, number, cases) that are dropped on a narrow terminal, in this order."""

_LEAST_REACH: Final = 24
"""Least width of the column "Reach", for which other columns are dropped."""

_GAP: Final = 2
"""Blanks between columns."""

_COLOURS: Final = {Status.COHERENT: "green", Status.INCOHERENT: "bold red", Status.UNJUDGED: "bold yellow"}


@dataclass(frozen=True)
class VerdictRows:
    """Rows of one table that are printed one by one, in columns wide enough for all names in the plan.

    A row has the number of the check, subject and check, the verdict, the number of cases, the largest number of ranks that
    communicated, the seed of the draws, and the reach of the verdict: the bounds on what it may have missed.
    """

    asked: int
    widths: tuple[int, ...]
    left_out: frozenset[int] = frozenset()  # positions of columns

    @classmethod
    def of(cls, plan: Sequence[tuple[str, str]], cases: int, columns: int | None = None) -> VerdictRows:
        """Return the rows of a plan, which has pairs of a subject and a check, with so many `cases` each.

        On a terminal with `columns`, the least important columns are dropped so that the reach is not wrapped into many lines.
        """
        subject = max((len(printable(name)) for name, _ in plan), default=0)
        check = max((len(name) for _, name in plan), default=0)
        number = 2 * len(str(len(plan))) + 1
        verdict = max(map(len, (status.value for status in Status)))
        widths = (number, max(subject, 7), max(check, 5), verdict, max(len(str(cases)), 5), 5, 10)
        left_out: list[int] = []
        if columns is not None:
            taken = sum(widths) + _GAP * len(widths)
            for position in _DISPENSABLE:
                if taken + _LEAST_REACH > columns:
                    left_out.append(position)
                    taken -= widths[position] + _GAP
        return cls(len(plan), widths, frozenset(left_out))

    def heading(self) -> Table:
        """Return the row of headings."""
        headings = ("#", "Subject", "Check", "Verdict", "Cases", "Ranks", "Seed", "Reach")
        return self._row(*(f"[bold]{heading}[/]" for heading in headings))

    def row(self, number: int, entry: CheckResult, like: CheckResult | None = None) -> Table:
        """Return the row of check `number`, counted from 1; `like` is an earlier result with the same failure."""
        result = entry.result
        return self._row(
            f"[dim]{number}/{self.asked}[/]",
            _cell(entry.subject),
            result.check,
            _verdict(entry),
            str(result.tried),
            _ranks(result),
            "" if entry.seed is None else str(entry.seed),
            _cell(_reach(entry, like)),
        )

    def _row(self, *cells: str) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        for position, width in enumerate(self.widths):
            if position not in self.left_out:
                table.add_column(
                    width=width, no_wrap=True, justify="right" if position in (0, 4, 5, 6) else "left"
                )
        table.add_column()
        table.add_row(*(cell for position, cell in enumerate(cells) if position not in self.left_out))
        return table


def subject_table(entries: Sequence[Found]) -> Table:
    """Return a table of subjects, by their names in reports and lists of known failures, with their references and checks."""
    table = _table("Subject", "Reference", "Checks")
    table.columns[2].no_wrap = False
    rows = [
        (_cell(found.subject.label), _cell(found.reference), ", ".join(checks_of(found.subject)))
        for found in entries
    ]
    for column in (0, 1):
        table.columns[column].min_width = max((cell_len(row[column]) for row in rows), default=0)
    for row in rows:
        table.add_row(*row)
    return table


def proof_table(results: Sequence[CheckResult], bounds: Sequence[Mapping[str, int]]) -> Table:
    """Return the table of an exhaustive run: a row for each subject and its bound."""
    table = _table("Subject", "Bound", "Verdict", ">Cases", ">Matrix entries", ">Seconds")
    table.columns[1].no_wrap = False
    for entry, bound in zip(results, bounds, strict=True):
        result = entry.result
        status = "proved" if result.status is Status.COHERENT else result.status.value
        table.add_row(
            _cell(entry.subject),
            ", ".join(f"{name} {value}" for name, value in bound.items()),
            f"[{_COLOURS[result.status]}]{status}[/]",
            f"{result.tried:,}",
            f"{result.figures.get(Figure.ENTRIES, 0):,}",
            f"{result.seconds:.1f}",
        )
    return table


def _cell(text: str) -> str:
    """Return `text` for a cell of a table, with markup and control characters escaped."""
    return markup.escape(printable(text))


def _table(*headings: str) -> Table:
    """Return an empty table; columns whose heading begins with > are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(
            heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left", no_wrap=True
        )
    return table


def _verdict(entry: CheckResult) -> str:
    if entry.reported_as is ReportedAs.EXPECTED:
        return "[dim]expected failure[/]"
    if entry.reported_as is ReportedAs.UNEXPECTED:
        return "[bold red]unexpected pass[/]"
    return f"[{_COLOURS[entry.status]}]{entry.status.value}[/]"


def _reach(entry: CheckResult, like: CheckResult | None) -> str:
    """Describe the bounds on what a coherent verdict may have missed; for any other verdict, return the headline."""
    result = entry.result
    if result.status is not Status.COHERENT:
        return _fault(entry, like)
    figures = result.figures
    notes = _counted(result.counts)
    if not figures.get(Figure.NONZERO, 1):
        notes.append("every result was zero, in both directions")
    elif isinstance(miss := figures.get(Figure.MISS_PROBABILITY), float):
        exact = f"exact: misses a wrong case with probability below {_rounded_up(miss)}"
        if result.exact < result.tried:
            exact = f"{result.exact} of {result.tried} cases {exact}; the rest within rounding"
        notes.append(exact)
    elif result.check == "adjoint":
        notes.append("within rounding only")
    if isinstance(error := figures.get(Figure.FLOATING_ERROR), float):
        notes.append(f"floating error {error:.1g}")
    if isinstance(taken := figures.get(Figure.ROUNDING), float) and taken > _TELLING:
        notes.append(
            f"differences up to {taken:.1%} counted as rounding, as declared or as measured on the sequential layer"
        )
    if figures.get(Figure.REACHED) == 1:
        name = figures.get(Figure.LEAST_REACHED, VARIOUS)
        parameter = "a parameter that" if name == VARIOUS else f"{name}, which"
        notes.append(
            f"gradients reach only one part of {parameter} is cut, in every case: "
            "perhaps indices or masks leave out the other ranks"
        )
    if proved := figures.get(Figure.PROVED):
        notes.append(
            "entries: " + ("all or a sample" if proved == VARIOUS else str(proved).removesuffix(" entries"))
        )
    return "; ".join(notes)


def _fault(entry: CheckResult, like: CheckResult | None) -> str:
    """Return the headline of a failure. If an earlier check has found it too, add that check and the file of this one's case."""
    headline = entry.result.verdict.headline
    if like is None:
        return headline
    stored = "" if entry.written is None else f", {from_here(entry.written.json)}"
    return f"{headline}, as in {like.result.check}{stored}"


def _counted(counts: CaseCounts | None) -> list[str]:
    """Return notes on the cases themselves, such as that none had several ranks, or that some were rejected."""
    if counts is None:
        return []
    notes = ["time was up"] if counts.is_cut_short else []
    if not counts.on_several_ranks:
        notes.append("on one rank only")
    elif not counts.communicating:
        needed = ", though the spaces need messages" if counts.lacking_messages else ""
        notes.append(f"no rank communicated with another{needed}")
    if counts.rejected:
        rejected = sum(counts.rejected.values())
        notes.append(f"{counted(rejected, 'case')} beside these not judged: {next(iter(counts.rejected))}")
    return notes


def _ranks(result: SearchResult) -> str:
    """Return the largest number of ranks that communicated in a judged case, or the ranks of the failing case, which is not counted there."""
    of_judged = [] if result.counts is None else [result.counts.most_ranks]
    of_failing = [] if result.case is None else [result.case.ranks]
    return str(max([*of_judged, *of_failing], default=""))


def _rounded_up(probability: float) -> str:
    """Round up to a power of ten: a bound must not be rounded down."""
    if probability <= 0:
        return "1e-300"
    return f"1e{math.ceil(math.log10(probability) + 1e-9)}"
