"""The exit code of a run, its tables, and its last lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from rich import markup
from rich.table import Table

from adjointlab.checks.verdict import Figure, Status
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.search import SearchResult
from adjointlab.exit_codes import ExitCode
from adjointlab.session import CheckResult
from adjointlab.store.files import printable
from adjointlab.worlds.interposition import asked_outside_runs

__all__ = [
    "blind_spots",
    "count",
    "exit_code",
    "notes",
    "outcome",
    "proof_summary",
    "proof_table",
    "silence",
    "silent",
    "summary",
    "verdict_table",
]

_COLOURS = {Status.COHERENT: "green", Status.INCOHERENT: "bold red", Status.UNJUDGED: "bold yellow"}


def exit_code(statuses: Iterable[Status]) -> ExitCode:
    """The exit code of the worst status: a wrong result is worse than one that could not be judged."""
    seen = set(statuses)
    if Status.INCOHERENT in seen:
        return ExitCode.INCOHERENT
    return ExitCode.UNJUDGED if Status.UNJUDGED in seen else ExitCode.COHERENT


def outcome(results: Iterable[CheckResult]) -> ExitCode:
    """The exit code of results: known failures do not count; an unexpected pass does, as a failure of the list."""
    results = list(results)
    if any(entry.unexpectedly_passes for entry in results):
        return ExitCode.INCOHERENT
    return exit_code(entry.status for entry in results if not entry.is_expected)


def verdict_table(results: Sequence[CheckResult]) -> Table:
    """Subject by check: the verdict, the cases that it rests on, the most ranks that communicated, and how far it reaches."""
    table = _table("Subject", "Check", "Verdict", ">Cases", ">Ranks", ">Seed", "Reach")
    table.columns[-1].no_wrap = False
    previous = ""
    for entry in results:
        result = entry.result
        table.add_row(
            "" if result.subject == previous else _cell(result.subject),
            result.check,
            _verdict(entry),
            str(result.tried),
            str(result.counts.most_ranks) if result.counts else "",
            str(result.seed),
            _cell(_reach(result)),
        )
        previous = result.subject
    return table


def proof_table(results: Sequence[CheckResult], bounds: Sequence[Mapping[str, int]]) -> Table:
    """Subject by bound: the result of an exhaustive run."""
    table = _table("Subject", "Bound", "Verdict", ">Cases", ">Matrix entries", ">Seconds")
    table.columns[1].no_wrap = False
    for entry, bound in zip(results, bounds, strict=True):
        result = entry.result
        status = "proved" if result.status is Status.COHERENT else result.status.value
        table.add_row(
            _cell(result.subject),
            ", ".join(f"{name} {value}" for name, value in bound.items()),
            f"[{_COLOURS[result.status]}]{status}[/]",
            f"{result.tried:,}",
            f"{result.figures.get(Figure.ENTRIES, 0):,}",
            f"{result.seconds:.1f}",
        )
    return table


def summary(results: Sequence[CheckResult], asked: int, seconds: float | None = None) -> str:
    """One line: how many of the checks `asked` for have a verdict, the number of each kind, and of cases judged.

    `seconds` are those that it took, where that is not the sum over the checks.
    """
    judged = sum(entry.status is not Status.UNJUDGED for entry in results)
    counts = [
        (status.value, sum(entry.status is status and not entry.known for entry in results))
        for status in Status
    ]
    counts.append(("failed as expected", sum(entry.is_expected for entry in results)))
    counts.append(("passed unexpectedly", sum(entry.unexpectedly_passes for entry in results)))
    verdicts = ", ".join(f"{number} {name}" for name, number in counts if number)
    cases = sum(entry.result.tried for entry in results)
    if seconds is None:
        seconds = sum(entry.result.seconds for entry in results)
    return f"{judged} of {count(asked, 'check')} judged, {verdicts or 'nothing checked'}: {count(cases, 'case')} in {seconds:.1f} s"


def proof_summary(results: Sequence[CheckResult]) -> str:
    """The extent of what is proved, and the assumptions of the proof."""
    proved = [entry.result for entry in results if entry.status is Status.COHERENT]
    cases = sum(result.tried for result in proved)
    seconds = sum(entry.result.seconds for entry in results)
    failed = len(results) - len(proved)
    return (
        f"{cases:,} cases of {count(len(proved), 'subject')} proved in {seconds:.1f} s: forward has the matrix of the "
        "specification (where there is one), adjoint its transpose, given linearity, which was sampled in every case"
        + (f"; {count(failed, 'subject')} failed" if failed else "")
    )


def blind_spots(results: Sequence[CheckResult]) -> str:
    """A line for the subjects of which no check can see a fault that forward and adjoint share; empty if there are none."""
    subjects = {entry.found.subject.name: entry.found.subject for entry in results}
    blind = [name for name, one in subjects.items() if not one.has_specification and one.reference is None]
    if not blind:
        return ""
    return (
        f"{', '.join(blind)}: no reference and no specification, so a fault that forward and adjoint share stays "
        "unseen; give @subject(reference=...)"
    )


def notes(results: Sequence[CheckResult]) -> list[str]:
    """The lines that say what the results do not cover."""
    return list(filter(None, (blind_spots(results), silent(results))))


def silent(results: Sequence[CheckResult]) -> str:
    """A line for the subjects none of whose ranks communicated in any check; empty if there are none."""
    return silence(
        (entry.result.subject, entry.result.counts)
        for entry in results
        if entry.status is Status.COHERENT and entry.result.counts is not None
    )


def silence(coherent: Iterable[tuple[str, CaseCounts]]) -> str:
    """:func:`silent`, from the subject and the counts of each coherent check."""
    by_subject: dict[str, list[CaseCounts]] = {}
    for subject, counts in coherent:
        by_subject.setdefault(subject, []).append(counts)
    names = [
        name
        for name, counts in by_subject.items()
        if any(each.on_several_ranks for each in counts) and not any(each.communicating for each in counts)
    ]
    if not names:
        return ""
    lacking = [name for name in names if any(each.lacking_messages for each in by_subject[name])]
    needed = (
        f"; the spaces of {', '.join(lacking)} need messages: without them some results can only be constant"
        if lacking
        else ""
    )
    asked = (
        f": MPI.COMM_WORLD was asked for its size or rank outside of all cases, at {', '.join(map(printable, sites))}"
        if (sites := asked_outside_runs())
        else " (as code does that asks MPI.COMM_WORLD for its size when it is imported)"
    )
    return (
        f"{', '.join(names)}: no rank communicated with another in any case{needed}; if it should have, it talks past the "
        f"communicator that it is given, or takes itself for alone{asked}"
    )


def count(number: int, noun: str) -> str:
    """Return e.g. "1 rank" or "2 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cell(text: str) -> str:
    """`text` for a cell of a table: neither markup nor what a terminal would take for a command."""
    return markup.escape(printable(text))


def _table(*headings: str) -> Table:
    """An empty table; the columns whose heading begins with > are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(
            heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left", no_wrap=True
        )
    return table


def _verdict(entry: CheckResult) -> str:
    if entry.is_expected:
        return "[dim]expected failure[/]"
    if entry.unexpectedly_passes:
        return "[bold red]unexpected pass[/]"
    return f"[{_COLOURS[entry.status]}]{entry.status.value}[/]"


def _reach(result: SearchResult) -> str:
    """The bounds on what a coherent verdict may have missed; the headline of any other."""
    if result.status is not Status.COHERENT:
        return result.verdict.headline
    figures = result.figures
    notes = _counted(result.counts)
    if isinstance(miss := figures.get(Figure.MISS_PROBABILITY), float):
        exact = f"exact: misses a wrong case with probability below {_rounded_up(miss)}"
        if result.exact < result.tried:
            exact = f"{result.exact} of {result.tried} cases {exact}; the rest within rounding"
        notes.append(exact)
    elif result.check == "adjoint":
        notes.append("within rounding only")
    if isinstance(error := figures.get(Figure.FLOATING_ERROR), float):
        notes.append(f"floating error {error:.1g}")
    if proved := figures.get(Figure.PROVED):
        notes.append(
            "entries: " + ("all or a sample" if proved == "various" else str(proved).removesuffix(" entries"))
        )
    return "; ".join(notes)


def _counted(counts: CaseCounts | None) -> list[str]:
    """Notes on the cases themselves: that none had several ranks, or that some were rejected."""
    if counts is None:
        return []
    notes = []
    if not counts.on_several_ranks:
        notes.append("on one rank only")
    elif not counts.communicating:
        needed = ", though the spaces need messages" if counts.lacking_messages else ""
        notes.append(f"no rank communicated with another{needed}")
    if counts.rejected:
        notes.append(
            f"{sum(counts.rejected.values())} more could not be judged: {next(iter(counts.rejected))}"
        )
    return notes


def _rounded_up(probability: float) -> str:
    """The next power of ten; a bound must not be rounded down."""
    if probability <= 0:
        return "1e-300"
    return f"1e{math.ceil(math.log10(probability) + 1e-9)}"
