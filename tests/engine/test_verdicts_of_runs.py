"""The verdict on a run: of each way in which ranks end, and of what they observed where all return."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces, check_named
from adjointlab.checks.context import InputSetting
from adjointlab.checks.evidence import Evidence, Wait
from adjointlab.checks.verdict import (
    Inapplicable,
    Measurement,
    NotMeasured,
    Undecided,
    Verdict,
    coherent,
    incoherent,
    unjudged,
)
from adjointlab.core.declaration import SubjectError
from adjointlab.core.operator import NotInSpace, ParameterNotInSpace, WrongClaim
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import RankObservation
from adjointlab.engine.failed_runs import HANGS, LIMIT
from adjointlab.engine.run_case import (
    UNDECIDED,
    CaseRunner,
    inapplicable_because,
    is_inapplicable,
    judge,
    judgement_of,
    run_and_judge,
    schedule_invariants,
    spaces_of,
)
from adjointlab.torch_distributed.contiguity import NotContiguous
from adjointlab.worlds.backward import BackwardPass
from adjointlab.worlds.call_sites import came_back
from adjointlab.worlds.run import Blocked, Dead, Finding, FindingKind, Outcome, Raised, Returned, Run
from adjointlab.worlds.shared_functions import FunctionsReplaced
from adjointlab.worlds.watchdog import Overdue

pytestmark = pytest.mark.mpi_skip

CASE = Case("Ring", "purity", 2, {}, InputSetting(), 0)
HERE = "ring.py:7"
LAB = f"{al.__path__[0]}/checks/purity.py:3"
DONE, WAITS, DIED = Returned(3), Blocked("Recv(source=1)", HERE, (1,)), Dead("killed by signal 9")
IN_LAB = Blocked("allgather()", LAB, (0,), came_back="returned from Ring.forward at ring.py:5")


def raised(*types: type[BaseException], message: str = "no") -> Raised:
    kind = types[0].__name__ if types else "MyError"
    return Raised(kind, message, f"Traceback:\n  {kind}: {message}\n\n", None, (*types, Exception))


MINE, VALUE = raised(), raised(ValueError)
OF_LAB = replace(VALUE, in_lab=True)
OUTSIDE = raised(NotInSpace, ValueError, message="shape (3,)")
LATE = raised(Overdue, message="has been at work for 10 s")


def found(*kinds: FindingKind, is_busy: bool = False) -> tuple[Finding, ...]:
    return tuple(Finding(kind, f"a {kind}", is_busy) for kind in kinds)


def traceback(kind: str, message: str = "no") -> tuple[str, str]:
    return "traceback", f"Traceback:\n  {kind}: {message}"


BLOCKED = "blocked in Recv(source=1) at ring.py:7, waiting for rank 1"


@pytest.mark.parametrize(
    ("outcomes", "findings", "expected"),
    [
        # Outside of a space
        ((DONE, OUTSIDE), (), incoherent("an output is not in its declared space", ("rank", "1"), ("error", "shape (3,)"))),
        ((OUTSIDE, MINE), found(FindingKind.DEADLOCK), incoherent("an output is not in its declared space", ("rank", "0"), ("error", "shape (3,)"))),
        ((MINE, raised(ParameterNotInSpace, NotInSpace)), (), incoherent("a parameter is not in its declared space", ("rank", "1"), ("error", "no"))),
        ((DONE, raised(WrongClaim, NotInSpace)), (), incoherent("a tensor is not what it claims to be", ("rank", "1"), ("error", "no"))),
        ((DONE, raised(NotContiguous)), (), incoherent("a process group gets a non-contiguous tensor", ("rank", "1"), ("error", "no"))),
        # A watchdog
        ((OUTSIDE, LATE), (), unjudged("rank 1 has been at work for 10 s", ("rank 0", "raised NotInSpace: shape (3,)"), ("rank 1", "raised Overdue: has been at work for 10 s"), traceback("Overdue", LATE.message), LIMIT, kind="no return")),
        ((LATE, raised(NotContiguous)), (), unjudged("rank 0 has been at work for 10 s", ("rank 0", "raised Overdue: has been at work for 10 s"), ("rank 1", "raised NotContiguous: no"), traceback("Overdue", LATE.message), LIMIT, kind="no return")),
        ((MINE, LATE), found(FindingKind.DEADLOCK), unjudged("rank 1 has been at work for 10 s", ("rank 0", "raised MyError: no"), ("rank 1", "raised Overdue: has been at work for 10 s"), ("deadlock", "a deadlock"), traceback("Overdue", LATE.message), LIMIT, kind="no return")),
        # Of the run as a whole
        ((MINE, raised(FunctionsReplaced, message="print is not what it was")), found(FindingKind.DEADLOCK), unjudged("print is not what it was", kind="functions replaced")),
        ((MINE, raised(SubjectError)), (), unjudged("rank 0 raised MyError: no", ("rank 1", "raised SubjectError: no"), traceback("MyError"), kind="raised MyError")),
        ((WAITS, raised(SubjectError)), found(FindingKind.DEADLOCK), unjudged("no", kind="SubjectError")),
        # Exceptions
        ((DONE, MINE), (), unjudged("rank 1 raised MyError: no", ("rank 0", "returned"), traceback("MyError"), kind="raised MyError")),
        ((MINE, MINE), (), unjudged("rank 0 raised MyError: no", ("rank 1", "raised the same exception"), traceback("MyError"), kind="raised MyError")),
        ((MINE, VALUE), (), unjudged("rank 0 raised MyError: no", ("rank 1", "raised ValueError: no"), traceback("MyError"), kind="raised MyError")),
        ((WAITS, VALUE), (), unjudged("rank 1 raised ValueError: no", ("rank 0", BLOCKED), traceback("ValueError"), kind="raised ValueError")),
        ((WAITS, DONE, VALUE, MINE), found(FindingKind.MESSAGE_LEFT_OVER), unjudged("message left over", ("rank 2", "raised ValueError: no"), ("rank 3", "raised MyError: no"), ("message left over", "a message left over"), traceback("ValueError"))),
        # Neither exceptions nor findings
        ((DONE, WAITS), (), unjudged("not every rank returned", ("rank 0", "returned"), ("rank 1", BLOCKED))),
        ((DONE, DIED), (), unjudged("not every rank returned", ("rank 0", "returned"), ("rank 1", "dead: killed by signal 9"))),
        # Findings
        ((DONE, WAITS), found(FindingKind.DEADLOCK), unjudged("deadlock", ("deadlock", "a deadlock"), is_hang=True)),
        ((DONE, DIED), found(FindingKind.BLOCKED), unjudged("blocked", ("rank 1", "dead: killed by signal 9"), ("blocked", "a blocked"), is_hang=True, is_death=True)),
        ((DIED, DIED), (Finding("a rank called MPI_Abort(1)", ""),), unjudged("a rank called MPI_Abort(1)", ("rank 0", "dead: killed by signal 9"), ("rank 1", "dead: killed by signal 9"), is_death=True)),
        ((WAITS, WAITS), found(FindingKind.DEADLOCK, is_busy=True), unjudged("deadlock", ("deadlock", "a deadlock"))),
        ((WAITS, WAITS), found(FindingKind.LIVELOCK) + found(FindingKind.BLOCKED, is_busy=True), unjudged("livelock", ("livelock", "a livelock"), ("blocked", "a blocked"))),
        ((WAITS, WAITS), found(FindingKind.DEADLOCK) * 2, unjudged("deadlock", ("deadlock", "a deadlock"), is_hang=True)),
        ((WAITS, WAITS), found(FindingKind.DEADLOCK, FindingKind.MISMATCHED_COLLECTIVE, FindingKind.MISMATCHED_MESSAGE), unjudged("mismatched collective", ("deadlock", "a deadlock"), ("mismatched collective", "a mismatched collective"), ("mismatched message", "a mismatched message"), is_hang=True)),
        ((MINE, OF_LAB), found(FindingKind.MISMATCHED_COLLECTIVE), unjudged("mismatched collective", ("rank 0", "raised MyError: no"), ("mismatched collective", "a mismatched collective"), traceback("MyError"), is_hang=True)),
        ((OF_LAB, WAITS), found(FindingKind.MISMATCHED_MESSAGE), unjudged("mismatched message", ("mismatched message", "a mismatched message"))),
        ((OF_LAB, DONE), found(FindingKind.MESSAGE_LEFT_OVER), unjudged("message left over", ("rank 0", "raised ValueError: no"), ("message left over", "a message left over"), traceback("ValueError"))),
        ((WAITS, WAITS), found(FindingKind.DEADLOCK, FindingKind.MISMATCHED_MESSAGE), unjudged("mismatched message", ("deadlock", "a deadlock"), ("mismatched message", "a mismatched message"))),
    ],
)  # fmt: skip
def test_the_verdict_on_a_run_that_was_not_completed(
    outcomes: tuple[Outcome, ...], findings: tuple[Finding, ...], expected: Verdict
) -> None:
    assert judge(CASE, Run(outcomes, findings)) == expected


def test_the_kinds_of_failure_in_which_ranks_wait_in_vain() -> None:
    assert {"deadlock", "livelock", "blocked", "mismatched collective"} == HANGS
    for kind in FindingKind:
        assert judge(CASE, Run((WAITS, WAITS), found(kind))).is_hang == (kind in HANGS)


def test_a_hang_shows_each_rank_with_the_call_that_it_sat_in_or_how_it_ended() -> None:
    text = Raised("MyError", "no\nmore", "", None)
    run = Run((WAITS, DIED, text, IN_LAB, DONE), found(FindingKind.DEADLOCK))
    waits = (
        Wait(0, "Recv(source=1)", HERE, (1,), is_blocked=True),
        Wait(1, "dead: killed by signal 9", is_blocked=False),
        Wait(2, "raised MyError: no …", is_blocked=False),
        Wait(3, "had returned from Ring.forward at ring.py:5", "", (0,), is_blocked=True),
        Wait(4, "returned", is_blocked=False),
    )
    assert judge(CASE, run).evidence == Evidence(waits=waits)
    assert judge(CASE, Run((DIED, DONE), found(FindingKind.DEADLOCK))).evidence is None
    assert came_back(None) == "returned from user code"


def test_a_hang_in_a_backward_pass_says_who_was_in_it() -> None:
    backward = (BackwardPass({"x": True}, True), BackwardPass({"x": True}, False))
    for outcomes, told in (
        ((replace(WAITS, in_backward=True), DONE), "rank 0 was in backward\nrank 1 had no backward pass, as nothing that it returned requires a gradient\nx requires a gradient on every rank"),
        ((WAITS, DONE), None),
    ):  # fmt: skip
        lines = dict(judge(CASE, Run(outcomes, found(FindingKind.DEADLOCK), backward=backward)).lines)
        assert lines.get("backward") == told
    raising = Run((replace(WAITS, in_backward=True), MINE), backward=backward[:1])
    assert [label for label, _ in judge(CASE, raising).lines] == ["rank 0", "backward", "traceback"]


# Runs from which every rank has returned


def spaces(domain: int, codomain: int = 1, **more: Any) -> Spaces:
    """Spaces over so many workers each."""
    on = (al.Space(al.Layout((4,), (workers,)), **more) for workers in (domain, codomain))
    return Spaces(*on)


class Answering(type(check_named("purity"))):  # type: ignore[misc]
    """A check that notes what it judges."""

    name = "answering"
    finds_leaks = False

    def __init__(self) -> None:
        self.judged: list[Any] = []

    def judge(self, *given: Any) -> Verdict:
        self.judged.append(given)
        return coherent(is_exact=True)

    def schedule_invariants(self, *given: Any) -> Any:
        self.judged.append(given)
        return {"forward": 1}


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Answering:
    answering = Answering()
    monkeypatch.setattr("adjointlab.engine.run_case.check_named", lambda name: answering)
    return answering


def observed(*each: Spaces, **leaks: Any) -> Run:
    return Run(
        tuple(
            Returned(RankObservation(f"of {rank}", declared, leaks.get(f"of_{rank}", ())))
            for rank, declared in enumerate(each)
        )
    )


def test_a_check_judges_the_observations_of_all_ranks(check: Answering) -> None:
    declared = spaces(2)
    run = observed(declared, spaces(2))
    assert judge(CASE, run) == coherent(is_exact=True)
    assert schedule_invariants(CASE, run) == {"forward": 1}
    assert check.judged == [(declared, ["of 0", "of 1"])] * 2
    assert spaces_of(run) is declared
    assert judgement_of(CASE, run) == (coherent(is_exact=True), declared)


def test_spaces_that_differ_are_incoherent_and_those_on_absent_ranks_are_refused(check: Answering) -> None:
    run = observed(spaces(2), spaces(2), spaces(1))
    assert judge(replace_ranks(3), run) == incoherent(
        "the ranks declare different spaces", ("ranks", "0 and 2")
    )
    for beyond, space in ((spaces(3), "domain"), (spaces(1, 4), "codomain")):
        (tensor,) = getattr(beyond, space).tensors
        assert judge(CASE, observed(beyond, beyond)) == unjudged(
            "the operator declares a tensor on rank 2, and its communicator has 2 ranks",
            ("tensor", str(tensor)),
            (
                "advice",
                "make a partition of as many ranks as the strategy is given, or say in the decorator, as ranks=(...), which numbers "
                "the subject supports",
            ),
        )
    far = al.Space(al.Layout((4,), al.Partition((2,), (5, 1))))
    verdict = judge(CASE, observed(*[Spaces(spaces(1).domain, far)] * 2))
    assert verdict.headline == "the operator declares a tensor on rank 5, and its communicator has 2 ranks"
    assert check.judged == []
    assert judge(replace_ranks(4), observed(*[spaces(4)] * 4)).is_coherent


def replace_ranks(ranks: int) -> Case:
    return Case("Ring", "purity", ranks, {}, InputSetting(), 0)


def test_communicators_that_are_left_are_told_by_the_check_that_finds_them(check: Answering) -> None:
    run = observed(spaces(2), spaces(2), of_1=(("forward", "makes one"),))
    assert judge(CASE, run).is_coherent
    check.finds_leaks = True
    advice = "make the communicator once, where the operator is made, or free it after use: an MPI library allows some 2000 at a time"
    assert judge(CASE, run) == unjudged(
        "communicators are made in calls and never freed",
        ("rank", "1"),
        ("forward", "makes one"),
        ("advice", advice),
        kind="communicator left open",
    )
    assert judge(CASE, observed(spaces(2), spaces(2))).is_coherent


def test_a_run_whose_first_rank_declares_nothing_has_neither_spaces_nor_invariants(check: Answering) -> None:
    for first in (MINE, DONE):
        run = Run((first, Returned(RankObservation(0, spaces(2)))))
        assert spaces_of(run) is None
        assert schedule_invariants(CASE, run) == {}
    assert check.judged == []


def test_a_check_may_have_nothing_to_say_before_it_judges_or_only_then(
    check: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    namesake = Raised("Inapplicable", "of a user", "", None, (Exception,))
    reasons = (raised(Inapplicable, message="no reference"), raised(Inapplicable, message="another"))
    for outcomes, reason in (
        ((DONE, *reasons), "no reference"),
        ((reasons[1], WAITS), "another"),
        ((DONE, namesake), None),
        ((DONE, DONE), None),
    ):
        run = Run(outcomes)
        assert inapplicable_because(run) == reason
        assert is_inapplicable(run) == (reason is not None)
        assert reason is None or judgement_of(CASE, run) is None
    assert inapplicable_because(Run((raised(Inapplicable, message=""),))) == ""
    assert is_inapplicable(Run((raised(Inapplicable, message=""),)))

    def judged_late(*given: Any) -> Verdict:
        raise Inapplicable("only now")

    monkeypatch.setattr(check, "judge", judged_late)
    assert judgement_of(CASE, observed(spaces(2), spaces(2))) is None
    assert judgement_of(CASE, Run((MINE, DONE))) == (judge(CASE, Run((MINE, DONE))), None)


def test_a_difference_that_nothing_can_be_said_of_is_a_verdict_of_its_own(
    check: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged_late(*given: Any) -> Verdict:
        raise Undecided("nothing is known")

    monkeypatch.setattr(check, "judge", judged_late)
    declared = spaces(2)
    found = judgement_of(CASE, observed(declared, spaces(2)))
    assert found == (unjudged("nothing is known", kind=UNDECIDED), declared)


@pytest.mark.parametrize("first", [Measurement.ONE_SAMPLE, Measurement.ALL])
def test_a_case_runs_again_where_its_judge_asks_what_rounding_does_and_is_on_record_as_it_was_drawn(
    first: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures: list[Measurement] = []
    recorded: list[Case] = []

    def run(case: Case, ranks: int, *, seed: int, schedule: object) -> Run:
        measures.append(case.measurement)
        return observed(spaces(2), spaces(2))

    def judge_measured(self: object, *given: object) -> Verdict:
        if measures[-1] is not Measurement.ALL:
            raise NotMeasured
        return coherent()

    monkeypatch.setattr(type(check_named(CASE.check)), "judge", judge_measured)
    runner = CaseRunner(run, lambda case, done, stage: recorded.append(case))
    _, judgement = run_and_judge(runner, CASE, measurement=first)
    assert judgement is not None
    assert judgement.verdict == coherent()
    assert measures == [Measurement.NONE, *([first] if first is not Measurement.ALL else []), Measurement.ALL]
    assert recorded == [CASE] * len(measures)
