"""The exit code of a run, its notes, and its last line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from adjointlab.check_result import CheckResult, ReportedAs
from adjointlab.checks.verdict import Figure, Status
from adjointlab.engine.counts import CaseCounts, is_silent
from adjointlab.engine.folded_warnings import folded
from adjointlab.exit_codes import ExitCode
from adjointlab.quantities import counted
from adjointlab.spelling import this_folder
from adjointlab.store.files import printable
from adjointlab.worlds.comm_world import asked_outside_runs
from adjointlab.worlds.run import FindingKind

__all__ = [
    "Tally",
    "blind_spots",
    "exit_code",
    "notes",
    "outcome",
    "proof_summary",
    "silence",
    "silent",
    "summary",
    "told_apart",
    "zeros",
]


_FAULTS: Final = frozenset(map(str, FindingKind))
"""Kinds of verdicts on faults that a world itself finds."""


def exit_code(statuses: Iterable[Status]) -> ExitCode:
    """Return the exit code of the worst status: an incoherent result is worse than one that could not be judged."""
    seen = set(statuses)
    if Status.INCOHERENT in seen:
        return ExitCode.INCOHERENT
    return ExitCode.UNJUDGED if Status.UNJUDGED in seen else ExitCode.COHERENT


def outcome(results: Iterable[CheckResult]) -> ExitCode:
    """Return the exit code of results. Known failures do not count; an unexpected pass counts as a failure.

    A wrong declaration is a usage error, unless another subject is incoherent.
    """
    results = list(results)
    if any(entry.reported_as is ReportedAs.UNEXPECTED for entry in results):
        return ExitCode.INCOHERENT
    code = exit_code(entry.status for entry in results if entry.reported_as is not ReportedAs.EXPECTED)
    if code is not ExitCode.INCOHERENT and any(entry.is_misdeclared for entry in results):
        return ExitCode.USAGE
    return code


@dataclass(frozen=True)
class Tally:
    """Counts of results: those with a verdict, those of each kind, the cases judged, and the seconds.

    After a deadlock, or another fault that a world itself finds, the result cannot be judged. The line therefore names these faults.
    """

    judged: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    cases: int = 0
    seconds: float = 0.0
    # Faults that prevented a verdict, such as a deadlock.
    faults: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(results: Sequence[CheckResult]) -> Tally:
        """Count results."""
        counts = Counter(entry.reported_as for entry in results)
        return Tally(
            sum(entry.status is not Status.UNJUDGED for entry in results),
            {kind.value: counts[kind] for kind in ReportedAs},
            sum(entry.result.tried for entry in results),
            sum(entry.result.seconds for entry in results),
            # A plain dictionary, because workers of pytest-xdist can send it.
            dict(Counter(each for entry in results if (each := _fault(entry)))),
        )

    def __add__(self, other: Tally) -> Tally:
        kinds = {name: self.kinds.get(name, 0) + number for name, number in other.kinds.items()}
        return Tally(
            self.judged + other.judged,
            {**self.kinds, **kinds},
            self.cases + other.cases,
            self.seconds + other.seconds,
            dict(Counter(self.faults) + Counter(other.faults)),
        )

    def line(self, asked: int) -> str:
        """Return the counts as one line; `asked` is the number of requested checks."""
        named = {Status.UNJUDGED.value: self._named_faults()}
        verdicts = ", ".join(
            f"{number} {name}{named.get(name, '')}" for name, number in self.kinds.items() if number
        )
        done = f"{self.judged} of {counted(asked, 'check')} judged, {verdicts or 'nothing checked'}"
        return f"{done}: {counted(self.cases, 'case')} in {self.seconds:.1f} s"

    def _named_faults(self) -> str:
        """Return the faults in brackets, with their numbers unless all checks without a verdict have the same fault."""
        if not self.faults:
            return ""
        (first, number), *others = self.faults.items()
        if not others and number == self.kinds.get(Status.UNJUDGED.value):
            return f" ({first})"
        return f" ({', '.join(f'{fault} {times}' for fault, times in self.faults.items())})"


def _fault(entry: CheckResult) -> str:
    """Return the fault because of which an unexpected result could not be judged, if a world has found it; else empty."""
    kind = entry.result.verdict.kind
    is_named = entry.reported_as is ReportedAs.UNJUDGED and kind in _FAULTS
    return str(kind) if is_named else ""


def summary(results: Sequence[CheckResult], asked: int, seconds: float | None = None) -> str:
    """Return a line with the number of the `asked` checks that have a verdict, of each kind, and of the cases judged.

    `seconds` is the duration, if it is not the sum over the checks.
    """
    tally = Tally.of(results)
    return (tally if seconds is None else replace(tally, seconds=seconds)).line(asked)


def proof_summary(results: Sequence[CheckResult]) -> str:
    """Return a line with the extent of the proof and its assumptions."""
    proved = [entry.result for entry in results if entry.status is Status.COHERENT]
    cases = sum(result.tried for result in proved)
    seconds = sum(entry.result.seconds for entry in results)
    failed = len(results) - len(proved)
    failures = f"; {counted(failed, 'subject')} failed" if failed else ""
    if not proved:
        return f"nothing proved in {seconds:.1f} s{failures}"
    return (
        f"{counted(cases, 'case', grouped=True)} of {counted(len(proved), 'subject')} proved in {seconds:.1f} s: forward has the matrix of the "
        f"specification (where there is one), adjoint its transpose, given linearity, which was sampled in every case{failures}"
    )


def blind_spots(results: Sequence[CheckResult]) -> str:
    """Return a line on the subjects without a check that would find a fault that forward and adjoint share; empty if there are none."""
    judged = [entry for entry in results if not entry.is_misdeclared]
    subjects = dict(zip(_names(judged), (entry.found.subject for entry in judged), strict=True))
    blind = [name for name, one in subjects.items() if not one.has_specification and one.reference is None]
    if not blind:
        return ""
    return (
        f"{', '.join(blind)}: no reference and no specification, so a fault that forward and adjoint share would "
        "go unseen; give the sequential function as reference=... to the decorator"
    )


def zeros(results: Sequence[CheckResult]) -> str:
    """Return a line on the subjects whose results were all zero and not compared with a reference; empty if there are none."""
    judged = [entry for entry in results if not entry.is_misdeclared]
    names = [
        name
        for name, entry in zip(_names(judged), judged, strict=True)
        if entry.status is Status.COHERENT
        and not entry.result.figures.get(Figure.NONZERO, 1)
        and entry.found.subject.reference is None
        and not entry.found.subject.has_specification
    ]
    if not names:
        return ""
    return (
        f"{', '.join(dict.fromkeys(names))}: every result was zero, in both directions; zeros are adjoint to zeros, whatever was meant: "
        "code that sends a buffer other than the one it filled gives such results"
    )


def notes(results: Sequence[CheckResult]) -> list[str]:
    """Return notes on what the results do not cover, and the warnings that were issued, each once."""
    return [*filter(None, (blind_spots(results), zeros(results), silent(results))), *warned(results)]


def warned(results: Sequence[CheckResult]) -> list[str]:
    """Return a line for each location that has issued warnings in any check: the first text in full, and the number."""
    given = folded(warning for entry in results for warning in entry.result.warnings)
    folder = this_folder()
    return [str(each).removeprefix(folder) for each in given]


def silent(results: Sequence[CheckResult]) -> str:
    """Return a line on the coherent subjects whose ranks did not communicate in any check; empty if there are none.

    Built-in subjects are left out, because it is known which of them do not communicate.
    """
    failing = {entry.found.subject.location for entry in results if entry.status is not Status.COHERENT}
    coherent = [
        entry
        for entry in results
        if entry.found.subject.location not in failing and not entry.found.is_built_in
    ]
    counts = (entry.result.counts for entry in coherent)
    return silence(
        (name, each) for name, each in zip(_names(coherent), counts, strict=True) if each is not None
    )


def _names(results: Sequence[CheckResult]) -> list[str]:
    return told_apart([(entry.subject, entry.found.reference) for entry in results])


def told_apart(subjects: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names of subjects, given with their references, which are appended if several subjects have the same name."""
    having = Counter(name for name, _ in set(subjects))
    return [f"{name} ({reference})" if having[name] > 1 else name for name, reference in subjects]


def silence(coherent: Iterable[tuple[str, CaseCounts]]) -> str:
    """Return the line of :func:`silent`, given the subject and the counts of each coherent check."""
    by_subject: dict[str, list[CaseCounts]] = {}
    for subject, counts in coherent:
        by_subject.setdefault(subject, []).append(counts)
    names = [name for name, counts in by_subject.items() if is_silent(counts)]
    if not names:
        return ""
    needed, asked = "", " (as code does that asks MPI.COMM_WORLD for its size when it is imported)"
    if lacking := [name for name in names if any(each.lacking_messages for each in by_subject[name])]:
        needed = f"; the spaces of {', '.join(lacking)} need messages: without them some results can only be constant"
    if sites := asked_outside_runs():
        asked = f": MPI.COMM_WORLD was asked for its size or rank outside of all cases, at {', '.join(map(printable, sites))}"
    return (
        f"{', '.join(names)}: no rank communicated with another in any case{needed}; if it should have, it may "
        f"bypass the communicator that it is given, or take itself for the only rank{asked}"
    )
