"""Errors of one rank that all raise, and values on which all ranks must agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab.core.agreement import (
    CheckedOperator,
    check_alike,
    gather_together,
    raise_first,
    raise_together,
)
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip


def on_ranks(ranks: int, body: Callable[[Any], Any]) -> tuple[Any, ...]:
    result = SimulatedWorld(ranks).run(lambda context, _: body(context.comm), seed=0)
    assert result.completed, (result.outcomes, result.findings)
    return result.values


def raised(call: Callable[[], Any]) -> tuple[type[Exception], str]:
    try:
        call()
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    raise AssertionError("nothing was raised")


ERRORS: dict[str, tuple[dict[int, Exception], tuple[type[Exception], str]]] = {
    "of the first rank": ({0: ValueError("zero")}, (ValueError, "zero")),
    "of the last rank": ({2: TypeError("two")}, (TypeError, "two")),
    "of two ranks": ({1: TypeError("one"), 2: ValueError("two")}, (TypeError, "one")),
    "of all ranks": ({0: ValueError("zero"), 1: TypeError("one"), 2: TypeError("two")}, (ValueError, "zero")),
    "of a type of its own": ({1: UnicodeDecodeError("x", b"", 0, 1, "y")}, (ValueError, "'x' codec can't decode bytes in position 0-0: y")),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_all_ranks_raise_the_error_of_the_lowest_rank_that_has_one(name: str) -> None:
    errors, expected = ERRORS[name]

    def body(comm: Any) -> list[tuple[type[Exception], str]]:
        error: Any = errors.get(comm.Get_rank())

        def make() -> int:
            if error is not None:
                raise error
            return 1

        return [
            raised(lambda: raise_first(comm, error)),
            raised(lambda: raise_together(comm, make, [True])),  # type: ignore[arg-type]
            raised(lambda: gather_together(comm, make)),
        ]

    assert on_ranks(3, body) == ([expected] * 3,) * 3


def test_without_an_error_flags_are_counted_and_values_gathered() -> None:
    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        raise_first(comm, None)
        counts = raise_together(comm, lambda: None, (rank > 0, False, True, rank == 1))
        assert all(type(count) is int for count in counts)
        assert raise_together(comm, lambda: None) == []
        return counts, gather_together(comm, lambda: None if rank == 1 else (rank, "x"))

    assert on_ranks(3, body) == (([2, 0, 3, 1], [(0, "x"), None, (2, "x")]),) * 3


def test_other_errors_are_not_told_to_the_others() -> None:
    def body(comm: Any) -> None:
        for call in (raise_together, gather_together):
            with pytest.raises(ZeroDivisionError):
                call(comm, lambda: 1 // 0)  # type: ignore[operator]

    on_ranks(2, body)


ALIKE: dict[str, tuple[list[dict[str, object]], str]] = {
    "alike": ([{"root": 0, "mode": "x"}] * 3, ""),
    "of other types that are printed alike": ([{"root": 0}, {"root": "0"}, {"root": np.int64(0)}], ""),
    "the last rank's": (
        [{"a": 1, "root": 0}, {"a": 1, "root": 0}, {"a": 1, "root": 2}],
        "root: differs by rank: 0 on rank 0, 2 on rank 2; every rank gives the same",
    ),
    "the first rank's": (
        [{"root": None}, {"root": 1}, {"root": 1}],
        "root: differs by rank: None on rank 0, 1 on rank 1; every rank gives the same",
    ),
    "the first of two": (
        [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}],
        "a: differs by rank: 1 on rank 0, 2 on rank 2; every rank gives the same",
    ),
    "one that a rank lacks": (
        [{"a": 1}, {"a": 1, "b": 5}, {"a": 1}],
        "b: differs by rank: nothing on rank 0, 5 on rank 1; every rank gives the same",
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_arguments_that_differ_by_rank_are_the_same_error_on_all(name: str) -> None:
    arguments, message = ALIKE[name]

    def body(comm: Any) -> None:
        given = arguments[comm.Get_rank()]
        if not message:
            check_alike(comm, given)
            return
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            check_alike(comm, given)

    on_ranks(3, body)


class Doubled(LinearOperator):
    """x -> 2 x on the ranks of a cut; the third rank is inactive."""

    batched = True
    gain, fan_in = 2, 1

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.domain = Space(Layout((4,), Partition((2,))))
        self.codomain = Space(Layout((4,), Partition((2,))), name="y")

    def forward(self, *x: Any) -> Any:
        return 2 * x[0]

    adjoint = forward


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2,), (2,), (0,)], ""),
        ([(2, 1), (2, 1), (0, 1)], ""),
        ([(2, 5), (2, 5), (0, 5)], ""),
        ([(2, 5), (2, 4), (0, 5)], "in batches of [5, 4, 5] by rank"),
        ([(2, 1), (2,), (0,)], "in batches of [1, 0, 0] by rank"),
        ([(2, 3), (2, 3), (0,)], "in batches of [3, 3, 0] by rank"),
        ([(2,), (3,), (0,)], "x: shape (3,) on rank 1"),
        ([(2, 5), (3, 4), (1,)], "x: shape (3, 4) on rank 1"),
    ],
)
def test_a_checked_operator_agrees_on_the_batch_and_on_the_first_wrong_argument(
    shapes: list[tuple[int, ...]], message: str
) -> None:
    def body(comm: Any) -> None:
        checked = CheckedOperator(Doubled(comm))
        x = np.ones(shapes[comm.Get_rank()])
        for apply in (checked.forward, checked.adjoint, checked.H.forward, checked.H.adjoint):
            if not message:
                assert np.array_equal(apply(x), 2 * x)  # type: ignore[arg-type]
                continue
            with pytest.raises(ValueError, match=re.escape(message).replace("x:", "[xy]:")):
                apply(x)

    on_ranks(3, body)


@pytest.mark.parametrize("batch", [(), (1,), (2,)])
def test_arguments_that_fit_cost_one_collective(batch: tuple[int, ...]) -> None:
    class One:
        calls = 0

        def Get_rank(self) -> int:
            return 2

        def Get_size(self) -> int:
            return 3

        def Allgather(self, own: Any, every: Any) -> None:
            self.calls += 1
            every[:] = own

    comm = One()  # without any other collective
    CheckedOperator(Doubled(comm)).forward(np.ones((0, *batch)))
    assert comm.calls == 1


def test_a_checked_operator_declares_what_its_operator_does() -> None:
    class Kept(Doubled):
        is_identity = True

        def specification(self) -> Any:
            return "the program"

    class Alone:
        def Get_rank(self) -> int:
            return 0

    checked, kept = CheckedOperator(Doubled(Alone())), CheckedOperator(Kept(Alone()))
    assert [(o.is_identity, o.specification()) for o in (checked, kept)] == [
        (False, None),
        (True, "the program"),
    ]
    assert (kept.gain, kept.fan_in, kept.batched, str(kept), str(kept.H)) == (2, 1, True, "F", "F*")
    assert (kept.domain.tensors[0].name, kept.codomain.tensors[0].name) == ("x", "y")
    assert isinstance(kept.H, CheckedOperator)


def test_errors_are_told_apart_from_values_that_look_like_them() -> None:
    """Values that travel with errors may be tuples too."""

    def body(comm: Any) -> Any:
        return gather_together(comm, lambda: (True, "text"))

    assert on_ranks(2, body) == ([(True, "text")] * 2,) * 2
