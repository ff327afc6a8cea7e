"""A call that puts a subject to all its checks."""

from __future__ import annotations

import signal
import traceback
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.verdict import coherent, incoherent
from adjointlab.engine import subject_check
from adjointlab.engine.case import Case
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject_check import _text, verdicts_of
from adjointlab.worlds.interrupts import Terminated

pytestmark = pytest.mark.mpi_skip


class Shift(al.LinearOperator):
    """Hands each rank's number on to the next, or keeps it."""

    def __init__(self, comm: Any, is_sent: bool, factor: int) -> None:
        self.comm, self.is_sent, self.factor = comm, is_sent, factor
        layout = al.Layout((comm.Get_size(),), al.Partition((comm.Get_size(),)))
        self.domain, self.codomain = al.Space(layout), al.Space(layout, name="y")

    def _moved(self, x: Any, step: int) -> Any:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        got = np.array(x)
        if self.is_sent:
            self.comm.Sendrecv(np.ascontiguousarray(x), (rank + step) % size, 0, got, (rank - step) % size, 0)
        return got

    def forward(self, x: Any) -> Any:
        return self.factor * self._moved(x, 1)

    def adjoint(self, y: Any) -> Any:
        return self._moved(y, -1)


def shift(*, is_sent: bool = True, factor: int = 1) -> Any:
    return al.subject.operator(Shift, name="shift")(lambda draw, ranks: dict(is_sent=is_sent, factor=factor))


def test_a_subject_is_put_to_all_its_checks(world: al.SimulatedWorld) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdicts = al.check_subject(shift(), cases=6)
    assert {"adjoint", "matrix", "purity"} <= verdicts.keys()
    assert all(verdict.is_coherent for verdict in verdicts.values())
    with pytest.raises(AssertionError, match="shift adjoint: adjoint is not the transpose of forward"):
        al.check_subject(shift(factor=2), cases=6, ranks=2)
    with pytest.raises(TypeError, match="subject: Shift is a class; decorate a strategy of its cases with"):
        al.check_subject(Shift)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="subject: an int is not a subject; decorate a strategy"):
        al.check_subject(3)  # type: ignore[arg-type]


def test_a_subject_may_be_put_to_some_checks_alone(world: al.SimulatedWorld) -> None:
    wrong = shift(factor=2)
    assert list(al.check_subject(wrong, cases=6, checks=["purity", "linearity"], world=world)) == [
        "linearity",
        "purity",
    ]
    with pytest.raises(ValueError, match=r"check: 'adjont' is not one of .*; did you mean adjoint"):
        al.check_subject(wrong, checks=["adjont"], world=world)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"cases": None}, ValueError, "cases: None is not a whole number of at least 1"),
        ({"cases": 2.5}, ValueError, "cases: 2.5 is not a whole number of at least 1"),
        ({"ranks": "2"}, ValueError, "ranks: '2' is not a whole number of at least 1 and at most 1024"),
        ({"seed": 2.5}, TypeError, "seed: 2.5 is not a whole number"),
        (
            {"checks": "matrix"},
            TypeError,
            "checks: 'matrix' is not a list of names of checks, such as ['adjoint']",
        ),
        ({"checks": []}, TypeError, "checks: [] is not a list of names of checks, such as ['adjoint']"),
        (
            {"checks": ["purity", "training"]},
            ValueError,
            "checks: 'training' does not apply to shift, to which these do: adjoint, matrix, linearity, declared, purity, reentrancy",
        ),
        (
            {"world": 3},
            TypeError,
            "world: an int is not a world: give an instance of adjointlab.SimulatedWorld, MPIWorld or TorchWorld, or none",
        ),
    ],
)
def test_limits_and_a_world_that_are_none_are_refused_by_their_names(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as raised:
        al.check_subject(shift(), **arguments)
    assert str(raised.value) == message


def test_where_no_rank_communicates_a_warning_says_so_at_the_line_of_the_call(
    world: al.SimulatedWorld,
) -> None:
    with pytest.warns(UserWarning, match="^shift: no rank communicated with another in any case") as caught:
        al.check_subject(shift(is_sent=False), cases=6, world=world)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("ranks", "of_its_own"), [(3, 3), (None, 8)])
def test_all_checks_run_in_the_world_or_in_one_of_their_own_that_is_closed(
    monkeypatch: pytest.MonkeyPatch, world: al.SimulatedWorld, ranks: int | None, of_its_own: int
) -> None:
    ran: list[tuple[Any, ...]] = []
    closed: list[int] = []

    class World(al.SimulatedWorld):
        def close(self) -> None:
            closed.append(self.ranks)
            super().close()

    def judged(*given: Any) -> SearchResult:
        assert not closed
        ran.append(given)
        return SearchResult("s", given[2], "simulated", coherent())

    checked: Any = object()
    monkeypatch.setattr(subject_check, "SimulatedWorld", World)
    monkeypatch.setattr(subject_check, "investigate", judged)
    monkeypatch.setattr(subject_check, "checks_of", lambda subject: ("one", "two"))
    budget = Budget(5, ranks=ranks)
    assert verdicts_of(checked, budget, world) == {"one": coherent(), "two": coherent()}
    assert ran == [(world, checked, name, budget) for name in ("one", "two")]
    assert closed == []
    ran.clear()
    verdicts_of(checked, budget, None)
    assert closed == [of_its_own]
    assert [type(given[0]) for given in ran] == [World] * 2


def test_a_failure_is_told_with_its_smallest_case() -> None:
    case = Case("s", "adjoint", 3, {"inputs": [(4, 3)]}, InputSetting(), 0)
    result = SearchResult("s", "adjoint", "simulated", incoherent("wrong", ("rank", "1")), case=case)
    assert _text(result) == f"s adjoint: {result.verdict}\n  ranks 3\n  inputs [(4, 3)]"
    setting = InputSetting(0, "torch", primal_order="column-major")
    case = structs.replace(case, setting=setting, values="infinite")
    unusual = SearchResult("s", "adjoint", "simulated", incoherent("wrong"), case=case)
    assert _text(unusual).endswith("inputs [(4, 3)]\n  memory torch, x column-major\n  values infinite")
    without = SearchResult("s", "adjoint", "simulated", incoherent("wrong"))
    assert _text(without) == "s adjoint: wrong"


def test_the_spaces_of_a_failure_are_told_as_in_reports(world: al.SimulatedWorld) -> None:
    def doubled(comm: Any, x: Any) -> Any:
        return 2 * x

    def kept(comm: Any, y: Any) -> Any:
        return np.array(y)

    @al.subject.pair(doubled, kept)
    def pairs(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((3,), al.Partition((ranks,)), axes=(None,)))
        return {"domain": space, "codomain": space}

    with pytest.raises(AssertionError) as raised:
        al.check_subject(pairs, world=world, cases=3)
    assert str(raised.value).endswith("\n  ranks 1\n  partition 1   layout [3] whole   float64")


def test_a_failure_is_told_with_the_hints_on_its_kind() -> None:
    evidence = Evidence(hint=Hint(FaultKind.DOUBLED, "twice the expected value"))
    case = Case("s", "adjoint", 3, {}, InputSetting(), 0)
    verdict = incoherent("wrong", evidence=evidence)
    result = SearchResult("s", "adjoint", "simulated", verdict, case=case)
    assert _text(result) == "s adjoint: wrong\n  twice the expected value\n  ranks 3"
    assert _text(replace(result, case=None)) == "s adjoint: wrong\n  twice the expected value"


def test_a_traceback_is_told_from_the_frames_of_the_user(world: al.SimulatedWorld) -> None:
    class Broken(al.LinearOperator):
        def __init__(self, comm: Any) -> None:
            raise ValueError("no such thing")

        def forward(self, x: Any) -> Any: ...

        def adjoint(self, y: Any) -> Any: ...

    @al.subject.operator(Broken)
    def broken(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    with pytest.raises(AssertionError) as raised:
        verdicts_of(broken, Budget(2, ranks=1), world)
    files = [line for line in str(raised.value).splitlines() if line.startswith("  File")]
    (only,) = files
    assert __file__ in only


def shown(error: BaseException) -> list[str]:
    """The functions of its traceback that pytest and IPython show."""
    frames = traceback.walk_tb(error.__traceback__)
    return [frame.f_code.co_name for frame, _ in frames if "__tracebackhide__" not in frame.f_locals]


def test_a_failure_is_shown_at_the_line_of_the_call(world: al.SimulatedWorld) -> None:
    with pytest.raises(AssertionError) as raised:
        al.check_subject(shift(factor=2), cases=2, world=world)
    assert shown(raised.value) == ["test_a_failure_is_shown_at_the_line_of_the_call"]


def test_an_interrupt_is_shown_without_what_it_has_interrupted(
    monkeypatch: pytest.MonkeyPatch, world: al.SimulatedWorld
) -> None:
    def interrupted(*arguments: Any) -> SearchResult:
        raise Terminated(signal.SIGTERM)

    monkeypatch.setattr(subject_check, "investigate", interrupted)
    with pytest.raises(Terminated) as raised:
        al.check_subject(shift(), world=world)
    assert shown(raised.value) == ["test_an_interrupt_is_shown_without_what_it_has_interrupted"]
    assert raised.value.__suppress_context__


def test_the_first_check_that_fails_ends_the_call(
    monkeypatch: pytest.MonkeyPatch, world: al.SimulatedWorld
) -> None:
    ran: list[str] = []

    def judged(world: Any, subject: Any, check: str, budget: Any) -> SearchResult:
        ran.append(check)
        verdict = incoherent("wrong") if check == "two" else coherent()
        return SearchResult("s", check, "simulated", verdict)

    checked: Any = object()
    monkeypatch.setattr(subject_check, "investigate", judged)
    monkeypatch.setattr(subject_check, "checks_of", lambda subject: ["one", "two", "three"])
    with pytest.raises(AssertionError, match=r"^s two: wrong$"):
        verdicts_of(checked, Budget(5), world)
    assert ran == ["one", "two"]
