"""A case runs under each of its schedules, unless an earlier job has; its body gives the check what the subject declares."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.hints import FaultKind, memory_order_hint
from adjointlab.checks.told import hints_told
from adjointlab.checks.verdict import PERHAPS, Inapplicable, Verdict, coherent, incoherent, unjudged
from adjointlab.core.declaration import SubjectError
from adjointlab.engine import case_body
from adjointlab.engine import run_case as module
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import RankObservation, body
from adjointlab.engine.interleavings import DEPENDS
from adjointlab.engine.run_case import CaseRunner, Judgement, Stage, run_case, with_follow_up
from adjointlab.engine.subject import Subject
from adjointlab.replaying import replay
from adjointlab.worlds.run import Raised, Returned, Run
from adjointlab.worlds.schedule import schedules_from
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.samples import RingShift

pytestmark = pytest.mark.mpi_skip

SPACE = al.Space(al.Layout((4,), (1,)))
COMPLEX = al.Space(al.Layout((4,), (1,)), dtype="complex128")
SPACES = Spaces(SPACE, SPACE)
CASE = Case("Ring", "adjoint", 2, {}, InputSetting(), 5)
WRONG = incoherent("wrong", ("a", "b"))
SMALL = incoherent("wrong", ("a", "b"), PERHAPS)


# The record, and the schedules


def test_a_case_is_recorded_before_it_runs_unless_it_has_ended_an_earlier_job() -> None:
    events: list[Any] = []
    ended, fresh = Run((), decisions="ended"), Run((), decisions="fresh")

    def run(payload: Any, ranks: int, **given: Any) -> Run:
        events.append(("run", payload, ranks, given))
        return fresh

    def known(case: Case, times: int = 1) -> Run | None:
        return ended if times < 2 else None

    runner = CaseRunner(run, lambda *given: events.append(("record", *given)), known)
    assert runner(CASE, 2) is ended
    assert events == []
    schedule = schedules_from(3, 2)[1]
    given = {"seed": 5, "schedule": schedule}
    assert runner(CASE, 2, **given, stage=Stage.DRAWING, done=7, times=2) is fresh
    assert events == [("record", CASE, 7, Stage.DRAWING), ("run", CASE, 2, given)]
    events.clear()
    assert CaseRunner(run)(CASE, 3) is fresh
    assert events == [("run", CASE, 3, {"seed": 0, "schedule": None})]
    CaseRunner(run, lambda *given: events.append(given))(CASE, 3)
    assert events[1] == (CASE, 0, Stage.REPLAYING)
    assert module.nothing_known(CASE) is None


def test_the_failure_that_a_case_is_a_step_from_is_recorded_unless_the_next_job_is_to_know_the_case() -> None:
    recorded: list[Any] = []
    failure = structs.replace(CASE, ranks=4)

    def record(*given: Any) -> None:
        recorded.append(given)

    def run(payload: Any, ranks: int, **given: Any) -> Run:
        return Run(())

    for known in (module.nothing_known, lambda case, times=1: None):
        CaseRunner(run, record, known)(CASE, 2, stage=Stage.SHRINKING, step_from=failure)
    assert recorded == [(failure, 0, Stage.STEPPING), (CASE, 0, Stage.SHRINKING)]


def test_the_stages_have_the_names_that_stand_in_files() -> None:
    assert [*map(str, Stage)] == ["drawing", "shrinking", "stepping", "confirming", "replaying"]


@pytest.mark.parametrize(
    ("number", "unsaid", "expected"),
    [(0, (), "verdict 0"), (3, (), "of all"), (3, (0,), None), (3, (2,), None), (3, (0, 1, 2), None)],
)
def test_a_case_is_judged_under_all_its_schedules(
    number: int, unsaid: tuple[int, ...], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = schedules_from(5, number) if number else ()
    case = Case("Ring", "adjoint", 2, {}, InputSetting(), 5, schedules)
    runs: list[Run] = []
    asked: list[Any] = []

    def run(payload: Case, ranks: int, *, seed: int, schedule: Any = None) -> Run:
        asked.append((payload, ranks, seed, schedule))
        # The spaces are those that the first run declares.
        value = None if runs else RankObservation(0, SPACES)
        runs.append(Run((Returned(value),), decisions=str(len(runs))))
        return runs[-1]

    def judge(case: Case, run: Run) -> Verdict:
        if runs.index(run) in unsaid:
            raise Inapplicable
        return incoherent(f"verdict {runs.index(run)}")

    def judge_all(case: Case, of: Any, verdicts: Any, invariants: Any) -> Verdict:
        assert invariants is module.schedule_invariants
        assert of == runs
        assert [each.headline for each in verdicts] == [f"verdict {each}" for each in range(number)]
        return incoherent("of all")

    monkeypatch.setattr(Run, "__eq__", lambda self, other: self is other)
    monkeypatch.setattr(module, "judge", judge)
    monkeypatch.setattr(module, "judge_all", judge_all)
    judgement = run_case(run, case)
    # Up to the first run of which there is nothing to say.
    runs_judged = (schedules or (None,))[: unsaid[0] + 1 if unsaid else None]
    assert asked == [(case, 2, 5, schedule) for schedule in runs_judged]
    assert judgement == (None if expected is None else Judgement(incoherent(expected), SPACES))


# The follow-up


@pytest.mark.parametrize(
    ("verdict", "answer", "settings", "hint"),
    [
        (WRONG, Judgement(coherent(), SPACES), InputSetting(), None),
        (WRONG, Judgement(coherent(), SPACES), InputSetting(0, "numpy", "offset"), memory_order_hint(["offset"])),
        (WRONG, Judgement(coherent(), SPACES), InputSetting(0, "numpy", "row-major", "strided"), memory_order_hint(["strided"])),
        (WRONG, Judgement(coherent(), Spaces(SPACE, COMPLEX)), InputSetting(), "complex"),
        (WRONG, Judgement(coherent(), Spaces(COMPLEX, SPACE)), InputSetting(), "complex"),
        # A small difference needs values with many digits, and says nothing of real ones or of memory.
        (SMALL, Judgement(coherent(), Spaces(COMPLEX, SPACE)), InputSetting(), None),
        (SMALL, Judgement(coherent(), SPACES), InputSetting(0, "numpy", "offset"), None),
        (WRONG, Judgement(coherent(), None), InputSetting(), None),
        (WRONG, Judgement(WRONG, SPACES), InputSetting(0, "numpy", "offset"), None),
        (WRONG, None, InputSetting(0, "numpy", "offset"), None),
    ],
)  # fmt: skip
def test_a_wrong_result_is_explained_by_the_follow_up_of_its_check(
    verdict: Verdict,
    answer: Judgement | None,
    settings: InputSetting,
    hint: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Case] = []

    def answered(run: Any, case: Case) -> Judgement | None:
        asked.append(case)
        return answer

    explained: list[Any] = []
    check = SimpleNamespace(
        follow_up=lambda: SimpleNamespace(name="witness"),
        explained=lambda *given: explained.append(given) or incoherent("explained"),
        premise=lambda: None,
    )
    monkeypatch.setattr(module, "run_case", answered)
    monkeypatch.setattr(module, "check_named", lambda name: check)
    run: Any = None
    case = Case("Ring", "adjoint", 2, {}, settings, 5)
    found = with_follow_up(run, case, verdict)
    assert found == incoherent("explained")
    assert asked == [Case("Ring", "witness", 2, {}, settings, 5)]
    assert explained == [(verdict, answer and answer.verdict)]
    told = None if found.evidence is None else found.evidence.hint
    if hint == "complex":
        assert told is not None
        assert "complex" in told.text
    else:
        assert told == hint
    # What the check says itself stands.
    own = Evidence(waits=())
    check.explained = lambda *given: incoherent("explained", evidence=own)
    assert with_follow_up(run, case, verdict).evidence is own
    for other in (unjudged("deadlock"), coherent(), incoherent(DEPENDS)):
        assert with_follow_up(run, case, other) is other
    check.follow_up = lambda: None
    assert with_follow_up(run, case, verdict) is verdict
    assert len(asked) == 2


@pytest.mark.parametrize("check", ["adjoint", "matrix"])
@pytest.mark.parametrize(
    ("forward", "backward", "said"),
    [
        (lambda comm, x: x * x, lambda comm, y: 2 * y, "forward is not linear, or depends on more than its argument: at x["),
        (lambda comm, x: 2 * x + 5, lambda comm, y: 2 * y, "forward is not linear, or depends on more than its argument: at x[0] (rank 0) F(0) is 5"),
        (lambda comm, x: 2 * x, lambda comm, y: abs(y), "adjoint is not linear, or depends on more than its argument: at x["),
        (lambda comm, x: 2 * x, lambda comm, y: 4 * y, None),
    ],
)  # fmt: skip
def test_a_function_that_is_not_linear_is_told_so_where_entries_of_a_matrix_are_told(
    forward: Any, backward: Any, said: str | None, check: str
) -> None:
    verdict = explained_pair(forward, backward, check)
    assert verdict.headline == "adjoint is not the transpose of forward"
    told = dict(verdict.lines).get("perhaps")
    assert told is None if said is None else told is not None and told.startswith(said)
    # Twice the entry is no relation of what has no entries.
    assert [hint.kind for hint in hints_told(verdict)] == ([FaultKind.DOUBLED] if said is None else [])


def test_a_rectifier_is_told_to_be_not_linear_where_all_entries_of_its_matrix_are_right() -> None:
    verdict = explained_pair(lambda comm, x: np.maximum(x, 0), lambda comm, y: y, "adjoint")
    assert "forward is not linear, or depends on more than its argument" in dict(verdict.lines)["perhaps"]
    assert hints_told(verdict) == ()


def explained_pair(forward: Any, backward: Any, check: str) -> Verdict:
    space = al.Space(al.Layout((3,), (1,)))
    subject = al.subject.pair(forward, backward)(lambda draw, ranks: {})
    setting = InputSetting(3, "numpy", "strided")
    case = Case(subject.name, check, 1, {"domain": space, "codomain": space}, setting, 0)
    return replay(SimulatedWorld(1), subject, case).verdict


# The body


def running(
    subject: Subject, observe: Any, parameters: Any, monkeypatch: pytest.MonkeyPatch, **of_case: Any
) -> Run:
    """Run the body of a case on two ranks, with this observation for a check."""
    monkeypatch.setattr(case_body, "check_named", lambda name: SimpleNamespace(observe=observe))
    setting = InputSetting(of_case.pop("seed", 0))
    case = Case("Ring", "adjoint", 2, parameters, setting, 5, **of_case)
    return SimulatedWorld(2).run(body(subject), case, 2)


def ring(**options: Any) -> Subject:
    return al.subject.operator(RingShift, **options)(lambda draw, ranks: {})


LAYOUT = al.Layout((4,), (2,))


@pytest.mark.parametrize("reference", [None, lambda *x, gain, **arguments: (x, {**arguments, "gain": gain})])
@pytest.mark.parametrize("rank_local", [(), ("json",)])
def test_the_body_gives_the_check_what_case_and_subject_declare(
    reference: Any, rank_local: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[CheckContext] = []

    def observe(context: CheckContext) -> str:
        contexts.append(context)
        return f"of rank {context.rank}"

    subject = ring(reference=reference, rank_local=rank_local)
    parameters = {"layout": LAYOUT, "space": SPACE, "gain": 3}
    monkeypatch.setattr(Subject, "make", lambda self, comm, given: RingShift(comm, given["layout"]))
    run = running(subject, observe, parameters, monkeypatch, seed=7, same_on=1, values="large")
    declared = Spaces(al.Space(LAYOUT), al.Space(LAYOUT))
    assert run.values == tuple(RankObservation(f"of rank {rank}", declared) for rank in range(2))
    for context in contexts:
        assert (context.setting, context.values, context.beyond) == (InputSetting(7), "large", (1, 8))
        assert context.needs_run == bool(rank_local)
        if reference is None:
            assert context.reference is None
        else:
            assert context.reference is not None
            # The twin of an operator gets no spaces; a gain only where it takes one.
            assert context.reference(1, 2) == ((1, 2), {"layout": LAYOUT, "gain": 3})
    assert sorted(context.rank for context in contexts) == [0, 1]


@pytest.mark.parametrize(("seed", "fill"), [(0, "nan"), (11, "nan"), (12, "77.0"), (23, "77.0"), (24, "nan")])
def test_fresh_memory_is_filled_for_layers_alone(
    seed: int, fill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[Any] = []
    monkeypatch.setattr(case_body, "filled", lambda value: filled.append(value) or nullcontext())
    for subject in (ring(), al.subject.layer(RingShift, RingShift)(lambda draw, ranks: {})):
        monkeypatch.setattr(Subject, "make", lambda self, comm, given: RingShift(comm, LAYOUT))
        running(subject, lambda context: context.instance, {}, monkeypatch, seed=seed)
    assert [str(value) for value in filled] == ["None"] * 2 + [fill] * 2


def test_only_the_lab_may_say_that_a_check_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_user(context: CheckContext) -> None:
        raise Inapplicable("so I say")

    namespace: dict[str, Any] = {"Inapplicable": Inapplicable}
    source = "def of_lab(context): raise Inapplicable('no reference')"
    exec(compile(source, f"{al.__path__[0]}/checks/told.py", "exec"), namespace)  # noqa: S102
    monkeypatch.setattr(Subject, "make", lambda self, comm, given: RingShift(comm, LAYOUT))
    first = running(ring(), of_user, {}, monkeypatch).outcomes[0]
    assert isinstance(first, Raised)
    assert (first.kind, first.message) == (
        "RuntimeError",
        "the code under test raised the checks' own Inapplicable",
    )
    first = running(ring(), namespace["of_lab"], {}, monkeypatch).outcomes[0]
    assert isinstance(first, Raised)
    assert first.is_a(Inapplicable)


@pytest.mark.parametrize(
    ("arrays", "process_group", "warmed", "loaded"),
    [
        (("numpy",), False, 0, 0),
        (("numpy", "torch"), False, 1, 0),
        (("torch-cuda",), False, 1, 0),
        (("numpy",), True, 0, 1),
        (("cupy",), False, 0, 0),
    ],
)
def test_torch_is_made_ready_before_anything_is_watched(
    arrays: tuple[str, ...], process_group: bool, warmed: int, loaded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def load() -> None:
        done.append("loaded")
        raise case_body.MissingTorch("none")

    monkeypatch.setattr(case_body.arrays, "warm_up_torch", lambda **_: done.append("warmed"))
    monkeypatch.setattr(case_body, "load_process_groups", load)
    body(ring(arrays=arrays, process_group=process_group))
    assert (done.count("warmed"), done.count("loaded")) == (warmed, loaded)


def test_the_reference_is_refused_arguments_that_it_does_not_take() -> None:
    def reference(x: Any, y: Any, dim: int, side: int) -> Any:
        return (x, y, dim, side)

    def with_gain(x: Any, gain: int) -> Any:
        return (x, gain)

    assert case_body._referred(reference, {"dim": 0, "gain": 2, "side": 3}, 1, 2) == (1, 2, 0, 3)
    assert case_body._referred(with_gain, {"gain": 2}, 1) == (1, 2)
    with pytest.raises(
        SubjectError, match=r"^the reference is called as .*reference\(x, x1, dim=…, sides=…\), but"
    ):
        case_body._referred(reference, {"dim": 0, "sides": 3}, 1, 2)


def test_the_twin_of_a_layer_gets_spaces_and_the_reference_of_an_operator_none() -> None:
    parameters = {"domain": SPACE, "side": 3}
    layer = al.subject.layer(RingShift, RingShift)(lambda draw, ranks: {})
    assert case_body._arguments(layer, parameters) == parameters
    assert case_body._arguments(ring(), parameters) == {"side": 3}
