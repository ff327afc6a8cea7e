"""The direct sum of operators."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjointlab.core.agreement import CheckedOperator
from adjointlab.core.direct_sum import DirectSumOperator
from adjointlab.core.operator import LinearOperator, apply_forward
from adjointlab.core.program import Program

from .test_operator import Both, Dense, matrices, moved, small

pytestmark = pytest.mark.mpi_skip


@given(st.data(), st.sampled_from(["float64", "complex128", "int64"]))
@small
def test_the_matrix_of_a_direct_sum_is_block_diagonal(data: st.DataObject, dtype: str) -> None:
    a, b = (data.draw(matrices(*shape, dtype)) for shape in ((2, 3), (3, 1)))
    expected = np.block([[a, np.zeros((2, 1), dtype)], [np.zeros((3, 3), dtype), b]])
    summed = DirectSumOperator(Dense(a), Dense(b))
    assert np.array_equal(summed.matrix(), expected)
    assert np.array_equal(summed.H.matrix(), expected.conj().T)
    assert summed.H.domain == summed.codomain.dual


def test_parts_have_as_many_tensors_as_they_like_and_are_applied_in_their_order() -> None:
    both = Both(np.array([[1.0, 2.0], [3.0, 4.0]]))
    summed = DirectSumOperator(both, Dense(np.eye(2)), both.H)
    assert [tensor.name for tensor in summed.domain.tensors] == ["x_0", "s_0", "x_1", "t_2", "y_2"]
    assert [tensor.name for tensor in summed.codomain.tensors] == ["t_0", "y_0", "x_1", "x_2", "s_2"]
    results = apply_forward(
        summed, (np.ones(2), np.array(5.0), np.array([7.0, 8.0]), np.array(2.0), np.ones(2))
    )
    assert [result.tolist() for result in results] == [10.0, [3.0, 7.0], [7.0, 8.0], [4.0, 6.0], 4.0]


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
@pytest.mark.parametrize("number", [1, 3])
def test_another_number_of_arguments_is_refused(direction: str, number: int) -> None:
    summed = DirectSumOperator(Dense(np.eye(2)), Dense(np.eye(2)))
    with pytest.raises(
        ValueError, match=rf"arguments: {number} on rank 0, but the operator takes 2: \w_0, \w_1"
    ):
        getattr(summed, direction)(*[np.ones(2)] * number)


def test_a_direct_sum_is_what_all_its_parts_are() -> None:
    one, other = Dense(np.eye(2), gain=3, fan_in=2), Dense(np.eye(2), gain=5, fan_in=1)
    other.is_identity = other.batched = True
    for parts, is_so in (((one, other), False), ((other, one), False), ((other, other), True)):
        summed = DirectSumOperator(*parts)
        assert (summed.is_identity, summed.batched) == (is_so, is_so)
    assert (DirectSumOperator(one, other).gain, DirectSumOperator(one, other).fan_in) == (5, 2)
    assert DirectSumOperator(one, Dense(np.eye(2), gain=None)).gain is None


def test_a_direct_sum_prints_with_sums_and_direct_sums_in_parentheses() -> None:
    a, b = Dense(np.eye(2)), Dense(np.eye(2))
    a.symbol, b.symbol = "A", "B"
    summed = DirectSumOperator(a, b)
    printed = [
        summed.H,
        DirectSumOperator(2 * a, a @ b, a + b),
        DirectSumOperator(summed, a.H),
        3 * summed,
        summed @ summed,
        summed + summed,
        2 * CheckedOperator(summed),
    ]
    assert list(map(str, printed)) == [
        "(A ⊕ B)*", "2 A ⊕ A B ⊕ (A + B)", "(A ⊕ B) ⊕ A*", "3 (A ⊕ B)", "(A ⊕ B) (A ⊕ B)", "(A ⊕ B) + (A ⊕ B)",
        "2 (A ⊕ B)",
    ]  # fmt: skip


def test_the_program_of_a_direct_sum_is_the_programs_in_turn_on_buffers_of_their_own() -> None:
    summed = DirectSumOperator(moved("x", "y"), moved("x", "y"))
    program = summed.specification()
    assert isinstance(program, Program)
    assert [buffer.name for buffer in program.inputs] == ["x_0", "x_1"]
    assert [buffer.name for buffer in program.outputs] == ["y_0", "y_1"]
    assert np.array_equal(program.matrix(), np.eye(4))


def test_a_declared_adjoint_of_a_part_is_that_of_the_direct_sum() -> None:
    plain, declared = moved("x", "y"), moved("x", "y")
    mechanical = DirectSumOperator(plain, declared).specification()
    forward = declared.specification()
    assert isinstance(forward, Program)
    assert isinstance(mechanical, Program)
    both = forward, forward.adjoint()
    declared.specification = lambda: both  # type: ignore[method-assign]
    given = DirectSumOperator(plain, declared).specification()
    assert isinstance(given, tuple)
    assert given[0] == mechanical
    assert np.array_equal(given[1].matrix(), np.eye(4))
    assert [buffer.name for buffer in given[1].inputs] == ["y_0", "y_1"]


def test_with_a_part_that_has_no_program_a_direct_sum_has_none() -> None:
    without: LinearOperator = Dense(np.eye(2))
    parts: list[tuple[Any, ...]] = [(without, moved("x", "y")), (moved("x", "y"), without)]
    assert [DirectSumOperator(*each).specification() for each in parts] == [None, None]
