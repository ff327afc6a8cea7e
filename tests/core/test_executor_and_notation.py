"""Programs over a communicator, and in the paper's notation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.core.executor import ProgramOperator, execute
from adjointlab.core.layout import Layout
from adjointlab.core.notation import explain
from adjointlab.core.partition import Partition
from adjointlab.core.program import Add, Allocate, Buffer, Clear, Deallocate, Program, move
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.worlds.simulated.world import SimulatedWorld

X = Space(Layout([4], Partition([2])))
a, b = Buffer(0, "x", (2,)), Buffer(1, "x", (2,))
c = Buffer(1, "scratch", (2,))
SHIFT = Program(
    [a, b], [Allocate(c), Add(a.whole, c.whole), Clear(a.whole), Add(c.whole, b.whole), Deallocate(c)]
)


def on_ranks(ranks: int, body: Any, seed: int = 0) -> tuple[Any, ...]:
    result = SimulatedWorld(ranks).run(lambda context, _: body(context.comm), seed=seed)
    assert result.completed, (result.outcomes, result.findings)
    return result.values


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_over_a_communicator_a_program_has_its_matrix(library: str) -> None:
    def body(comm: Any) -> Any:
        operator = ProgramOperator(comm, X, X, SHIFT)
        return operator.matrix(library), operator.H.matrix(library)

    for forward, adjoint in on_ranks(3, body):
        np.testing.assert_array_equal(forward, SHIFT.matrix())
        np.testing.assert_array_equal(adjoint, SHIFT.matrix().T)


@pytest.mark.parametrize("seed", range(8))
def test_a_message_is_a_copy_that_later_steps_cannot_change(seed: int) -> None:
    """Rank 0 clears what it has just sent, under schedules that read messages early or late."""

    def body(comm: Any) -> Any:
        program = Program([a, b], move(a.whole, b[:]))
        return execute(program, comm, {"x": np.array([1.0, 2.0]) + comm.Get_rank()})["x"]

    for rank, x in enumerate(on_ranks(2, body, seed)):
        np.testing.assert_array_equal(x, [[0, 0], [1, 2]][rank])


def test_tags_of_messages_are_the_numbers_of_their_steps_among_as_many_as_mpi_promises() -> None:
    tags: list[tuple[str, int]] = []

    class Noting(_Alone):
        def __init__(self, rank: int) -> None:
            super().__init__(2)
            self.rank = rank

        def Get_rank(self) -> int:
            return self.rank

        def Isend(self, message: Any, dest: int, tag: int) -> Any:
            tags.append((f"to {dest}", tag))
            return MPI.Prequest(lambda: None)

        def Recv(self, message: Any, source: int, tag: int) -> None:
            tags.append((f"from {source}", tag))

    steps = [Clear(a.whole)] * 32_770
    for position in (0, 1, 32_767, 32_768, 32_769):
        steps[position] = Add(a.whole, b.whole)  # type: ignore[call-overload]
    for rank in (0, 1):
        execute(Program([a, b], steps), Noting(rank), {"x": np.zeros(2)})
    expected = [0, 1, 32_767, 0, 1]
    assert tags == [("to 1", tag) for tag in expected] + [("from 0", tag) for tag in expected]


def test_parts_of_buffers_of_any_order_travel() -> None:
    square, scalar = Buffer(0, "x", (3, 3)), Buffer(1, "s", ())
    target = Buffer(1, "t", (2, 2))
    program = Program(
        [square, scalar], [Allocate(target), Add(square[1:, :2], target.whole), Clear(scalar.whole)]
    )

    def body(comm: Any) -> Any:
        x = np.arange(9.0).reshape(3, 3).T if comm.Get_rank() == 0 else np.array(5.0)
        return execute(program, comm, {"xs"[comm.Get_rank()]: x})

    first, second = on_ranks(2, body)
    np.testing.assert_array_equal(first["x"], np.arange(9.0).reshape(3, 3).T)
    np.testing.assert_array_equal(second["t"], [[1, 4], [2, 5]])
    assert second["s"] == 0


def test_a_given_adjoint_is_executed_instead_of_the_mechanical_one() -> None:
    wrong = Program([a, b], [Clear(b.whole)])
    matrices = on_ranks(2, lambda comm: ProgramOperator(comm, X, X, SHIFT, wrong).H.matrix())
    np.testing.assert_array_equal(matrices[0], wrong.matrix())


def test_what_a_program_forgets_to_deallocate_is_dropped_and_its_cotangent_is_zero() -> None:
    forgetful = Program([a, b], [step for step in SHIFT.steps if not isinstance(step, Deallocate)])

    def body(comm: Any) -> Any:
        operator = ProgramOperator(comm, X, X, forgetful)
        return operator.matrix(), operator.H.matrix()

    for forward, adjoint in on_ranks(2, body):
        np.testing.assert_array_equal(forward, SHIFT.matrix())
        np.testing.assert_array_equal(adjoint, SHIFT.matrix().T)


def test_a_program_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"uses ranks \[1\], but the communicator has ranks 0 to 0"):
        ProgramOperator(_Alone(), X, X, SHIFT)
    other = Space(Layout([4], Partition([2])), name="y")
    with pytest.raises(
        ValueError, match=r"forward: the space needs the buffer y@0 .* but the program ends with"
    ):
        ProgramOperator(_Alone(2), X, other, SHIFT)


def test_arguments_of_a_program_are_those_of_one_library_in_one_batch() -> None:
    torch = pytest.importorskip("torch")
    two = Space(*[Tensor(Layout([2], Partition([1])), name=name) for name in "xy"])
    operator = ProgramOperator(_Alone(), two, two, Program([Buffer(0, name, (2,)) for name in "xy"], []))
    x = np.zeros(2)

    for y, why in (
        (torch.zeros(2).double(), "y: a torch array .* but x is a numpy array"),
        (np.zeros((2, 3)), "one batch"),
    ):
        with pytest.raises(ValueError, match=why):
            operator.forward(x, y)
    with pytest.raises(ValueError, match="arguments: 1 on rank 0, but the operator takes 2: x, y"):
        operator.adjoint(x)


def test_a_broadcast_is_explained_as_the_paper_writes_it() -> None:
    text = explain(Broadcast(_Alone(3), Layout([5], Partition([1])), Partition([3])))
    assert "B = D_a S_{a→2} S_{a→1} S_{a→0} A_2 A_1 A_0" in text
    assert "B* = D_0 D_1 D_2 S_{0→a} S_{1→a} S_{2→a} A_a" in text
    assert "a: x on rank 0" in text
    assert "0, 1, 2: y on the rank of that number" in text
    assert "5. S_{a→1}  rank 0 sends x, rank 1 adds it to y" in text


@pytest.mark.parametrize("ranks", range(8, 20, 3))
def test_a_long_composition_is_broken_where_a_line_is_full(ranks: int) -> None:
    text = explain(Broadcast(_Alone(ranks), Layout([5], Partition([1])), Partition([ranks])))
    for start in ("  B =", "  B* ="):
        lines = text[text.index(start) :].splitlines()
        composition = lines[: next(number for number, line in enumerate(lines) if line.startswith("    1."))]
        assert len(composition) > 1
        assert all(line.startswith(" " * len(start)) for line in composition[1:])
        for line, following in pairwise(composition):
            assert len(line) <= 100 < len(line) + 1 + len(following.split()[0])
        factors = " ".join(line[len(start) :] for line in composition).split()
        assert len(factors) == 2 * ranks + 1


def test_a_composition_is_explained_by_its_factors_and_by_one_program() -> None:
    comm, copies = _Alone(2), Layout([4], Partition([2]), axes=[None])
    sums = SumReduce(comm, copies, Partition([1]))
    spread = Broadcast(comm, Layout([4], Partition([1])), Partition([2]))
    text = explain(spread @ sums)
    assert text.startswith("B R\n")
    assert "1. R, SumReduce: [4] whole float64 over 2 → [4] whole float64 over 1" in text
    assert "2. B, Broadcast: [4] cut at 0|4 float64 over 1 → [4] whole float64 over 2" in text
    assert "B R = D_c S_{c→1} S_{c→0} A_1 A_0 D_b D_a S_{b→c} S_{a→c} A_c" in text
    assert "(B R)* = D_c S_{c→a} S_{c→b} A_a A_b D_0 D_1 S_{0→c} S_{1→c} A_c" in text


def test_each_factor_of_a_product_adds_one_prime_to_the_names_of_its_buffers() -> None:
    comm, copies = _Alone(2), Layout([4], Partition([2]), axes=[None])
    sums = SumReduce(comm, copies, Partition([1]))
    spread = Broadcast(comm, Layout([4], Partition([1])), Partition([2]))
    text = explain(spread @ sums @ spread @ sums)
    assert "to    y′′′: [4] whole" in text
    assert "c: y on rank 0\n  d: y′ on rank 0\n  e: y′ on rank 1\n  f: y′′ on rank 0\n" in text


def test_operators_print_as_the_expressions_that_they_are() -> None:
    comm, copies = _Alone(2), Layout([4], Partition([2]), axes=[None])
    total = AllSumReduce(comm, copies, [0])
    spread = Broadcast(comm, Layout([4], Partition([1])), Partition([2]))
    assert str(total @ spread @ spread.H) == "𝒜 B B*"
    assert str((total @ spread).H) == "(𝒜 B)*"
    assert str(2 * total + total @ total) == "2 𝒜 + 𝒜 𝒜"
    assert str((total + total) @ total) == "(𝒜 + 𝒜) 𝒜"


def test_parts_of_buffers_are_named_by_their_interval() -> None:
    program = Program([a, b], [Add(a[:1], b[1:]), Clear(a.whole)])
    assert "F = K_0 S_{0[0:1]→1[1:2]}" in explain(ProgramOperator(_Alone(2), X, X, program))
    assert "F = I" in explain(ProgramOperator(_Alone(2), X, X, Program([a, b], [])))


class _Alone:
    """A communicator that nothing is sent over."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def Get_rank(self) -> int:
        return self.size - 1 if self.size == 1 else self.size + 5

    def Get_size(self) -> int:
        return self.size
