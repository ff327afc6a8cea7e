"""Linear operators and their small algebra."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator, NotInSpace, apply_adjoint, apply_forward
from adjointlab.core.partition import Partition
from adjointlab.core.program import Program, buffers, move_to_new
from adjointlab.core.space import Space, Tensor

small = settings(max_examples=30, deadline=None)
Matrix = np.ndarray[Any, Any]


class OneRank:
    def Get_rank(self) -> int:
        return 0

    def allgather(self, value: Any) -> list[Any]:
        return [value]


def line(size: int, dtype: str = "float64") -> Space:
    return Space(Layout((size,), Partition((1,))), dtype=dtype)


class Dense(LinearOperator):
    """x -> A x on one rank."""

    def __init__(self, matrix: Matrix, gain: int | None = 3, fan_in: int | None = 2) -> None:
        name = str(matrix.dtype)
        self.comm, self.domain, self.codomain = (
            OneRank(),
            line(matrix.shape[1], name),
            line(matrix.shape[0], name),
        )
        self.dense, self.gain, self.fan_in = matrix, gain, fan_in

    def forward(self, *x: Any) -> Any:
        return self.dense @ x[0]

    def adjoint(self, *y: Any) -> Any:
        return self.dense.conj().T @ y[0]


class Both(LinearOperator):
    """(x, s) -> (2 s, A x): two tensors, one of them of order 0."""

    def __init__(self, matrix: Matrix) -> None:
        layout, scalar = Layout((2,), Partition((1,))), Layout((), Partition((), (0,)))
        self.comm, self.dense = OneRank(), matrix
        self.domain = Space(Tensor(layout, name="x"), Tensor(scalar, name="s"))
        self.codomain = Space(Tensor(scalar, name="t"), Tensor(layout, name="y"))

    def forward(self, *x: Any) -> Any:
        return 2 * x[1], self.dense @ x[0]

    def adjoint(self, *y: Any) -> Any:
        return [self.dense.T @ y[1], 2 * y[0]]


class Fill(LinearOperator):
    """The identity on single numbers, written with an in-place assignment."""

    def __init__(self, dtype: str = "float64") -> None:
        self.comm = OneRank()
        self.domain = self.codomain = Space(Layout((), Partition(())), dtype=dtype)

    def forward(self, *x: Any) -> Any:
        y = x[0].clone() if isinstance(x[0], torch.Tensor) else x[0].copy()
        y[...] = x[0]
        return y

    adjoint = forward


def matrices(rows: int, columns: int, dtype: str = "complex128") -> st.SearchStrategy[Matrix]:
    part = st.lists(st.integers(-4, 4), min_size=rows * columns, max_size=rows * columns)

    def assemble(parts: tuple[list[int], list[int]]) -> Matrix:
        real, imag = (np.array(p, dtype=np.float64).reshape(rows, columns) for p in parts)
        return (real + 1j * imag if dtype == "complex128" else real).astype(dtype)

    return st.tuples(part, part).map(assemble)


@given(st.data(), st.sampled_from(["float64", "complex128", "int64", "float32"]))
@small
def test_the_algebra_of_operators_is_that_of_their_matrices(data: st.DataObject, dtype: str) -> None:
    a, b, c = (data.draw(matrices(*shape, dtype)) for shape in ((2, 3), (2, 3), (3, 4)))
    scalar: Any = data.draw(st.integers(-3, 3))
    if dtype == "complex128":
        scalar = complex(scalar, data.draw(st.integers(-3, 3)))
    A, B, C = Dense(a), Dense(b), Dense(c)
    expected: list[tuple[LinearOperator, Matrix]] = [
        (A, a),
        (A.H, a.conj().T),
        (A.H.H, a),
        (A + B, a + b),
        (A - B, a - b),
        (-A, -a),
        (scalar * A, scalar * a),
        (A * scalar, scalar * a),
        (A @ C, a @ c),
        ((A @ C).H, (a @ c).conj().T),
        ((scalar * (A + B) @ C).H, (scalar * (a + b) @ c).conj().T),
        (C.H @ A.H, c.conj().T @ a.conj().T),
        (A @ A.H - B @ B.H, a @ a.conj().T - b @ b.conj().T),
    ]
    for operator, matrix in expected:
        assert np.array_equal(operator.matrix(), matrix)
        assert np.array_equal(operator.H.matrix(), matrix.conj().T)
        assert operator.H.domain == operator.codomain.dual
        assert operator.H.codomain == operator.domain.dual


def test_several_tensors_and_tensors_of_order_zero_go_through_the_algebra() -> None:
    dense = np.array([[1.0, 2.0], [3.0, 4.0]])
    both = Both(dense)
    expected = np.block([[np.zeros((1, 2)), np.full((1, 1), 2.0)], [dense, np.zeros((2, 1))]])
    for operator, matrix in (
        (both, expected),
        (both + 3 * both, 4 * expected),
        (both.H @ both, expected.T @ expected),
    ):
        assert np.array_equal(operator.matrix(), matrix)
        assert np.array_equal(operator.H.matrix(), matrix.T)


@pytest.mark.parametrize(
    ("library", "dtype"), [("numpy", "float32"), ("torch", "float32"), ("torch", "bfloat16")]
)
def test_single_numbers_stay_arrays_of_their_type(library: str, dtype: str) -> None:
    one = Fill(dtype)
    subject = one @ (2 * one + one * np.float64(0.5)) @ (-one)
    assert subject.matrix(library).tolist() == [[-2.5]]
    assert subject.H.matrix(library).tolist() == [[-2.5]]


def test_an_operator_on_nothing_has_an_empty_matrix() -> None:
    assert Dense(np.zeros((2, 0))).matrix().shape == (2, 0)
    assert Dense(np.zeros((0, 2))).matrix().shape == (0, 2)


def test_gains_and_fan_ins_bound_what_is_composed() -> None:
    a, unknown = Dense(np.eye(2), gain=3, fan_in=2), Dense(np.eye(2), gain=None, fan_in=None)
    assert [(o.gain, o.fan_in) for o in (a.H, a @ a, a + a, 2 * a)] == [(3, 2), (9, 4), (6, 4), (6, 3)]
    assert [o.gain for o in (-a, 0 * a, 2.0 * a, 0.5 * a)] == [3, 3, 6, None]
    for operator in (unknown.H, a @ unknown, unknown @ a, a + unknown, 2 * unknown):
        assert operator.gain is None
        assert operator.fan_in is None


def test_a_scalar_leaves_the_element_type_alone() -> None:
    single = Dense(np.eye(2, dtype="float32"))
    scalars: list[Any] = [2, 2.0, np.float64(2), np.int64(2), complex(2), np.complex128(2), True]
    for scalar in scalars:
        (result,) = apply_forward(scalar * single, (np.ones(2, "float32"),))
        assert result.dtype == "float32"
        (result,) = apply_adjoint(single * scalar, (np.ones(2, "float32"),))
        assert result.dtype == "float32"


def test_scalars_outside_the_field_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scalar: 1j is complex, but the operator acts on the real \[2\]"):
        1j * Dense(np.eye(2))
    with pytest.raises(
        ValueError, match=r"scalar: 0\.5 is no integer, but the operator acts on \[2\].* int64"
    ):
        0.5 * Dense(np.eye(2, dtype="int64"))
    mixed = Dense(np.eye(2))
    mixed.domain = Space(line(2).tensors[0], Tensor(line(2).tensors[0].layout, "complex128", name="z"))
    with pytest.raises(ValueError, match="real"):
        1j * mixed


def test_operators_whose_spaces_differ_are_not_composed_or_added() -> None:
    a, b = Dense(np.ones((2, 3))), Dense(np.ones((4, 2)))
    with pytest.raises(
        ValueError, match=r"composed: the left one's domain is \[3\].*codomain \[4\] cut at 0\|4"
    ):
        a @ b
    with pytest.raises(ValueError, match=r"added: the left one's domain is \[3\].*domain \[2\]"):
        a + b
    with pytest.raises(ValueError, match=r"added: the left one's codomain is \[2\].*codomain \[4\]"):
        a + b @ a
    with pytest.raises(ValueError, match=r"float64.*float32"):
        a @ Dense(np.ones((3, 2), dtype="float32"))


class Returns(LinearOperator):
    """Returns whatever it is told to."""

    def __init__(self, result: Any, partition: Partition | None = None) -> None:
        self.comm, self.result = OneRank(), result
        self.domain = self.codomain = Space(Layout((2,), partition or Partition((1,))))

    def forward(self, *x: Any) -> Any:
        return self.result

    adjoint = forward


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((np.zeros(2), np.zeros(2)), "returned 2 tensors, but the space has 1"),
        ((), "returned 0 tensors, but the space has 1"),
        (None, "returned a NoneType on rank 0, not an array"),
        ([[0.0, 0.0]], "returned a list on rank 0"),
        (
            np.zeros((2, 1)),
            r"returned shape \(2, 1\) on rank 0, but the layout \[2\] cut at 0\|2 over 1 gives it \(2,\)",
        ),
        (np.zeros(2, "float32"), "returned float32 on rank 0, but the operator was made for float64"),
        (np.zeros(2, bool), "returned bool on rank 0, but the operator was made for float64"),
        (torch.zeros(2, dtype=torch.bfloat16), "returned bfloat16 on rank 0"),
    ],
)
def test_what_is_not_in_the_space_is_refused_in_both_directions(result: Any, message: str) -> None:
    with pytest.raises(NotInSpace, match="forward " + message):
        apply_forward(Returns(result), (np.zeros(2),))
    with pytest.raises(NotInSpace, match="adjoint " + message):
        apply_adjoint(Returns(result), (np.zeros(2),))


def test_an_inactive_rank_returns_anything_of_no_volume() -> None:
    elsewhere = Partition((1,), (3,))
    assert len(apply_forward(Returns(np.zeros((0, 5)), elsewhere), (np.zeros(0),))) == 1
    with pytest.raises(
        NotInSpace, match=r"shape \(2,\) on rank 0, which is inactive in the partition 1 over ranks 3"
    ):
        apply_forward(Returns(np.zeros(2), elsewhere), (np.zeros(0),))


def test_the_specification_of_the_adjoint_is_the_adjoint_specification() -> None:
    class Moved(Returns):
        def specification(self) -> Any:
            (x,), (y,) = (
                buffers(Space(line(2).tensors[0])),
                buffers(Space(Tensor(line(2).tensors[0].layout, name="y"))),
            )
            return Program([x], move_to_new(x, y))

    class Declared(Moved):
        def specification(self) -> Any:
            forward = super().specification()
            return forward, forward.adjoint()

    there = Moved(None).specification()
    assert Moved(None).H.specification() == there.adjoint()
    assert Declared(None).H.specification() == (there.adjoint(), there)
    assert Declared(None).H.H.specification() == (there, there.adjoint())
    assert Returns(None).H.specification() is None
