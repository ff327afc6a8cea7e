"""Whole descriptions of operators in the paper's notation."""

from __future__ import annotations

import re
from itertools import islice
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest

from adjointlab.core.executor import LocalProgram, ProgramOperator
from adjointlab.core.layout import Layout
from adjointlab.core.notation import explain
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition
from adjointlab.core.program import Add, Allocate, Buffer, Clear, Deallocate, Program
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce
from tests.outsider import Outsider

pytestmark = pytest.mark.mpi_skip

X = Space(Layout([4], Partition([2])))
a, b = Buffer(0, "x", (2,)), Buffer(1, "x", (2,))
c = Buffer(1, "scratch", (2,))
SHIFT = Program(
    [a, b],
    [
        Allocate(c),
        Add(a.whole, c.whole),
        Clear(a.whole),
        Add(c.whole, b.whole),
        Add(b[:1], a[1:]),
        Deallocate(c),
    ],
)


def test_a_program_is_described_by_its_buffers_and_the_steps_of_both_directions() -> None:
    assert (
        explain(ProgramOperator(Outsider(2), X, X, SHIFT))
        == """\
ProgramOperator
  from  x: [4] cut at 0|2|4 float64 over 2
  to    x: [4] cut at 0|2|4 float64 over 2

Buffers
  0, 1: x on the rank of that number
  a: scratch on rank 1

Forward
  F = D_a S_{1[0:1]→0[1:2]} S_{a→1} K_0 S_{0→a} A_a
    1. A_a                rank 1 allocates scratch [2], zero
    2. S_{0→a}            rank 0 sends x, rank 1 adds it to scratch
    3. K_0                rank 0 clears x
    4. S_{a→1}            rank 1 adds scratch to x
    5. S_{1[0:1]→0[1:2]}  rank 1 sends x, rank 0 adds it to x
    6. D_a                rank 1 deallocates scratch

Adjoint
  F* = D_a S_{a→0} K_0 S_{1→a} S_{0[1:2]→1[0:1]} A_a
    1. A_a                rank 1 allocates scratch [2], zero
    2. S_{0[1:2]→1[0:1]}  rank 0 sends x, rank 1 adds it to x
    3. S_{1→a}            rank 1 adds x to scratch
    4. K_0                rank 0 clears x
    5. S_{a→0}            rank 1 sends scratch, rank 0 adds it to x
    6. D_a                rank 1 deallocates scratch"""
    )


def chain() -> Any:
    comm, copies = Outsider(2), Layout([4], Partition([2]), axes=[None])
    return Broadcast(comm, Layout([4], Partition([1])), Partition([2])) @ SumReduce(
        comm, copies, Partition([1])
    )


def test_a_product_is_described_by_its_factors_and_one_program() -> None:
    assert (
        explain(chain())
        == """\
B R
  from  x: [4] whole float64 over 2
  to    y′: [4] whole float64 over 2

Factors, in the order in which they apply
    1. R, SumReduce: [4] whole float64 over 2 → [4] whole float64 over 1
    2. B, Broadcast: [4] cut at 0|4 float64 over 1 → [4] whole float64 over 2

Buffers
  a: x on rank 0
  b: x on rank 1
  c: y on rank 0
  0, 1: y′ on the rank of that number

Forward
  B R = D_c S_{c→1} S_{c→0} A_1 A_0 D_b D_a S_{b→c} S_{a→c} A_c
    1. A_c      rank 0 allocates y [4], zero
    2. S_{a→c}  rank 0 adds x to y
    3. S_{b→c}  rank 1 sends x, rank 0 adds it to y
    4. D_a      rank 0 deallocates x
    5. D_b      rank 1 deallocates x
    6. A_0      rank 0 allocates y′ [4], zero
    7. A_1      rank 1 allocates y′ [4], zero
    8. S_{c→0}  rank 0 adds y to y′
    9. S_{c→1}  rank 0 sends y, rank 1 adds it to y′
   10. D_c      rank 0 deallocates y

Adjoint
  (B R)* = D_c S_{c→a} S_{c→b} A_a A_b D_0 D_1 S_{0→c} S_{1→c} A_c
    1. A_c      rank 0 allocates y [4], zero
    2. S_{1→c}  rank 1 sends y′, rank 0 adds it to y
    3. S_{0→c}  rank 0 adds y′ to y
    4. D_1      rank 1 deallocates y′
    5. D_0      rank 0 deallocates y′
    6. A_b      rank 1 allocates x [4], zero
    7. A_a      rank 0 allocates x [4], zero
    8. S_{c→b}  rank 0 sends y, rank 1 adds it to x
    9. S_{c→a}  rank 0 adds y to x
   10. D_c      rank 0 deallocates y"""
    )


def test_an_operator_without_a_program_is_described_by_its_spaces() -> None:
    assert (
        explain(2 * chain() @ chain())
        == """\
(2 (B R)) B R
  from  x: [4] whole float64 over 2
  to    y′′′: [4] whole float64 over 2

Factors, in the order in which they apply
    1. R, SumReduce: [4] whole float64 over 2 → [4] whole float64 over 1
    2. B, Broadcast: [4] cut at 0|4 float64 over 1 → [4] whole float64 over 2
    3. 2 (B R): [4] whole float64 over 2 → [4] whole float64 over 2

It has no specification: no program says what it does."""
    )


def test_nothing_is_described_as_the_identity() -> None:
    assert (
        explain(ProgramOperator(Outsider(2), X, X, Program([a, b], [])))
        == """\
ProgramOperator
  from  x: [4] cut at 0|2|4 float64 over 2
  to    x: [4] cut at 0|2|4 float64 over 2

Buffers
  0, 1: x on the rank of that number

Forward
  F = I

Adjoint
  F* = I"""
    )


def test_lines_of_its_own_follow_the_spaces_of_an_operator() -> None:
    class Noted(LinearOperator):
        domain = codomain = X
        forward = adjoint = lambda self, *x: x[0]  # type: ignore[assignment]

        def notation(self) -> list[str]:
            return ["one line", "another"]

    assert explain(Noted()).splitlines()[3:6] == ["  one line", "  another", ""]


def test_buffers_of_the_name_that_most_ranks_hold_are_numbers_and_the_last_such_name_is() -> None:
    def legend(*held: tuple[int, str]) -> list[str]:
        inputs = [Buffer(rank, name, ()) for rank, name in held]
        space = Space(*(Tensor(Layout((), Partition((), (rank,))), name=name) for rank, name in held[:1]))
        program = Program(inputs, [])
        lines = explain(ProgramOperator(Outsider(4), space, space, program)).splitlines()
        return lines[lines.index("Buffers") + 1 : lines.index("Forward") - 1]

    assert legend((2, "x"), (0, "x"), (3, "x"), (1, "a"), (0, "z"), (1, "z")) == [
        "  0, 2, 3: x on the rank of that number",
        "  a: z on rank 0",
        "  b: z on rank 1",
        "  c: a on rank 1",
    ]
    assert legend((0, "a"), (1, "z")) == ["  a: a on rank 0", "  b: z on rank 1"]
    assert legend((0, "x"), (1, "x"), (0, "y"), (1, "y"))[2:] == ["  0, 1: y on the rank of that number"]


def test_letters_go_on_with_numbers_after_z() -> None:
    one, x = Space(Layout([], Partition([], [0]))), Buffer(0, "x", ())
    more = [Buffer(0, f"t{number:02}", ()) for number in range(53)]
    steps = [*map(Allocate, more), *map(Deallocate, more)]
    lines = explain(ProgramOperator(Outsider(1), one, one, Program([x], steps))).splitlines()
    labels = [line.split(":")[0].strip() for line in islice(lines, 5, 5 + 54)]
    assert labels == [*ascii_lowercase, *(f"{letter}1" for letter in ascii_lowercase), "a2", "b2"]
    assert lines[lines.index("Forward") + 7 :][:2] == [
        "    1. A_b   rank 0 allocates t00 [], zero",
        "    2. A_c   rank 0 allocates t01 [], zero",
    ]


def test_a_line_of_a_composition_holds_a_hundred_characters() -> None:
    for steps, lengths in (
        ([Clear(a.whole)] * 18 + [Clear(a[:1])] * 3, [100, 9]),
        ([Clear(a.whole)] * 24, [97, 9]),  # the 24th would end at 101
    ):
        lines = explain(ProgramOperator(Outsider(2), X, X, Program([a, b], steps))).splitlines()
        start = lines.index("Forward")
        assert list(map(len, lines[start + 1 : start + 3])) == lengths
        assert lines[start + 3].startswith("    1. K_0")


# Programs over a communicator


class Wire(Outsider):
    """Rank 0 of two, which notes the tags of what it sends."""

    def __init__(self) -> None:
        super().__init__(2)
        self.tags: list[int] = []

    def Get_rank(self) -> int:
        return 0

    def Isend(self, message: Any, dest: int, tag: int) -> Any:
        self.tags.append(tag)
        return Sent()


class Sent:
    waited: list[int] = []  # noqa: RUF012

    @classmethod
    def Waitall(cls, requests: list[Any]) -> None:
        cls.waited.append(len(requests))


def test_tags_are_below_32768_which_is_all_that_MPI_promises() -> None:
    program = Program([a, b], [*[Clear(b.whole)] * 32766, *[Add(a.whole, b.whole)] * 4])
    wire = Wire()
    Sent.waited.clear()
    LocalProgram(program, 0).execute(wire, {"x": np.ones(2)})  # type: ignore[arg-type]
    assert wire.tags == [32766, 32767, 0, 1]
    assert Sent.waited == [4]


def test_a_program_is_on_ranks_that_the_communicator_has() -> None:
    beyond = Buffer(2, "x", (2,))
    for inputs, steps in (([a, b, beyond], []), ([a, b], [Allocate(beyond), Deallocate(beyond)])):
        with pytest.raises(
            ValueError,
            match=r"^forward: the program uses ranks \[2\], but the communicator has ranks 0 to 1$",
        ):
            ProgramOperator(Outsider(2), X, X, Program(inputs, steps))
    ProgramOperator(Outsider(3), X, X, Program([a, b, beyond], []))
    far = [Buffer(rank, "x", ()) for rank in (7, 4, 3)]
    with pytest.raises(
        ValueError, match=r"^forward: the program uses ranks \[4, 7\], but the communicator has ranks 0 to 3$"
    ):
        ProgramOperator(Outsider(4), X, X, Program([a, b, *far], []))
    with pytest.raises(ValueError, match=r"^adjoint: the program uses ranks \[2\]"):
        ProgramOperator(Outsider(2), X, X, SHIFT, Program([a, b], [Allocate(beyond)]))


@pytest.mark.parametrize(
    ("forward", "adjoint", "message"),
    [
        (Program([a], [Allocate(b)]), None, "forward: the space needs the buffer x@1 of shape (2,) and type float64, but the program starts from x@0 (2,)"),
        (Program([a, b], [Deallocate(a), Deallocate(b)]), None, "forward: the space needs the buffer x@0 of shape (2,) and type float64, but the program ends with none"),
        (SHIFT, Program([b], [Allocate(a)]), "adjoint: the space needs the buffer x@0 of shape (2,) and type float64, but the program starts from x@1 (2,)"),
        (SHIFT, Program([a, b], [Deallocate(b)]), "adjoint: the space needs the buffer x@1 of shape (2,) and type float64, but the program ends with x@0 (2,)"),
        (Program([Buffer(0, "x", (3,)), b], []), None, "forward: the space needs the buffer x@0 of shape (2,) and type float64, but the program starts from x@0 (3,), x@1 (2,)"),
    ],
)  # fmt: skip
def test_a_program_starts_from_the_domain_and_ends_with_the_codomain(
    forward: Program, adjoint: Program | None, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ProgramOperator(Outsider(2), X, X, forward, adjoint)


def test_a_program_operator_bounds_its_gain_in_both_directions() -> None:
    once, thrice = Program([a, b], []), Program([a, b], [Add(a.whole, b.whole)] * 3)
    for forward, adjoint, gain in ((once, None, 1), (thrice, None, 4), (once, thrice, 4), (thrice, once, 4)):
        operator = ProgramOperator(Outsider(2), X, X, forward, adjoint)
        assert (operator.gain, operator.fan_in, operator.batched) == (gain, gain, True)
        assert operator.specification() == (forward if adjoint is None else (forward, adjoint))


def test_results_of_a_program_are_one_tensor_or_a_tuple_of_any_other_number() -> None:
    class Alone(Outsider):
        def Get_rank(self) -> int:
            return 0

    two = Space(*[Tensor(Layout([2], Partition([1])), "float32", name=name) for name in "xy"])
    x, y = (Buffer(0, name, (2,), "float32") for name in "xy")
    swap = ProgramOperator(Alone(1), two, two, Program([x, y], [Add(x.whole, y.whole)]))
    given = np.ones(2, "float32"), np.full(2, 2, "float32")
    assert [each.tolist() for each in swap.forward(*given)] == [[1, 1], [3, 3]]
    assert [each.tolist() for each in swap.adjoint(*given)] == [[3, 3], [2, 2]]
    first = Space(two.tensors[0])
    one = ProgramOperator(Alone(1), two, first, Program([x, y], [Deallocate(y)]))
    result = one.forward(*given)
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [1, 1]
    assert [each.tolist() for each in one.adjoint(given[0])] == [[1, 1], [0, 0]]
    nothing = ProgramOperator(Alone(1), first, Space(), Program([x], [Deallocate(x)]))
    assert nothing.forward(given[0]) == ()


@pytest.mark.parametrize("batch", [(), (3,)])
def test_an_inactive_rank_of_a_program_has_results_without_elements(batch: tuple[int, ...]) -> None:
    single = Space(Layout([4, 2], Partition([2, 1])), dtype="float32")
    inputs = [Buffer(rank, "x", (2, 2), "float32") for rank in (0, 1)]
    operator = ProgramOperator(Outsider(3), single, single, Program(inputs, []))
    result = operator.forward(np.zeros((0, 0, *batch), "float32"))
    assert isinstance(result, np.ndarray)
    assert (result.shape, result.dtype) == (single.tensors[0].layout.local_shape(3), np.float32)
