"""Running one case: the body that every rank executes, and the verdict from what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from adjointlab.checks.adjoint import AdjointCheck
from adjointlab.checks.bench import Bench
from adjointlab.checks.check import Check, Inapplicable, Spaces
from adjointlab.checks.declared import DeclaredCheck
from adjointlab.checks.layers.double_backward import DoubleBackwardCheck
from adjointlab.checks.layers.gradients import GradcheckCheck, GradientsCheck
from adjointlab.checks.layers.jacobian import JacobianCheck
from adjointlab.checks.layers.sequential import SequentialCheck
from adjointlab.checks.linearity import LinearityCheck
from adjointlab.checks.matrix import MatrixCheck
from adjointlab.checks.proof import ProofCheck
from adjointlab.checks.purity import PurityCheck
from adjointlab.checks.reentrancy import ReentrancyCheck
from adjointlab.checks.specification import SpecificationCheck
from adjointlab.checks.verdict import Status, Verdict, incoherent
from adjointlab.core.operator import NotInSpace
from adjointlab.core.space import Space
from adjointlab.engine.case import Case
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.worlds.watchdog import Overdue
from adjointlab.worlds.world import Blocked, Body, Raised, RankContext, Returned, Run

__all__ = [
    "CHECKS",
    "PROOF",
    "TWIN",
    "WITNESS",
    "Seen",
    "body",
    "checks_of",
    "is_inapplicable",
    "judge",
    "spaces_of",
]

CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        AdjointCheck(),
        MatrixCheck(),
        SpecificationCheck(),
        LinearityCheck(),
        SequentialCheck(),
        DeclaredCheck(),
        PurityCheck(),
        ReentrancyCheck(),
        GradientsCheck(),
        JacobianCheck(),
        DoubleBackwardCheck(),
    )
}

_OF_LAYERS = (SequentialCheck.name, GradientsCheck.name, JacobianCheck.name)

WITNESS = "witness"
"""The matrix check without a limit, which names the wrong entry of a shrunk case."""

PROOF = ProofCheck.name
"""The check of an exhaustive run."""

NO_RETURN = "no return"
"""The kind of failure of a rank that the watchdog had to end."""

TWIN = GradcheckCheck.name
"""The check of a sequential twin by itself, which says which side is wrong."""

_EVERY: Mapping[str, Check] = {
    **CHECKS,
    WITNESS: MatrixCheck(limit=4096),
    PROOF: ProofCheck(),
    TWIN: GradcheckCheck(),
}


@dataclass(frozen=True)
class Seen:
    """What a rank hands to the judge, and the spaces that it declares."""

    observation: Any
    spaces: Spaces
    leaks: tuple[tuple[str, str], ...] = ()


def checks_of(subject: Subject) -> tuple[str, ...]:
    """The checks that have something to compare `subject` with."""
    if subject.is_layer:
        return (*_OF_LAYERS, *((DoubleBackwardCheck.name,) if subject.twice_differentiable else ()))
    needless = {GradientsCheck.name, JacobianCheck.name, DoubleBackwardCheck.name}
    if not subject.has_specification:
        needless.add(SpecificationCheck.name)
    if subject.reference is None:
        needless.add(SequentialCheck.name)
    return tuple(name for name in CHECKS if name not in needless)


def check_named(name: str) -> Check:
    """The check called `name`; `ValueError` naming those that there are."""
    try:
        return _EVERY[name]
    except KeyError:
        raise ValueError(f"check: {name!r} is not one of {', '.join(CHECKS)}") from None


def body(subject: Subject) -> Body:
    """What every rank does for a case of `subject`."""

    def examine(context: RankContext, case: Case) -> Seen:
        reference = (
            None
            if subject.reference is None
            else partial(subject.reference, **_arguments(subject, case.parameters))
        )
        bench = Bench(
            lambda: subject.make(context.comm, case.parameters), case.setting, context.comm, reference
        )
        observation = check_named(case.check).observe(bench)
        return Seen(observation, Spaces(bench.domain, bench.codomain), tuple(bench.leaks.items()))

    return examine


def judge(case: Case, run: Run) -> Verdict:
    """The verdict of a run."""
    if not run.completed:
        return _from_failure(run)
    first: Seen = run.values[0]
    for rank, seen in enumerate(run.values):
        if seen.leaks:
            kind = "communicator left open"
            lines = [("rank", str(rank)), *seen.leaks]
            return Verdict(
                Status.UNJUDGED, "communicators are made in calls and never freed", kind, tuple(lines)
            )
        if seen.spaces != first.spaces:
            # No check can put together what the ranks saw.
            return incoherent("the ranks declare different spaces", ("ranks", f"0 and {rank}"))
    return check_named(case.check).judge(first.spaces, [seen.observation for seen in run.values])


def spaces_of(run: Run) -> Spaces | None:
    """What the operator of a run declares, as far as its first rank came to say so."""
    first: Any = getattr(run.outcomes[0], "value", None)
    spaces: Spaces | None = getattr(first, "spaces", None)
    return spaces


def is_inapplicable(run: Run) -> bool:
    """Whether the check had nothing to say about the case."""
    return any(isinstance(outcome, Raised) and outcome.is_a(Inapplicable) for outcome in run.outcomes)


def _from_failure(run: Run) -> Verdict:
    raised = [(rank, outcome) for rank, outcome in enumerate(run.outcomes) if isinstance(outcome, Raised)]
    for rank, outcome in raised:
        if outcome.is_a(NotInSpace):
            return incoherent(
                "an output is not in its declared space", ("rank", str(rank)), ("error", outcome.message)
            )
    # Findings tell of ranks that sit in calls what the outcomes do, and more.
    lines = [
        (f"rank {rank}", str(outcome))
        for rank, outcome in enumerate(run.outcomes)
        if not (run.findings and isinstance(outcome, Blocked | Returned))
    ]
    lines += dict.fromkeys((finding.kind, finding.text) for finding in run.findings if finding.text)
    if raised:
        rank, outcome = raised[0]
        if overdue := [entry for entry in raised if entry[1].is_a(Overdue)]:
            rank, outcome = overdue[0]
            lines.append(("traceback", outcome.traceback.rstrip()))
            return Verdict(Status.UNJUDGED, f"rank {rank} {outcome.message}", NO_RETURN, tuple(lines))
        if outcome.is_a(SubjectError):
            return Verdict(Status.UNJUDGED, outcome.message, SubjectError.__name__)
        lines.append(("traceback", outcome.traceback.rstrip()))
    if raised and not run.findings:
        return Verdict(
            Status.UNJUDGED,
            f"rank {rank} raised {outcome.kind}: {outcome.message}",
            f"raised {outcome.kind}",
            tuple(lines),
        )
    # A mismatch explains the deadlock that it makes.
    kinds = sorted((finding.kind for finding in run.findings), key=lambda kind: "mismatched" not in kind)
    headline = kinds[0] if kinds else "not every rank came back"
    return Verdict(Status.UNJUDGED, headline, headline, tuple(lines))


def _arguments(subject: Subject, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if subject.is_layer:
        return dict(parameters)
    return {key: value for key, value in parameters.items() if not isinstance(value, Space)}
