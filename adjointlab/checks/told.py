"""The lines and the hints of a verdict as reports print them: a hint with the results that it compares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from adjointlab.checks.compared import OF_SPECIFICATION
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.verdict import Verdict
from adjointlab.worlds.traceback_text import without_own_frames

__all__ = ["hints_told", "lines_told"]


def lines_told(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the lines, with tracebacks reduced to the frames of user code."""
    for label, text in verdict.lines:
        yield label, without_own_frames(text) if label == "traceback" else text


def hints_told(verdict: Verdict) -> tuple[Hint, ...]:
    """The hints on the kind of fault, that on the numbers first, and on the declaration that would fix it."""
    return () if verdict.evidence is None else tuple(_hints(verdict.evidence))


def _hints(evidence: Evidence) -> Iterator[Hint]:
    first = evidence.first_hint
    if first is not None:
        yield replace(first, text=f"{_compared(evidence)}{first.text}")
    yield from evidence.retried
    if evidence.matrices is not None and evidence.matrices.declaration:
        yield Hint(FaultKind.DECLARATION, f"coherent, in this case, if {evidence.matrices.declaration}")


def _compared(evidence: Evidence) -> str:
    """The results that the first hint compares, followed by a colon."""
    matrices, place = evidence.matrices, evidence.place
    if matrices is not None and matrices.hint is not None:
        is_specified = OF_SPECIFICATION in matrices.names[:2]
        name, against = (
            (matrices.names[0], f"the {OF_SPECIFICATION}") if is_specified else ("adjoint", "forward")
        )
        return f"{name.partition(',')[0]}, compared with {against}: "
    if place is not None and place.hint is not None:
        return f"{place.values[0][0]}, compared with {place.values[1][0]}: "
    return ""
