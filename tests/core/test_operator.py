"""Linear operators and their small algebra."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator, NotInSpace, ProductOperator, apply_adjoint, apply_forward
from adjointlab.core.partition import Partition
from adjointlab.core.program import Allocate, Buffer, Program, buffers, move_to_new
from adjointlab.core.space import Space, Tensor

small = settings(max_examples=30, deadline=None)
Matrix = np.ndarray[Any, Any]


class OneRank:
    def __init__(self, size: int = 1) -> None:
        self.size = size

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return self.size

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


def test_operators_over_communicators_of_different_sizes_are_not_composed() -> None:
    one, other = Dense(np.eye(2)), Dense(np.eye(2))
    other.comm = OneRank(3)
    for compose in (lambda: one @ other, lambda: one + other):
        with pytest.raises(ValueError, match="these are over communicators of 1 and 3 ranks"):
            compose()


def test_scalars_outside_the_field_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scalar: 1j is complex, but the operator acts on the real \[2\]"):
        1j * Dense(np.eye(2))
    with pytest.raises(
        ValueError, match=r"scalar: 0\.5 is not an integer, but the operator acts on \[2\].* int64"
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


def test_a_rank_that_holds_nothing_of_a_result_may_return_none() -> None:
    elsewhere = Partition((1,), [1])
    for result, number in ((None, 1), ((None,), 1), ([None], 1)):
        for apply in (apply_forward, apply_adjoint):
            outputs = apply(Returns(result, elsewhere), (torch.zeros(0, dtype=torch.float64),) * number)
            assert [(type(each), tuple(each.shape), each.dtype) for each in outputs] == [
                (torch.Tensor, (0,), torch.float64)
            ]


class Sizes(Returns):
    """Notes the number of elements that each call is given."""

    def forward(self, *x: Any) -> Any:
        self.sizes = [each.size for each in x]
        return super().forward(*x)

    adjoint = forward


def test_what_a_part_that_holds_nothing_returns_as_none_is_a_tensor_without_elements_to_the_others() -> None:
    elsewhere = Partition((1,), [1])
    nothing, sized = Returns(None, elsewhere), Sizes(None, elsewhere)
    for operator in (2 * nothing, nothing + nothing, nothing - 3 * nothing, sized @ nothing, nothing @ sized):
        for apply in (apply_forward, apply_adjoint):
            assert [each.shape for each in apply(operator, (np.zeros(0),))] == [(0,)]
            assert [each.shape for each in apply(operator, (np.zeros((0, 4)),))] == [(0, 4)]  # a batch
    assert sized.sizes == [0]


def test_a_part_that_returns_none_of_what_it_holds_is_refused_in_a_composition_too() -> None:
    with pytest.raises(NotInSpace, match="adjoint returned None on rank 0"):
        apply_adjoint(2 * Returns(None), (np.zeros(2),))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((np.zeros(2), np.zeros(2)), "returned 2 tensors, but the space has 1"),
        ((), "returned 0 tensors, but the space has 1"),
        (None, "returned None on rank 0, not a NumPy, torch or CuPy array"),
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


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_arguments_in_a_batch_have_results_in_that_batch(batch: tuple[int, ...]) -> None:
    """The first tensor may be of higher or of lower order than the last: its own order tells of a batch."""
    both = Both(np.eye(2))
    x, s = np.ones((2, *batch)), np.ones(batch)
    assert [y.shape for y in apply_forward(both, (x, s))] == [batch, (2, *batch)]
    assert [y.shape for y in apply_adjoint(both, (s, x))] == [(2, *batch), batch]


@pytest.mark.parametrize("batch", [(1,), (3,)])
def test_results_in_another_batch_than_the_arguments_are_refused(batch: tuple[int, ...]) -> None:
    for result in (np.zeros(2), np.zeros((2, batch[0] + 1)), np.zeros((3, *batch))):
        with pytest.raises(NotInSpace, match=rf"forward returned .* in a batch of {batch[0]}"):
            apply_forward(Returns(result), (np.zeros((2, *batch)),))
        with pytest.raises(NotInSpace, match=rf"adjoint returned .* in a batch of {batch[0]}"):
            apply_adjoint(Returns(result), (np.zeros((2, *batch)),))


@pytest.mark.parametrize(
    "argument", [np.zeros((2, 0)), np.zeros((3, 1)), np.zeros((2, 1, 1)), 5.0, [[1.0], [2.0]]]
)
def test_arguments_that_are_no_batch_have_results_in_none(argument: Any) -> None:
    (result,) = apply_forward(Returns(np.zeros(2)), (argument,))
    assert result.shape == (2,)
    with pytest.raises(NotInSpace, match=r"returned shape \(2, 1\) on rank 0"):
        apply_forward(Returns(np.zeros((2, 1))), (argument,))


def test_a_communicator_that_asks_is_told_where_user_code_ends() -> None:
    noted: list[Any] = []
    operator = Dense(np.eye(2))
    operator.comm.note_return = noted.append  # type: ignore[attr-defined]
    apply_forward(operator, (np.ones(2),))
    apply_adjoint(operator, (np.ones(2),))
    assert noted == [Dense.forward, Dense.adjoint]


def test_a_composition_takes_a_batch_where_all_its_parts_do() -> None:
    one, batched = Dense(np.eye(2)), Dense(np.eye(2))
    batched.batched = True
    assert [o.batched for o in (batched.H, 2 * batched, batched @ batched, batched + batched)] == [True] * 4
    assert [o.batched for o in (one.H, one @ batched, batched @ one, one + batched)] == [False] * 4
    assert np.array_equal((batched @ batched).matrix(), np.eye(2))


@pytest.mark.parametrize(
    ("scalar", "gain"),
    [(0, 3), (1, 3), (-1, 3), (2, 6), (-3, 9), (3.0, 9), (2.5, None), (-0.5, None), (2 + 0j, 6), (2j, None)],
)
def test_a_whole_number_multiplies_the_gain_and_no_other_number_leaves_one(
    scalar: complex, gain: int | None
) -> None:
    scaled = scalar * Dense(np.eye(2, dtype="complex128"), gain=3, fan_in=2)
    assert (scaled.gain, scaled.fan_in) == (gain, 3)


def test_a_sum_of_parts_without_elements_has_none_whatever_their_shapes() -> None:
    elsewhere = Partition((1,), (3,))
    left, right = Returns(np.zeros((0, 5)), elsewhere), Returns(np.zeros(0), elsewhere)
    assert [y.shape for y in apply_forward(left + right, (np.zeros(0),))] == [(0, 5)]
    assert [y.shape for y in apply_adjoint(right + left, (np.zeros(0),))] == [(0,)]


def test_operators_print_with_as_few_parentheses_as_are_needed() -> None:
    a, b = Dense(np.eye(2)), Dense(np.eye(2))
    a.symbol, b.symbol = "A", "B"
    printed = [
        a.H,
        -a,
        a - b,
        a @ b @ a,
        a @ (b @ a),
        (a + b) @ a,
        (2 * a) @ b,
        2 * (a + b),
        (a @ b).H,
        (a + b).H.H,
    ]
    assert list(map(str, printed)) == [
        "A*", "-1 A", "A + -1 B", "A B A", "A B A", "(A + B) A", "(2 A) B", "2 (A + B)", "(A B)*", "A + B",
    ]  # fmt: skip
    product = (a @ b) @ (a @ a)
    assert isinstance(product, ProductOperator)
    assert product.factors == (a, b, a, a)


def moved(name: str, to: str) -> LinearOperator:
    """x -> y on one rank, with a buffer `t` in between."""

    class Moved(Dense):
        def specification(self) -> Program:
            source, between, target = (Buffer(0, each, (2,)) for each in (name, "t", to))
            return Program([source], [*move_to_new(source, between), *move_to_new(between, target)])

    operator = Moved(np.eye(2))
    operator.domain, operator.codomain = (Space(line(2).tensors[0].layout, name=each) for each in (name, to))
    return operator


def test_the_program_of_a_product_gives_each_factor_buffers_of_its_own() -> None:
    a, b, c = moved("u", "v"), moved("x", "u"), moved("x", "x2")
    for product, names in (
        (a @ b, ["x", "t", "u", "t′", "v′"]),
        ((a @ b) @ c, ["x", "t", "x2", "t′", "u′", "t′′", "v′′"]),
        (a @ (b @ c), ["x", "t", "x2", "t′", "u′", "t′′", "v′′"]),
    ):
        program = product.specification()
        assert isinstance(program, Program)
        allocated = [step.buffer.name for step in program.steps if isinstance(step, Allocate)]
        assert [program.inputs[0].name, *allocated] == names
        assert [tensor.name for tensor in product.codomain.tensors] == names[-1:]
        assert np.array_equal(program.matrix(), np.eye(2))


def test_a_product_through_an_empty_space_still_renames_its_buffers() -> None:
    zero, forget = Dense(np.zeros((2, 2))), Dense(np.zeros((2, 2)))
    zero.domain = forget.codomain = Space()
    assert [tensor.name for tensor in (zero @ forget).codomain.tensors] == ["x′"]


def test_the_program_of_a_product_with_a_declared_adjoint_has_both_directions() -> None:
    a, b = moved("u", "v"), moved("x", "u")
    mechanical = (a @ b).specification()
    assert isinstance(mechanical, Program)
    expected = (mechanical, mechanical.adjoint())
    declared = [moved("u", "v"), moved("x", "u")]
    for operator in declared:
        forward = operator.specification()
        assert isinstance(forward, Program)
        both = forward, forward.adjoint()
        operator.specification = lambda both=both: both  # type: ignore[method-assign,misc]
    for product in (declared[0] @ b, a @ declared[1], declared[0] @ declared[1]):
        assert product.specification() == expected
    assert (Dense(np.eye(2)) @ Dense(np.eye(2))).specification() is None
    without = moved("u", "v")
    without.specification = lambda: None  # type: ignore[method-assign]
    assert (without @ b).specification() is None


@pytest.mark.parametrize("batch", [(), (2,)])
def test_each_of_several_results_is_looked_at(batch: tuple[int, ...]) -> None:
    class Told(Both):
        def forward(self, *x: Any) -> Any:
            return results

        adjoint = forward

    told, x, s = Told(np.eye(2)), np.ones((2, *batch)), np.ones(batch)
    right = s, x
    results: Any = right
    assert apply_forward(told, (x, s)) == right
    for wrong in ((s, np.ones((3, *batch))), (np.ones((1, 1, 1)), x), (s, x.astype("float32")), (s, s)):
        results = wrong
        with pytest.raises(NotInSpace, match=r"^forward returned "):
            apply_forward(told, (x, s))
        results = wrong[::-1]
        with pytest.raises(NotInSpace, match=r"^adjoint returned "):
            apply_adjoint(told, (s, x))


def test_a_sum_comes_in_a_tuple_where_that_of_its_first_term_does() -> None:
    bare, in_tuple = Returns(np.ones(2)), Returns((np.ones(2),))
    for left, right in ((bare, in_tuple), (in_tuple, bare)):
        total = (left + right).forward(np.ones(2))
        assert isinstance(total, tuple) == (left is in_tuple)
