"""The memory primitives: block matrices, and the in-place form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.memory import Add, Allocate, Clear, Copy, Deallocate, Move

LAYOUT = Layout([3], Partition([1]))
I, O = np.eye(3), np.zeros((3, 3))  # noqa: E741
OPERATIONS = {
    "A": (Allocate, {}, [[I], [O]]),
    "D": (Deallocate, {}, [[I, O]]),
    "K": (Clear, {}, [[I, O], [O, O]]),
    "S": (Add, {}, [[I, O], [I, I]]),
    "C in place": (Copy, {"in_place": True}, [[I, O], [I, O]]),
    "C out of place": (Copy, {}, [[I], [I]]),
    "M in place": (Move, {"in_place": True}, [[O, O], [I, O]]),
    "M out of place": (Move, {}, [[I]]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_implementation_has_the_papers_block_matrix(name: str, spmd: Any) -> None:
    operation, options, blocks = OPERATIONS[name]

    def body(comm: Any) -> Any:
        operator = operation(comm, LAYOUT, **options)
        return operator.matrix(), operator.H.matrix()

    forward, adjoint = spmd(1, body)[0]
    np.testing.assert_array_equal(forward, np.block(blocks))
    np.testing.assert_array_equal(adjoint, np.block(blocks).T)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("direction", ["forward", "adjoint"])
@pytest.mark.parametrize(
    "name", [name for name, (_, _, blocks) in OPERATIONS.items() if np.block(blocks).shape == (6, 6)]
)
def test_in_place_leaves_what_out_of_place_returns(
    name: str, direction: str, library: str, spmd: Any
) -> None:
    operation, options, _ = OPERATIONS[name]

    def body(comm: Any) -> Any:
        apply = getattr(operation(comm, LAYOUT, **options), direction)
        a, b = (
            arrays.from_numpy(np.array(v), "float64", library) for v in ([1.0, 2.0, 3.0], [5.0, 7.0, 11.0])
        )
        fresh = apply(a, b)
        given = apply(a, b, out=(a, b))
        assert given[0] is a
        assert given[1] is b
        return [arrays.to_numpy(array) for array in (*fresh, *given)]

    fresh_a, fresh_b, a, b = spmd(1, body)[0]
    np.testing.assert_array_equal(a, fresh_a)
    np.testing.assert_array_equal(b, fresh_b)


def test_clearing_leaves_no_nan(spmd: Any) -> None:
    nan = np.full(3, np.nan)
    b = spmd(1, lambda comm: Clear(comm, LAYOUT).forward(np.ones(3), nan)[1])[0]
    np.testing.assert_array_equal(b, np.zeros(3))


@pytest.mark.parametrize("in_place", [False, True])
def test_buffers_come_in_one_batch_and_in_their_number(in_place: bool, spmd: Any) -> None:
    one, three = np.arange(3.0), np.ones((3, 3))

    def body(comm: Any) -> None:
        add = Add(comm, LAYOUT)
        for a, b in ((one, three), (three, one)):
            a, b = a.copy(), b.copy()
            with pytest.raises(ValueError, match=r"^b: shape .* but a has .* one batch, or none does"):
                add.forward(a, b, out=(a, b) if in_place else None)
        with pytest.raises(ValueError, match=r"^arguments: 1 on rank 0, but the operator takes 2: a, b"):
            add.forward(one)

    spmd(1, body)


def test_memory_given_for_results_is_one_array_for_each_in_the_batch_of_the_arguments(spmd: Any) -> None:
    a = np.arange(3.0)

    def body(comm: Any) -> None:
        copy = Copy(comm, LAYOUT)
        for out in (np.zeros(3), [np.zeros(3)], [np.zeros(3)] * 3):
            with pytest.raises(ValueError, match=r"^out: .* one for each result: a, b"):
                copy.forward(a, out=out)
        with pytest.raises(ValueError, match=r"^out, for b: shape \(3, 3\) on rank 0, .* in no batch"):
            copy.forward(a, out=[np.zeros(3), np.zeros((3, 3))])

    spmd(1, body)


def test_results_are_not_written_over_one_another_nor_over_arguments_of_other_names(spmd: Any) -> None:
    def body(comm: Any) -> None:
        a, b, c = np.arange(3.0), np.ones(3), np.zeros(3)
        for operation, out in (
            (Add(comm, LAYOUT), (b, a)),
            (Add(comm, LAYOUT), (c, c)),
            (Move(comm, LAYOUT, in_place=True), (b, a)),
            (Move(comm, LAYOUT, in_place=True), (a, a)),
        ):
            with pytest.raises(ValueError, match=r"^out, for [ab]: shares memory"):
                operation.forward(a, b, out=out)

    spmd(1, body)
