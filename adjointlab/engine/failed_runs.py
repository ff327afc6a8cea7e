"""Verdicts on runs that have failed: a rank raised, hung, died or did not return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from adjointlab.checks.evidence import Evidence, Wait
from adjointlab.checks.verdict import Verdict, incoherent, unjudged
from adjointlab.core.declaration import SubjectError
from adjointlab.core.operator import (
    NotInSpace,
    OtherOutputs,
    ParameterMisplaced,
    ParameterNotInSpace,
    WrongClaim,
)
from adjointlab.torch_distributed.contiguity import NotContiguous
from adjointlab.torch_distributed.opening import GroupsInOtherOrder
from adjointlab.worlds.backward import backward_lines
from adjointlab.worlds.run import Blocked, Dead, FindingKind, Outcome, Raised, Returned, Run
from adjointlab.worlds.shared_functions import FunctionsReplaced
from adjointlab.worlds.watchdog import Overdue

__all__ = ["HANGS", "LIMIT", "MISDECLARED", "NO_RETURN", "REPLACED", "verdict_on_failure"]

MISDECLARED: Final = SubjectError.__name__
"""Kind of failure of a subject whose declaration is wrong: every check of it fails in this way."""

NO_RETURN = "no return"
"""Kind of failure in which the watchdog had to end a rank."""

REPLACED = "functions replaced"
"""Kind of failure of a run in which user code has replaced functions of Python or NumPy."""

HANGS: Final = frozenset(
    {FindingKind.DEADLOCK, FindingKind.LIVELOCK, FindingKind.BLOCKED, FindingKind.MISMATCHED_COLLECTIVE}
)
"""Kinds of failure in which ranks wait for ever."""

_MISMATCHES: Final = frozenset({FindingKind.MISMATCHED_COLLECTIVE, FindingKind.MISMATCHED_MESSAGE})

_REFUSED: Final = (
    (WrongClaim, "a tensor is not what it claims to be"),
    (ParameterMisplaced, "a rank has elements of a parameter that are not its part"),
    (OtherOutputs, "the layer does not return its outputs as the sequential one does"),
    (ParameterNotInSpace, "a parameter is not in its declared space"),
    (NotInSpace, "an output is not in its declared space"),
    (NotContiguous, "a process group gets a non-contiguous tensor"),
    (GroupsInOtherOrder, "ranks make process groups in different orders"),
)
"""Exceptions that the lab raises when the code under test does something wrong, subclasses first, each with its headline."""

Line: TypeAlias = tuple[str, str]

LIMIT: Final[Line] = (
    "limit",
    "if the code takes that long, as one that compiles in its first call may, --watchdog SECONDS or watchdog in [tool.adjointlab] gives it more",
)
"""Advice for when the watchdog has ended a rank: it cannot distinguish a hang from slow code."""


def verdict_on_failure(run: Run) -> Verdict:
    """The verdict on a run in which some rank did not return, or the world found something wrong."""
    raised = [(rank, outcome) for rank, outcome in enumerate(run.outcomes) if isinstance(outcome, Raised)]
    overdue = next((entry for entry in raised if entry[1].is_a(Overdue)), None)
    # After the watchdog has ended a rank, errors of other ranks are consequences.
    if overdue is None and (refusal := _of_refusal(raised)) is not None:
        return refusal
    for _, outcome in raised:
        if outcome.is_a(FunctionsReplaced):
            return unjudged(outcome.message, kind=REPLACED)
    lines = _lines(run)
    if overdue is not None:
        rank, outcome = overdue
        return unjudged(f"rank {rank} {outcome.message}", *lines, _traceback(outcome), LIMIT, kind=NO_RETURN)
    if raised and raised[0][1].is_a(SubjectError):
        return unjudged(raised[0][1].message, kind=MISDECLARED)
    if run.findings:
        tracebacks = [_traceback(outcome) for _, outcome in raised[:1] if not _met_another_call(outcome, run)]
        return _of_findings(run, [*lines, *tracebacks])
    if raised:
        return _of_exception(*raised[0], lines)
    return unjudged("not every rank returned", *lines)


def _of_refusal(raised: Sequence[tuple[int, Raised]]) -> Verdict | None:
    """The verdict if the lab refused something that a rank did: the code under test is then incoherent, not merely unjudged."""
    for rank, outcome in raised:
        for kind, headline in _REFUSED:
            if outcome.is_a(kind):
                return incoherent(headline, ("rank", str(rank)), ("error", outcome.message))
    return None


def _of_findings(run: Run, lines: Sequence[Line]) -> Verdict:
    # A mismatch is named first: it explains the deadlock that follows from it.
    kind = min((finding.kind for finding in run.findings), key=lambda kind: kind not in _MISMATCHES)
    # A rank that was merely busy would be as busy in simulation.
    is_hang = kind in HANGS and not any(finding.is_busy for finding in run.findings)
    is_death = any(isinstance(outcome, Dead) for outcome in run.outcomes)
    return unjudged(kind, *lines, is_hang=is_hang, is_death=is_death, evidence=_waits(run))


def _of_exception(rank: int, outcome: Raised, lines: Sequence[Line]) -> Verdict:
    """The verdict if `rank` was the first to raise; `lines` say how each rank ended."""
    headline = str(outcome)
    others = [
        (label, "raised the same exception" if text == headline else text)
        for label, text in lines
        if (label, text) != (f"rank {rank}", headline)
    ]
    return unjudged(f"rank {rank} {headline}", *others, _traceback(outcome), kind=f"raised {outcome.kind}")


def _lines(run: Run) -> list[Line]:
    """Lines on how each rank ended, on the findings of the world, and on the ranks that were in a backward pass."""
    # The world's findings describe blocked ranks better than their outcomes do.
    lines = [
        (f"rank {rank}", str(outcome))
        for rank, outcome in enumerate(run.outcomes)
        if not (run.findings and (isinstance(outcome, Blocked | Returned) or _met_another_call(outcome, run)))
    ]
    lines += dict.fromkeys((finding.kind, finding.text) for finding in run.findings if finding.text)
    in_backward = [isinstance(outcome, Blocked) and outcome.in_backward for outcome in run.outcomes]
    if of_backward := list(backward_lines(in_backward, run.backward)):
        lines.append(("backward", "\n".join(of_backward)))
    return lines


def _met_another_call(outcome: Outcome, run: Run) -> bool:
    """Return True if one of the lab's own calls raised because it was matched with a call of the code under test."""
    is_mismatch = any(finding.kind in _MISMATCHES for finding in run.findings)
    return is_mismatch and isinstance(outcome, Raised) and outcome.in_lab


def _traceback(outcome: Raised) -> Line:
    return "traceback", outcome.traceback.rstrip()


def _waits(run: Run) -> Evidence | None:
    """The calls in which ranks were blocked, and how the other ranks ended; `None` if none was blocked."""
    if not any(isinstance(outcome, Blocked) for outcome in run.outcomes):
        return None
    return Evidence(waits=tuple(_wait(rank, outcome) for rank, outcome in enumerate(run.outcomes)))


def _wait(rank: int, outcome: Outcome) -> Wait:
    if not isinstance(outcome, Blocked):
        # A value's text may be long, and a message may have several lines.
        return Wait(rank, str(outcome).partition("\n")[0], is_blocked=False)
    if outcome.is_lab:
        return Wait(rank, f"had {outcome.came_back}", waits_for=outcome.waits_for)
    return Wait(rank, outcome.call, outcome.where, outcome.waits_for)
