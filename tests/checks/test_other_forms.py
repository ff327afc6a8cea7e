"""The other forms of an operator: into memory that is given, and in place, each with what it leaves in that memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.forms import _are, other_forms
from adjointlab.core.operator import Direction
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip

LAYOUT, OTHER = al.Layout((2,), (1,)), al.Layout((3,), (1,))
PAIR = al.Space(al.Tensor(LAYOUT, "float64", name="a"), al.Tensor(OTHER, "float64", name="b"))
ONE, THREE = al.Space(LAYOUT), al.Space(OTHER)
FORWARD, ADJOINT = Direction.FORWARD, Direction.ADJOINT


class Doubles(al.LinearOperator):
    """Twice its argument, by a form for which `out` may be given."""

    def __init__(self, domain: al.Space = ONE, codomain: al.Space = ONE, rank: int = 0) -> None:
        self.domain, self.codomain = domain, codomain
        self.comm: Any = SimpleNamespace(Get_rank=lambda: rank)
        self.calls: list[tuple[str, Any]] = []

    def forward(self, x: Any, out: Any = None) -> Any:
        self.calls.append(("forward", None if out is None else out.copy()))
        return 2 * x if out is None else np.multiply(2, x, out=out)

    def adjoint(self, y: Any, out: Any = None) -> Any:
        self.calls.append(("adjoint", None if out is None else out.copy()))
        return 2 * y if out is None else np.multiply(2, y, out=out)


def forms_of(
    operator: Any, direction: Direction = FORWARD, dtype: str = "float64"
) -> list[tuple[str, list[float], bool]]:
    argument = np.array([3, 5], dtype)
    return [
        (form.name, form.result[0].tolist(), form.is_returned)
        for form in other_forms(operator, direction, [argument], [2 * argument])
    ]


@pytest.mark.parametrize("direction", [FORWARD, ADJOINT])
def test_results_are_written_into_memory_that_holds_nothing_that_counts(direction: Direction) -> None:
    operator = Doubles()
    assert forms_of(operator, direction) == [("into `out`", [6.0, 10.0], True)]
    ((name, before),) = operator.calls
    assert name == direction
    assert np.isnan(before).all()
    assert forms_of(operator, direction, "int32") == [("into `out`", [6, 10], True)]
    assert operator.calls[1][1].tolist() == [2**31 - 1] * 2


@pytest.mark.parametrize(("direction", "is_written"), [(FORWARD, False), (ADJOINT, True)])
def test_a_rank_that_has_no_part_of_the_result_passes_no_memory(
    direction: Direction, is_written: bool
) -> None:
    """Rank 1 is in the partition of the domain alone."""
    operator = Doubles(al.Space(al.Layout((4,), (2,))), ONE, rank=1)
    assert forms_of(operator, direction) == [("into `out`", [6.0, 10.0], True)]
    assert [before is not None for _, before in operator.calls] == [is_written]


class Copying(Doubles):
    """Returns something else than the memory that it is given."""

    def forward(self, x: Any, out: Any = None) -> Any:
        return super().forward(x, out).copy()


class Required(Doubles):
    def forward(self, x: Any, out: Any) -> Any:  # type: ignore[override]
        return super().forward(x, out)


class OtherDefault(Doubles):
    def adjoint(self, y: Any, out: Any = ()) -> Any:
        return 2 * y


class PositionOnly(Doubles):
    def forward(self, x: Any, out: Any = None, /) -> Any:
        return super().forward(x, out)


class AnyNumber(Doubles):
    def forward(self, *x: Any, out: Any = None) -> Any:
        return super().forward(x[0], out)


def test_the_memory_is_to_be_returned_and_out_has_to_follow_the_convention() -> None:
    assert forms_of(Copying()) == [("into `out`", [6.0, 10.0], False)]
    for kind in (Required, OtherDefault, PositionOnly):
        for direction in (FORWARD, ADJOINT):
            assert forms_of(kind(), direction) == []
    assert forms_of(AnyNumber()) == []
    assert forms_of(AnyNumber(), ADJOINT) == [("into `out`", [6.0, 10.0], True)]


class InPlace(al.LinearOperator):
    def __init__(
        self, domain: al.Space = ONE, codomain: al.Space = ONE, returns: Any = lambda x: None
    ) -> None:
        self.domain, self.codomain, self.returns = domain, codomain, returns
        self.comm: Any = SimpleNamespace(Get_rank=lambda: 0)

    def forward(self, x: Any) -> Any:
        return 2 * x

    adjoint = forward

    def forward_(self, x: Any) -> Any:
        x *= 2
        return self.returns(x)

    def adjoint_(self, y: Any) -> Any:
        y *= 3
        return self.returns(y)


@pytest.mark.parametrize(
    ("returns", "is_returned"),
    [
        (lambda x: None, True),
        (lambda x: x, True),
        (lambda x: x[:], True),
        (lambda x: (x,), True),
        (lambda x: x.copy(), False),
        (lambda x: x[:1], False),
        (lambda x: (x, x), False),
        (lambda x: "x", False),
    ],
)
def test_a_form_in_place_returns_nothing_or_the_memory_of_its_argument(
    returns: Any, is_returned: bool
) -> None:
    operator = InPlace(returns=returns)
    assert forms_of(operator) == [("in place", [6.0, 10.0], is_returned)]
    assert forms_of(operator, ADJOINT) == [("in place", [9.0, 15.0], is_returned)]


def test_both_spaces_are_laid_out_alike_where_an_operator_works_in_place() -> None:
    assert forms_of(InPlace(ONE, al.Space(LAYOUT, name="y")))
    assert not forms_of(InPlace(ONE, THREE))
    assert not forms_of(InPlace(ONE, al.Space(LAYOUT, dtype="float32")))
    assert not forms_of(InPlace(ONE, PAIR))

    class OneWay(InPlace):
        adjoint_ = None  # type: ignore[assignment]

    assert not forms_of(OneWay())


def test_arguments_stay_as_they_are() -> None:
    argument = np.array([3.0, 5.0])
    other_forms(InPlace(), FORWARD, [argument], [2 * argument])
    assert argument.tolist() == [3.0, 5.0]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda memory: memory, True),
        (lambda memory: memory.view(), True),
        (lambda memory: memory.reshape(3, 2), False),
        (lambda memory: memory[:1], False),
        (lambda memory: memory[:, :2], False),
        (lambda memory: np.ones((2, 3)), False),
        (lambda memory: np.ones((3, 3)), False),
        (lambda memory: memory.tolist(), False),
    ],
)
def test_what_is_returned_is_the_memory_or_a_view_of_all_of_it(returned: Any, expected: bool) -> None:
    memory = np.zeros((2, 3))
    assert _are(returned(memory), [memory]) is expected
    assert _are((returned(memory), memory), [memory, memory]) is expected


def test_memory_without_elements_is_the_same_wherever_it_lies() -> None:
    memory = np.zeros((0, 3))
    assert _are(np.zeros((0, 3)), [memory])
    assert not _are(np.zeros((0, 2)), [memory])
    assert not _are(np.zeros((3, 0)), [memory])


class DoublesInPlace(al.LinearOperator):
    """Twice its argument, which one of the two forms also writes into."""

    def __init__(self, comm: Any, space: al.Space, writes: str) -> None:
        self.comm, self.domain, self.codomain, self._writes = comm, space, space, writes

    def forward(self, x: Any, out: Any = None) -> Any:
        doubled = 2 * x if out is None else np.multiply(2, x, out=out)
        if self._writes == ("plain" if out is None else "out"):
            x *= 2
        return doubled

    def adjoint(self, y: Any, out: Any = None) -> Any:
        return 2 * y if out is None else np.multiply(2, y, out=out)


@pytest.mark.parametrize(("writes", "only"), [("plain", None), ("out", "into `out`")])
def test_an_argument_that_another_form_alone_writes_into_is_said_to_be(writes: str, only: str | None) -> None:
    @al.subject(DoublesInPlace)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(space=al.Space(al.Layout((2 * ranks,), (ranks,))), writes=writes)

    verdict = investigate(al.SimulatedWorld(2), lines, "purity", Budget(5, seed=1)).verdict
    assert verdict.headline == "forward writes into its argument"
    assert dict(verdict.lines).get("only") == only
