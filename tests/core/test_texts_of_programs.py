"""Operators in the notation of the paper: the whole text, from the spaces to the last step of the adjoint."""

from __future__ import annotations

import numpy as np
import pytest

from adjointlab.core.executor import ProgramOperator
from adjointlab.core.notation import explain
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import Add, Allocate, Buffer, Clear, Program
from adjointlab.core.space import Space
from tests.core.test_executor_and_notation import SHIFT, X, _Alone
from tests.core.test_operator import Both, Dense

pytestmark = pytest.mark.mpi_skip


def program(*inputs: Buffer, steps: tuple[object, ...] = ()) -> LinearOperator:
    return ProgramOperator(_Alone(2), Space(), Space(), Program(inputs, steps))  # type: ignore[arg-type]


SQUARE, OTHER, NEW = Buffer(0, "x", (2, 3)), Buffer(1, "y", (2, 3)), Buffer(1, "z", (2, 3))
PARTS = (Allocate(NEW), Add(SQUARE[:, 1:], NEW[:, :2]), Add(NEW[:1], OTHER[1:]), Clear(NEW[:1, :1]))

TEXTS: list[tuple[LinearOperator, str]] = [
    (
        ProgramOperator(_Alone(2), X, X, SHIFT),
        """\
ProgramOperator
  from  x: [4] cut at 0|2|4 float64 over 2
  to    x: [4] cut at 0|2|4 float64 over 2

Buffers
  0, 1: x on the rank of that number
  a: scratch on rank 1

Forward
  F = D_a S_{a→1} K_0 S_{0→a} A_a
    1. A_a      rank 1 allocates scratch [2], zero
    2. S_{0→a}  rank 0 sends x, rank 1 adds it to scratch
    3. K_0      rank 0 clears x
    4. S_{a→1}  rank 1 adds scratch to x
    5. D_a      rank 1 deallocates scratch

Adjoint
  F* = D_a S_{a→0} K_0 S_{1→a} A_a
    1. A_a      rank 1 allocates scratch [2], zero
    2. S_{1→a}  rank 1 adds x to scratch
    3. K_0      rank 0 clears x
    4. S_{a→0}  rank 1 sends scratch, rank 0 adds it to x
    5. D_a      rank 1 deallocates scratch
""",
    ),
    (
        Both(np.eye(2)),
        """\
Both
  from  x: [2] cut at 0|2 float64 over 1
  from  s: [] float64 over ()
  to    t: [] float64 over ()
  to    y: [2] cut at 0|2 float64 over 1

It has no specification: no program says what it does.
""",
    ),
    (
        2 * Dense(np.eye(2)),
        """\
2 F
  from  x: [2] cut at 0|2 float64 over 1
  to    x: [2] cut at 0|2 float64 over 1

It has no specification: no program says what it does.
""",
    ),
    (
        program(SQUARE, OTHER, steps=PARTS),
        """\
ProgramOperator

Buffers
  a: x on rank 0
  b: y on rank 1
  c: z on rank 1

Forward
  F = K_c[0:1, 0:1] S_{c[0:1, 0:3]→b[1:2, 0:3]} S_{a[0:2, 1:3]→c[0:2, 0:2]} A_c
    1. A_c                          rank 1 allocates z [2, 3], zero
    2. S_{a[0:2, 1:3]→c[0:2, 0:2]}  rank 0 sends x, rank 1 adds it to z
    3. S_{c[0:1, 0:3]→b[1:2, 0:3]}  rank 1 adds z to y
    4. K_c[0:1, 0:1]                rank 1 clears z

Adjoint
  F* = D_c S_{c[0:2, 0:2]→a[0:2, 1:3]} S_{b[1:2, 0:3]→c[0:1, 0:3]} K_c[0:1, 0:1]
    1. K_c[0:1, 0:1]                rank 1 clears z
    2. S_{b[1:2, 0:3]→c[0:1, 0:3]}  rank 1 adds y to z
    3. S_{c[0:2, 0:2]→a[0:2, 1:3]}  rank 1 sends z, rank 0 adds it to x
    4. D_c                          rank 1 deallocates z
""",
    ),
]


@pytest.mark.parametrize(("operator", "text"), TEXTS, ids=["shift", "none", "scaled", "parts"])
def test_an_operator_is_explained_by_its_spaces_and_both_programs(
    operator: LinearOperator, text: str
) -> None:
    assert explain(operator) + "\n" == text


def test_buffers_beyond_the_alphabet_have_letters_with_numbers() -> None:
    many = program(*(Buffer(0, f"x{number:02}", ()) for number in range(54)))
    legend = explain(many).split("Buffers\n")[1].split("\n\n")[0].splitlines()
    labels = [line.split(":")[0].strip() for line in legend]
    assert labels[:2] == ["a", "b"]
    assert labels[25:28] == ["z", "a1", "b1"]
    assert labels[51:] == ["z1", "a2", "b2"]
    assert legend[53] == "  b2: x53 on rank 0"


@pytest.mark.parametrize(
    ("inputs", "legend"),
    [
        (["x0"], ["a: x on rank 0"]),
        (["x1"], ["a: x on rank 1"]),
        (["x0", "y1"], ["a: x on rank 0", "b: y on rank 1"]),
        (["y0", "x0", "x1"], ["0, 1: x on the rank of that number", "a: y on rank 0"]),
        (
            ["y0", "x0", "y1", "x1"],
            ["a: x on rank 0", "b: x on rank 1", "0, 1: y on the rank of that number"],
        ),
        ([], []),
    ],
)
def test_the_buffers_of_the_name_that_most_ranks_hold_are_called_by_the_ranks(
    inputs: list[str], legend: list[str]
) -> None:
    text = explain(program(*(Buffer(int(rank), name, ()) for name, rank in inputs)))
    found = text.split("Buffers\n")[1].split("\nForward")[0].strip("\n").splitlines()
    assert sorted(found) == sorted(f"  {line}" for line in legend)
