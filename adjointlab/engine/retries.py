"""Retries of the smallest failing case with one thing changed, and the hints on the kind of fault that follow from them.

A retry is evidence only if compared with a *control*, which differs from it in that one thing:

- if no key of the values shows the fault in the retry, and half of them or more show it in the control, the fault needs the thing:
  the memory order, the sequence of passes, or the cuts (:mod:`adjointlab.engine.even_cuts`);
- a relation between wrong and expected values is reported if it holds under several keys, with values of many digits;
- a fault that shows under some schedule, but not if ranks run in turn and messages arrive at once, needs the schedule; so does a
  result that is not finite under some schedule, and finite, though perhaps wrong, under the simplest one;
- wrong results depend on the schedule if a call may match several messages, and the results differ under another schedule;
- a layer's result comes from the rank's own part alone if it does not change when the other ranks hold other values.

A case that could not be judged is no evidence.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from adjointlab.checks.check import check_named
from adjointlab.checks.context import FRACTIONS
from adjointlab.checks.elements import NOT_FINITE
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.layers.training import TRAINING
from adjointlab.checks.matrix import MATRIX
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.core.space import Space
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import RankObservation
from adjointlab.engine.even_cuts import Cuts, has_uneven_cuts, with_cuts
from adjointlab.engine.failed_runs import NO_RETURN
from adjointlab.engine.interleavings import DEPENDS
from adjointlab.engine.run_case import NONDETERMINISTIC, Judgement, run_and_judge, run_case
from adjointlab.engine.subject import Subject
from adjointlab.quantities import ranks_listed
from adjointlab.worlds.run import FindingKind, Run
from adjointlab.worlds.world import Runner

__all__ = ["SECONDS", "with_hints_of_retries"]

SECONDS: Final = 3.0
"""Limit on when a retry may start. It is processor time, so that the hints do not depend on the machine's other load."""

_KEYS: Final = 6
"""Keys of the values that are tried. Some may not show a fault: a gradient may not be required, or a value may be zero."""

_TELLING: Final = 3
"""Number of keys that must agree on a hint; none may contradict it."""

_ORDERS: Final = 2
"""Schedules, besides the case's own, that must not show a fault before it is attributed to the cuts."""

_ARRIVALS: Final = 6
"""Largest number of other schedules, of which one must change the results: in half of them two messages arrive in the same order."""

_HOLDERS: Final = 4
"""Largest number of ranks whose own part is examined."""

_CALLS: Final = 4
"""Largest number of calls that are named as perhaps waited for too late."""

_NOT_RETRIED: Final = (DEPENDS, NO_RETURN, NONDETERMINISTIC, FindingKind.LIVELOCK)
"""Kinds of failure that depend on more than the case, or take seconds to detect."""

_ROOTS: Final = (FaultKind.TIMES_ROOT, FaultKind.BY_ROOT)
_NOTHING_THERE: Final = (FaultKind.MISSING, FaultKind.ZERO_RANK)


def with_hints_of_retries(
    run: Runner,
    case: Case,
    verdict: Verdict,
    subject: Subject,
    *,
    may_change_parameters: bool,
    seconds: float = SECONDS,
) -> Verdict:
    """Return a failing verdict with the hints of its retries, none of which starts after `seconds` of processor time.

    Cases with other parameters run only if `may_change_parameters`, because the strategy may be unable to draw them.
    """
    if verdict.kind in _NOT_RETRIED or case.schedules or not _may_run_again(verdict, may_change_parameters):
        return verdict
    retries = _Retries(run, case, verdict, subject, time.process_time() + seconds)
    evidence = verdict.evidence or Evidence()
    if evidence.place is not None and evidence.matrices is None:
        evidence = replace(evidence, place=replace(evidence.place, hint=retries.of_values()))
    hints = [*retries.of_settings()]
    if may_change_parameters:
        hints += [*retries.of_cuts(), *retries.of_schedule()]
    known = evidence.first_hint
    others = tuple(hint for hint in hints if known is None or hint.kind is not known.kind)
    evidence = replace(evidence, retried=others)
    return replace(verdict, evidence=None if evidence == Evidence() else evidence)


def _may_run_again(verdict: Verdict, is_simulated: bool) -> bool:
    """Return True for wrong results, and in simulation for crashes and hangs, which elsewhere cost a time-out or the job."""
    return verdict.status is Status.INCOHERENT or (is_simulated and verdict.status is Status.UNJUDGED)


@dataclass(frozen=True)
class _Retries:
    """The retries of one failing case; none starts after `ends`, in processor time."""

    run: Runner
    case: Case
    verdict: Verdict
    subject: Subject
    ends: float

    # Conditions

    def of_settings(self) -> Iterator[Hint]:
        """Hints on faults that need a memory order or a sequence of passes."""
        # Each kind once: a fault that vanishes in one memory order on all ranks vanishes in row-major memory too.
        found: list[FaultKind] = []
        for hint, setting in check_named(self.case.check).plainer_settings(self.case.setting):
            if hint.kind not in found and self._vanishes(
                structs.replace(self.case, setting=setting), self.case
            ):
                found.append(hint.kind)
                yield hint

    def of_cuts(self) -> Iterator[Hint]:
        """Hints on faults that need uneven cuts, or parts without elements."""
        spaces = self._spaces(self.case)
        if not has_uneven_cuts(spaces):
            return
        made = with_cuts(self.case, spaces)
        if not made:
            return
        even, longer, moved, with_empty = (made[cuts] for cuts in Cuts)
        of_even = self._spaces(even)
        if not of_even or has_uneven_cuts(of_even):
            return
        if (
            self._vanishes(even, moved)
            and self._all_pass(longer)
            and self._passes_under_other_schedules(even)
        ):
            yield Hint(FaultKind.UNEVEN, "right with even cuts, and wrong with uneven ones of the same sides")
        elif (
            self._vanishes(moved, with_empty)
            and self._all_pass(even)
            and self._passes_under_other_schedules(moved)
        ):
            text = "right where every rank holds elements, and wrong where the part of one is empty"
            yield Hint(FaultKind.EMPTY, text)

    def of_schedule(self) -> Iterator[Hint]:
        """Hints on faults that depend on the schedule; the verdict on a hang already says so."""
        if self.verdict.is_hang or not (
            text := self._compared_with_simplest() or self._compared_with_others()
        ):
            return
        run: Run = self.run(self.case, self.case.ranks, seed=self.case.schedule)
        if run.matched:
            crossing = next((each for each in run.matched if each.crosses), None)
            text += f": perhaps because {crossing or run.matched[0]}"
            if crossing:
                text += "; a barrier at the end of the operator keeps its applications apart"
        elif run.delayed:
            calls = dict.fromkeys(f"{call} at {call.where}" for call in run.delayed[:_CALLS])
            text += f": perhaps a buffer is used before the wait for {' or '.join(calls)}"
        yield Hint(FaultKind.SCHEDULE, text)

    def _compared_with_simplest(self) -> str:
        simplest = structs.replace(self.case, schedule=0)
        if not self.case.schedule:
            return ""
        if self._vanishes(simplest, self.case):
            return "right where ranks run in turn and messages arrive at once, and wrong in another execution that MPI allows"
        if self._is_not_finite_unlike(simplest):
            return "finite, but wrong, where ranks run in turn and messages arrive at once"
        return ""

    def _compared_with_others(self) -> str:
        """The text on results that are wrong under every schedule, but differ between schedules."""
        if self.verdict.status is not Status.INCOHERENT or time.process_time() > self.ends:
            return ""
        run, own = run_and_judge(self.run, self.case)
        if not run.matched or own is None:
            return ""
        others = map(self._judged, self._under_other_schedules(self.case, _ARRIVALS))
        differ = (each is not None and each.verdict.lines != own.verdict.lines for each in others)
        return "results differ between executions that MPI allows" if any(differ) else ""

    def _vanishes(self, changed: Case, control: Case) -> bool:
        """Return True if no key shows the fault in the changed case, and enough of these keys show it in the control."""
        if not self._all_pass(changed):
            return False
        judged = (self._judged(each) for each in _with_other_keys(control))
        failed = sum(each is not None and each.verdict.fails_like(self.verdict) for each in judged)
        return failed >= _TELLING

    def _is_not_finite_unlike(self, changed: Case) -> bool:
        """Return True if a result is not finite here, but is under every key of `changed`, though some are wrong there."""
        if not self.verdict.kind.endswith(NOT_FINITE):
            return False
        judged = [self._judged(each) for each in _with_other_keys(changed)]
        return all(each is not None and not each.verdict.fails_like(self.verdict) for each in judged)

    def _passes_under_other_schedules(self, case: Case) -> bool:
        """Return True if the case also passes under other schedules, so that it does not pass because of its own."""
        return all(map(self._all_pass, self._under_other_schedules(case, _ORDERS)))

    def _under_other_schedules(self, case: Case, number: int) -> Iterator[Case]:
        for offset in range(1, number + 1):
            yield structs.replace(case, schedule=case.schedule + offset)

    def _all_pass(self, case: Case) -> bool:
        judged = (self._judged(each) for each in _with_other_keys(case))
        return all(each is not None and each.verdict.is_coherent for each in judged)

    def _spaces(self, case: Case) -> tuple[Space, ...]:
        judgement = self._judged(case)
        spaces = None if judgement is None else judgement.spaces
        return () if spaces is None else (spaces.domain, spaces.codomain)

    # Values

    def of_values(self) -> Hint | None:
        """The hint on wrong values of a result: their relation to the expected ones, the same under several keys."""
        case = structs.replace(self.case, values=FRACTIONS) if self.subject.is_layer else self.case
        hint = self._relation(case)
        if hint is not None and hint.kind in _ROOTS:
            return self._in_both_directions(hint)
        if hint is not None and hint.kind is FaultKind.SUM_DROPPED and self.subject.takes_steps:
            return self._until_a_step(hint)
        if self.subject.is_layer and (hint is None or hint.kind in _NOTHING_THERE):
            return self._own_part(case) or hint
        return hint

    def _relation(self, case: Case) -> Hint | None:
        """The relation of wrong values, in whichever result is wrong first: the key decides which tensors require a gradient."""
        first: Hint | None = None
        number = 0
        for each in _with_other_keys(case):
            judgement = self._judged(each)
            if judgement is None or judgement.verdict.status is not Status.INCOHERENT:
                continue
            evidence = judgement.verdict.evidence
            hint = None if evidence is None or evidence.place is None else evidence.place.hint
            if hint is None or (first is not None and hint.kind is not first.kind):
                return None
            first, number = first or hint, number + 1
            if number == _TELLING:
                return first
        return None

    def _in_both_directions(self, hint: Hint) -> Hint | None:
        """The hint on a factor, if the adjoint is the transpose, so that both directions have the factor; else none."""
        if self.subject.is_layer:
            return None
        judgement = self._judged(structs.replace(self.case, check=MATRIX.name))
        if judgement is None or not judgement.verdict.is_coherent:
            return None
        return Hint(
            hint.kind, f"{hint.text}, and the adjoint is its transpose: both directions have the factor"
        )

    def _until_a_step(self, hint: Hint) -> Hint:
        """The hint on a missing sum of gradients, with a remark if the optimiser's step makes up for it."""
        if not self._all_pass(structs.replace(self.case, check=TRAINING.name)):
            return hint
        return Hint(
            hint.kind,
            f"{hint.text}; but parameters are right after the steps: where the optimiser reduces gradients, ask for the check {TRAINING.name} alone",
        )

    def _own_part(self, case: Case) -> Hint | None:
        """The hint on wrong results that do not change when other ranks hold other values; None if that is not so on some rank."""
        check = check_named(case.check)
        found: list[list[int]] = []  # for each key, the ranks whose wrong results do not change
        for each in _with_other_keys(case) if case.ranks > 1 else ():
            observations = self._observed(each)
            stays: dict[int, bool | None] = {}
            for rank in range(min(case.ranks, _HOLDERS)):
                others = self._observed(structs.replace(each, same_on=rank))
                if observations and others:
                    stays[rank] = check.is_of_own_part(observations, others, rank)
            if False in stays.values():
                return None
            found += [ranks] if (ranks := [rank for rank, stay in stays.items() if stay]) else []
            if len(found) == _TELLING:
                break
        else:
            return None
        ranks = sorted({rank for each in found for rank in each})
        return Hint(
            FaultKind.OWN_PART,
            f"of the rank's own part only: on {ranks_listed(ranks)} it does not change when the other ranks hold other values, and should",
        )

    # Running

    def _judged(self, case: Case) -> Judgement | None:
        return run_case(self.run, case) if time.process_time() <= self.ends else None

    def _observed(self, case: Case) -> Sequence[object]:
        """Return the observations of all ranks; none if the case could not be judged or time is up."""
        if time.process_time() > self.ends:
            return ()
        run, judgement = run_and_judge(self.run, case)
        if not run.completed or judgement is None:
            return ()
        seen: Iterable[RankObservation] = run.values
        return [each.observation for each in seen]


def _with_other_keys(case: Case) -> Iterator[Case]:
    for number in range(_KEYS):
        yield case.with_other_values(number + 1)
