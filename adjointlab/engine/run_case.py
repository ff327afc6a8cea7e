"""Running a case: the verdict from what came back, and the record of what is about to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from msgspec import structs

from adjointlab.checks.check import AnyCheck, Spaces, check_named
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.forms import FormRefused
from adjointlab.checks.hints import Hint, hint_beside_right_entries
from adjointlab.checks.linearity import NOT_LINEAR
from adjointlab.checks.schedule_invariant import ScheduleInvariant
from adjointlab.checks.verdict import (
    PERHAPS,
    Inapplicable,
    Measurement,
    NotMeasured,
    Status,
    Undecided,
    Verdict,
    incoherent,
    unjudged,
)
from adjointlab.core.space import Tensor
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import RankObservation
from adjointlab.engine.failed_runs import verdict_on_failure
from adjointlab.engine.interleavings import DEPENDS, judge_all
from adjointlab.quantities import counted
from adjointlab.worlds.run import FindingKind, Raised, Returned, Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.world import Runner

__all__ = [
    "NONDETERMINISTIC",
    "UNDECIDED",
    "CaseRunner",
    "Judgement",
    "KnownRuns",
    "RecordCase",
    "Stage",
    "inapplicable_because",
    "is_inapplicable",
    "judge",
    "judgement_of",
    "nothing_known",
    "run_and_judge",
    "run_case",
    "schedule_invariants",
    "spaces_of",
    "with_follow_up",
]


class Stage(StrEnum):
    """The purpose for which a case runs. The values are stored in files."""

    DRAWING = "drawing"
    SHRINKING = "shrinking"
    STEPPING = "stepping"
    """For cases that no strategy has drawn; the record holds the failure from which they are one step."""
    CONFIRMING = "confirming"
    REPLAYING = "replaying"


class Judgement(NamedTuple):
    """The verdict of a case, and the spaces of its operator if a rank got as far as declaring them."""

    verdict: Verdict
    spaces: Spaces | None


RecordCase = Callable[[Case, int, Stage], None]
"""Records that a case is about to run, with the number of cases done before it."""


class KnownRuns(Protocol):
    """The runs of earlier jobs: the run of a case that has ended a job at least `times` times, else `None`."""

    def __call__(self, case: Case, times: int = 1) -> Run | None: ...


def nothing_known(case: Case, times: int = 1) -> Run | None:
    """The known runs of a job without predecessors."""
    return None


@dataclass(frozen=True)
class CaseRunner:
    """A :class:`~adjointlab.worlds.world.Runner` that looks up runs of earlier jobs and records the running case.

    A case that kills its process leaves no result. So the order matters: first the case is looked up, so that one that has ended an
    earlier job does not end this one too; then it is recorded; then it runs. If a rank refuses a form of the operator, the case runs
    again without that form. The record holds the case as it was drawn. For a case that is one step smaller than a failure it holds
    that failure, unless the next job looks up such cases.
    """

    run: Runner
    record: RecordCase | None = None
    known: KnownRuns = nothing_known

    def __call__(
        self,
        payload: Case,
        ranks: int,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
        stage: Stage = Stage.REPLAYING,
        done: int = 0,
        times: int = 1,
        step_from: Case | None = None,
    ) -> Run:
        drawn = structs.replace(payload, measurement=Measurement.NONE)
        if (known := self.known(drawn, times)) is not None:
            return known
        if self.record is not None:
            if step_from is not None and self.known is nothing_known:
                self.record(step_from, done, Stage.STEPPING)
            else:
                self.record(drawn, done, stage)
        while True:
            run = self.run(payload, ranks, seed=seed, schedule=schedule)
            refused = _refused_form(run)
            if not refused or refused in payload.forms_left_out:
                return run
            payload = structs.replace(payload, forms_left_out=(*payload.forms_left_out, refused))


def _refused_form(run: Run) -> str:
    """The form of the operator that some rank has refused; empty if none has."""
    outcomes = (outcome for outcome in run.outcomes if isinstance(outcome, Raised))
    return next((outcome.message for outcome in outcomes if outcome.is_a(FormRefused)), "")


def run_case(run: Runner, case: Case, measurement: Measurement = Measurement.ALL) -> Judgement | None:
    """Run and judge one case under all its schedules; `None` if its check does not apply to it.

    If the judge needs a measurement of rounding, the case runs again with `measurement`; a case that is expected to fail needs
    all of it.
    """
    if not case.schedules:
        return run_and_judge(run, case, measurement=measurement)[1]
    runs, verdicts = [], []
    for schedule in case.schedules:
        each, judgement = run_and_judge(run, case, schedule, measurement=measurement)
        if judgement is None:
            return None
        runs.append(each)
        verdicts.append(judgement.verdict)
    return Judgement(judge_all(case, runs, verdicts, schedule_invariants), spaces_of(runs[0]))


def run_and_judge(
    run: Runner, case: Case, schedule: Schedule | None = None, *, measurement: Measurement = Measurement.ALL
) -> tuple[Run, Judgement | None]:
    """Run a case, again if rounding has to be measured; return the last run and the result of :func:`judgement_of`."""
    last = run(case, case.ranks, seed=case.schedule, schedule=schedule)
    try:
        return last, judgement_of(case, last)
    except NotMeasured:
        more = Measurement.ALL if case.measurement else measurement
        return run_and_judge(run, structs.replace(case, measurement=more), schedule)


def judgement_of(case: Case, run: Run) -> Judgement | None:
    """Judge one run of a case; `None` if its check does not apply to it, which may turn out only in the end.

    Raises :class:`NotMeasured` if the judge needs a measurement that the run did not make.
    """
    if is_inapplicable(run):
        return None
    try:
        return Judgement(judge(case, run), spaces_of(run))
    except Undecided as error:
        return Judgement(unjudged(str(error), kind=UNDECIDED), spaces_of(run))
    except Inapplicable:
        return None


def with_follow_up(run: Runner, case: Case, verdict: Verdict) -> Verdict:
    """Return `verdict`, explained by the follow-up of its check if it has one: another check of the same case.

    After a wrong inner product, say, the matrix check names the wrong entry.
    """
    check = check_named(case.check)
    follow_up = check.follow_up()
    # A single run cannot explain why two schedules differ.
    if verdict.status is not Status.INCOHERENT or verdict.kind == DEPENDS or follow_up is None:
        return verdict
    answer = run_case(run, structs.replace(case, check=follow_up.name))
    explained = check.explained(verdict, None if answer is None else answer.verdict)
    if (line := _not_linear(run, case, check)) is not None:
        return replace(explained.with_lines(line), evidence=_of_no_matrix(explained.evidence))
    if answer is None or not answer.verdict.is_coherent or explained.evidence is not None:
        return explained
    if PERHAPS in verdict.lines:
        # Basis vectors have no digits to lose, unlike random values: that their entries are right says nothing about rounding.
        return explained
    hint = _hint_beside_right_entries(case, answer)
    return explained if hint is None else replace(explained, evidence=Evidence(hint=hint))


_KEYS_OF_PREMISE: Final = 3
"""Keys of the values under which linearity is tested: on a few values of one sign a rectifier is linear."""


def _not_linear(run: Runner, case: Case, check: AnyCheck) -> tuple[str, str] | None:
    """The line on a direction that is not linear; None if both are linear or `check` does not assume it."""
    premise = check.premise()
    if premise is None:
        return None
    for number in range(_KEYS_OF_PREMISE):
        answer = run_case(run, structs.replace(case.with_other_values(number), check=premise.name))
        if answer is None or answer.verdict.status is Status.UNJUDGED:
            return None
        # A small difference may be rounding.
        if answer.verdict.headline.endswith(NOT_LINEAR) and PERHAPS not in answer.verdict.lines:
            (_, where), *values = answer.verdict.lines
            seen = " and ".join(f"{name} is {value}" for name, value in values)
            return (
                "perhaps",
                f"{answer.verdict.headline}, or depends on more than its argument: at {where} {seen}",
            )
    return None


def _of_no_matrix(evidence: Evidence | None) -> Evidence | None:
    """The evidence without conclusions from matrix entries: a function that is not linear has no matrix."""
    if evidence is None or evidence.matrices is None:
        return evidence
    return replace(evidence, matrices=replace(evidence.matrices, hint=None, declaration=""))


def _hint_beside_right_entries(case: Case, answer: Judgement) -> Hint | None:
    is_complex = answer.spaces is not None and (
        answer.spaces.domain.is_complex or answer.spaces.codomain.is_complex
    )
    return hint_beside_right_entries(case.setting.orders, is_complex)


UNDECIDED: Final = "undecided"
"""Kind of the verdict on a case whose results differ, if it is unknown whether they may."""

NONDETERMINISTIC: Final = "nondeterministic"
"""Kind of the failure of a case whose result changes from run to run."""

_ADVICE_ON_LEAKS: Final = (
    "advice",
    "make the communicator once, where the operator is made, or free it after use: an MPI library allows some 2000 at a time",
)


_ADVICE_ON_RANKS: Final = (
    "advice",
    "make a partition of as many ranks as the strategy is given, or say in the decorator, as ranks=(...), which numbers the subject supports",
)

_ADVICE_ON_FROZEN: Final = (
    "frozen",
    "the lab has frozen parameters in this case, as in half of all cases: if the code does not support that, pass frozen=() to "
    "check_parallel, or put frozen=0 into the strategy's dictionary; a data-parallel module, such as DistributedDataParallel, needs "
    'data_parallel="mean", with which at least one is trained',
)


_ADVICE_ON_MESHES: Final = (
    "mesh",
    "the lab draws meshes of every number of ranks: if the code's sizes cannot be cut by this one, fix the mesh, such as mesh=(2,) in "
    "check_parallel, or the numbers of ranks, such as ranks=(1, 2, 4) in the subject",
)


def judge(case: Case, run: Run) -> Verdict:
    """Return the verdict on a run of `case`."""
    if not run.completed:
        return _with_advice(case, verdict_on_failure(run))
    seen: list[RankObservation] = list(run.values)
    spaces = seen[0].spaces
    for tensor in spaces.tensors:
        if missing := [rank for rank in tensor.layout.partition.ranks if rank >= case.ranks]:
            return unjudged(
                f"the operator declares a tensor on rank {missing[0]}, and its communicator has {counted(case.ranks, 'rank')}",
                ("tensor", str(tensor)),
                _ADVICE_ON_RANKS,
            )
    check = check_named(case.check)
    for rank, each in enumerate(seen):
        if each.spaces != spaces:
            # No check can assemble elements of different spaces.
            return incoherent("the ranks declare different spaces", ("ranks", f"0 and {rank}"))
        if each.held != seen[0].held:
            return _parameters_differ(rank, each.held, seen[0].held)
        if each.leaks and check.finds_leaks:
            headline, lines = "communicators are made in calls and never freed", each.leaks
            kind = FindingKind.COMMUNICATOR_LEFT_OPEN
            return unjudged(headline, ("rank", str(rank)), *lines, _ADVICE_ON_LEAKS, kind=kind)
    return check.judge(spaces, [each.observation for each in seen])


def _parameters_differ(
    rank: int, held: Sequence[tuple[str, Tensor]], first: Sequence[tuple[str, Tensor]]
) -> Verdict:
    """The verdict on a layer whose ranks 0 and `rank` declare different parameters or buffers."""
    declared = {0: first, rank: held}
    lines = [
        (
            f"rank {number}",
            ", ".join(f"{name} {tensor}" for name, tensor in each if (name, tensor) not in other)
            or "none of these",
        )
        for (number, each), other in zip(declared.items(), (held, first), strict=True)
    ]
    advice = (
        "declare the global tensors on every rank; one that holds nothing of a tensor has one of zero volume"
    )
    return incoherent("the ranks declare different parameters or buffers", *lines, ("advice", advice))


def _with_advice(case: Case, verdict: Verdict) -> Verdict:
    """The verdict; after an exception or a hang, with advice on frozen parameters, and after an exception on the mesh.

    The lab has drawn both, and the code may not support them. For example, if all parameters of a rank are frozen, torch skips its
    backward pass, in which others communicate.
    """
    has_raised = verdict.kind.startswith("raised ")
    if not has_raised and not verdict.is_hang:
        return verdict
    frozen = case.parameters.get("frozen", 0)
    if isinstance(frozen, int) and frozen:
        verdict = verdict.with_lines(_ADVICE_ON_FROZEN)
    # A size that two ranks do not divide is rare.
    if has_raised and "mesh" in case.parameters and case.ranks > 2:
        verdict = verdict.with_lines(_ADVICE_ON_MESHES)
    return verdict


def spaces_of(run: Run) -> Spaces | None:
    """Return the spaces that the operator of a run declares, if its first rank returned them."""
    first = run.outcomes[0]
    value = first.value if isinstance(first, Returned) else None
    return value.spaces if isinstance(value, RankObservation) else None


def schedule_invariants(case: Case, run: Run) -> Mapping[str, ScheduleInvariant]:
    """Return the results of a run, by name, that no schedule may change."""
    seen: Sequence[RankObservation] = run.values
    spaces = spaces_of(run)
    if spaces is None:
        return {}
    return check_named(case.check).schedule_invariants(spaces, [each.observation for each in seen])


def is_inapplicable(run: Run) -> bool:
    """Return True if the check did not apply to the case."""
    return inapplicable_because(run) is not None


def inapplicable_because(run: Run) -> str | None:
    """Return why the check did not apply to the case; None if it did."""
    # By type: a user's exception of the same name is a failure.
    reasons = (
        outcome.message
        for outcome in run.outcomes
        if isinstance(outcome, Raised) and outcome.is_a(Inapplicable)
    )
    return next(reasons, None)
