"""Eqs. 3-15 of [Hewett21] as matrix identities, on buffers a and b of three elements."""

from __future__ import annotations

import numpy as np
import pytest

from adjointlab.core.program import (
    Add,
    Allocate,
    Buffer,
    Clear,
    Deallocate,
    Generator,
    Program,
    copy,
    copy_to_new,
    move,
    move_to_new,
)

a, b = Buffer(0, "a", (3,)), Buffer(1, "b", (3,))
I, O = np.eye(3), np.zeros((3, 3))  # noqa: E741


def matrix(steps: list[Generator] | tuple[Generator, ...], *inputs: Buffer) -> np.ndarray:
    return Program(inputs, steps).matrix()


def adjoint(steps: list[Generator] | tuple[Generator, ...], *inputs: Buffer) -> np.ndarray:
    return Program(inputs, steps).adjoint().matrix()


GENERATORS = {
    "A_b, eq. 3": ([Allocate(b)], [a], [[I], [O]]),
    "D_b = A_b*, eq. 5": ([Deallocate(b)], [a, b], [[I, O]]),
    "K_b, eq. 6": ([Clear(b.whole)], [a, b], [[I, O], [O, O]]),
    "S_{a→b}, eq. 7": ([Add(a.whole, b.whole)], [a, b], [[I, O], [I, I]]),
    "S_{b→a} = S_{a→b}*, eq. 8": ([Add(b.whole, a.whole)], [a, b], [[I, I], [O, I]]),
    "C_{a→b} in place, eq. 9": (copy(a.whole, b.whole), [a, b], [[I, O], [I, O]]),
    "C_{a→b} out of place, eq. 11": (copy_to_new(a.whole, b), [a], [[I], [I]]),
    "M_{a→b} in place, eq. 12": (move(a.whole, b.whole), [a, b], [[O, O], [I, O]]),
    "M_{a→b} out of place, eq. 14": (move_to_new(a, b), [a], [[I]]),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_an_operation_has_the_papers_block_matrix(name: str) -> None:
    steps, inputs, blocks = GENERATORS[name]
    np.testing.assert_array_equal(matrix(steps, *inputs), np.block(blocks))


@pytest.mark.parametrize("name", GENERATORS)
def test_the_mechanical_adjoint_is_the_transpose(name: str) -> None:
    steps, inputs, blocks = GENERATORS[name]
    np.testing.assert_array_equal(adjoint(steps, *inputs), np.block(blocks).T)


def test_the_adjoint_of_allocation_is_deallocation() -> None:
    assert Allocate(b).adjoint == Deallocate(b)
    assert Deallocate(b).adjoint == Allocate(b)


def test_a_copy_in_place_is_clear_then_add_and_its_adjoint_add_then_clear() -> None:
    """Eqs. 9 and 10: C = S_{a→b} K_b and C* = K_b S_{b→a}."""
    S, K = matrix([Add(a.whole, b.whole)], a, b), matrix([Clear(b.whole)], a, b)
    back = matrix([Add(b.whole, a.whole)], a, b)
    np.testing.assert_array_equal(matrix(copy(a.whole, b.whole), a, b), S @ K)
    np.testing.assert_array_equal(adjoint(copy(a.whole, b.whole), a, b), K @ back)


def test_a_copy_out_of_place_is_allocate_then_add_and_its_adjoint_add_then_deallocate() -> None:
    """Eq. 11 and the line below it: C = S_{a→b} A_b and C* = D_b S_{b→a}."""
    S, A = matrix([Add(a.whole, b.whole)], a, b), matrix([Allocate(b)], a)
    back, D = matrix([Add(b.whole, a.whole)], a, b), matrix([Deallocate(b)], a, b)
    np.testing.assert_array_equal(matrix(copy_to_new(a.whole, b), a), S @ A)
    np.testing.assert_array_equal(adjoint(copy_to_new(a.whole, b), a), D @ back)


def test_the_adjoint_of_a_move_is_the_move_back() -> None:
    """Eqs. 13 and 15: M_{a→b}* = M_{b→a}, in place and out of place."""
    assert Program([a, b], move(a.whole, b.whole)).adjoint() == Program([a, b], move(b.whole, a.whole))
    assert Program([a], move_to_new(a, b)).adjoint() == Program([b], move_to_new(b, a))


def test_a_copy_and_a_move_leave_the_same_in_b() -> None:
    x = np.array([2.0, 3.0, 5.0])
    memory = {(0, "a"): x, (1, "b"): -x}
    copied = Program([a, b], copy(a.whole, b.whole)).execute(memory)
    moved = Program([a, b], move(a.whole, b.whole)).execute(memory)
    np.testing.assert_array_equal(copied[1, "b"], moved[1, "b"])
    np.testing.assert_array_equal(copied[0, "a"], x)
    np.testing.assert_array_equal(moved[0, "a"], 0 * x)
