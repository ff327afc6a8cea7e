"""A checked operator raises on every rank what its operator raises on the one that was given a wrong argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core.agreement import CheckedOperator
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.repartition import Repartition

GRID = Partition((3,))
CUT, WHOLE, ONE = Layout((6,), GRID), Layout((6,), GRID, axes=(None,)), Layout((6,), Partition((1,)))

OPERATORS: dict[str, Any] = {
    "Broadcast": lambda comm: Broadcast(comm, Layout((6,), Partition((1,)), axes=(None,)), GRID),
    "AllGather": lambda comm: AllGather(comm, CUT, 0),
    "Repartition": lambda comm: Repartition(comm, CUT, ONE),
}

WRONG: dict[str, Any] = {
    "another shape": lambda x: np.zeros(9),
    "another element type": lambda x: x.astype(np.float32),
    "no array": lambda x: "x",
    "a batch that the others have not": lambda x: np.zeros((*x.shape, 2)),
    "an argument too many": lambda x: (x, x),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("direction", ["forward", "adjoint", "H"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_wrong_argument_on_one_rank_is_the_same_error_on_all(
    name: str, direction: str, wrong: str, spmd: Any
) -> None:
    def body(comm: Any) -> str:
        operator = CheckedOperator(OPERATORS[name](comm))
        space = operator.domain if direction == "forward" else operator.codomain
        apply = operator.H.forward if direction == "H" else getattr(operator, direction)
        x: Any = np.zeros(space.tensors[0].layout.local_shape(comm.Get_rank()))
        given = WRONG[wrong](x) if comm.Get_rank() == 0 else x
        with pytest.raises((ValueError, TypeError)) as raised:
            apply(*(given if isinstance(given, tuple) else (given,)))
        return str(raised.value)

    assert len(set(spmd(3, body))) == 1


@pytest.mark.parametrize("one", [0, 1, 2])
def test_a_batch_that_one_rank_alone_has_or_has_not_is_refused(one: int, spmd: Any) -> None:
    def body(comm: Any) -> str:
        operator, rank = CheckedOperator(OPERATORS["AllGather"](comm)), comm.Get_rank()
        messages = []
        for is_in_batch in (rank == one, rank != one):
            with pytest.raises(ValueError, match="in batches of") as raised:
                operator.forward(np.zeros((2, 3) if is_in_batch else 2))
            messages.append(str(raised.value))
        return " ".join(messages)

    assert len(set(spmd(3, body))) == 1


@pytest.mark.parametrize("name", OPERATORS)
def test_right_arguments_give_what_the_operator_gives(name: str, spmd: Any) -> None:
    def body(comm: Any) -> None:
        operator = OPERATORS[name](comm)
        checked = CheckedOperator(operator)
        assert np.array_equal(checked.matrix(), operator.matrix())
        assert np.array_equal(checked.H.matrix(), operator.H.matrix())
        assert str(checked) == str(operator)

    spmd(3, body)
