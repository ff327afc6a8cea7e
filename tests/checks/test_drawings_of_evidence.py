"""Each part of the evidence becomes a part of the drawing, compared as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from adjointlab.checks.drawing import _weights, _with_fewer, verdict_drawing
from adjointlab.checks.evidence import (
    ComparedMatrices,
    Element,
    Evidence,
    MatchedCall,
    MatchedCalls,
    Place,
    Wait,
)
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.verdict import unjudged
from adjointlab.pictures.model import (
    Event,
    Grid,
    Lanes,
    Mark,
    Matrices,
    Matrix,
    Movement,
    Part,
    Piece,
    Remark,
    Role,
    Waiting,
    Waits,
    Weight,
)

pytestmark = pytest.mark.mpi_skip


def drawn(evidence: Evidence, most_ranks: int = 8) -> tuple[Part, ...]:
    return verdict_drawing(unjudged("wrong", evidence=evidence), most_ranks).parts


def grid_of(ranks: int, *marked: int) -> Grid:
    pieces = tuple(Piece(rank, ((rank, rank + 1),)) for rank in range(ranks))
    return Grid(
        "x", "a note", (ranks,), pieces, (), tuple(Mark(rank, (rank,), Role.WRONG) for rank in marked)
    )


@pytest.mark.parametrize(
    ("most", "marked", "pieces"),
    [
        (3, (), [0, 1, 2]),
        (3, (4,), [0, 1, 4]),
        (3, (0, 5), [0, 1, 5]),
        (3, (1, 3, 5), [1, 3, 5]),
        (2, (1, 3, 5), [1, 3]),
        (6, (5,), [0, 1, 2, 3, 4, 5]),
        (9, (), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_grid_of_many_ranks_keeps_those_of_its_marks(
    most: int, marked: tuple[int, ...], pieces: list[int]
) -> None:
    shown = _with_fewer(grid_of(6, *marked), most)
    assert [piece.rank for piece in shown.pieces] == pieces
    assert [mark.rank for mark in shown.marks] == [rank for rank in marked if rank in pieces]
    assert (shown.title, shown.note, shown.shape) == ("x", "a note", (6,))


@pytest.mark.parametrize(
    ("names", "values", "arrows"),
    [
        (
            ("forward", "adjoint"),
            ("1", "2"),
            (Weight("forward", "1"), Weight("adjoint", "2", True, True, "must be forward's ×1")),
        ),
        (
            ("forward", "adjoint, transposed", "specification"),
            ("1", "2", "1"),
            (Weight("forward", "1"), Weight("adjoint", "2", True, True, "should be ×1")),
        ),
        (
            ("forward, twice", "adjoint", "specification"),
            ("3", "1", "1"),
            (Weight("forward", "3", False, True, "should be ×1"), Weight("adjoint", "1", True)),
        ),
        (("forward", "specification"), ("0", "5"), (Weight("forward", "0", False, True, "should be ×5"),)),
    ],
)
def test_arrows_carry_the_weights_and_say_which_are_wrong(
    names: tuple[str, ...], values: tuple[str, ...], arrows: tuple[Weight, ...]
) -> None:
    assert _weights(names, values) == arrows


def test_matrices_are_drawn_with_the_movement_between_the_two_elements() -> None:
    source, target = Element(grid_of(3, 1), "x[1]", 1), Element(grid_of(3, 2), "y[2]", 2)
    entries = ((("1", "2"), ("3", "4")), (("1", "2"), ("7", "4")))
    labels = (("y[0]@0", "y[2]@2"), ("x[1]@1", "x[2]@2"))
    matrices = ComparedMatrices(
        ("forward", "adjoint"), (0, 2), (1, 2), entries, ((1, 0),), labels, (1, 0), source, target
    )
    movement, tables = drawn(Evidence(matrices=matrices), 2)
    assert movement == Movement(
        (_with_fewer(source.grid, 2), _with_fewer(target.grid, 2)),
        "x[1] on rank 1",
        "y[2] on rank 2",
        (Weight("forward", "3"), Weight("adjoint", "7", True, True, "must be forward's ×3")),
    )
    assert isinstance(tables, Matrices)
    assert tables.matrices == (
        Matrix("forward", entries[0], frozenset({(1, 0)})),
        Matrix("adjoint", entries[1], frozenset({(1, 0)})),
    )


def test_a_place_is_drawn_with_both_values_and_the_hint() -> None:
    hint = Hint(FaultKind.DOUBLED, "twice the expected value")
    place = Place(grid_of(2, 1), "y[1] (rank 1)", (("distributed", "4"), ("sequential", "2")))
    grid, told, *_ = drawn(Evidence(place=place, hint=hint))
    assert grid == Grid("x", "", (2,), place.grid.pieces, (), place.grid.marks)
    assert told == Remark(f"{Role.WRONG.value} y[1] (rank 1): distributed = 4, sequential = 2")


def test_ranks_that_wait_are_drawn_with_their_lines_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rings.py"
    path.write_text("first\n    comm.Recv(x)\n")
    monkeypatch.chdir(tmp_path)
    waits = (
        Wait(2, "ended", is_blocked=False),
        Wait(0, "Recv(source=1)", f"{path}:2", (1,)),
        Wait(1, "Recv(source=0)", "/elsewhere/a.py:7", (0,)),
        Wait(3, "Recv(source=2)", "?", (2,)),
    )
    assert drawn(Evidence(waits=waits)) == (
        Waits(
            (
                Waiting(0, "Recv(source=1)", "rings.py:2", "comm.Recv(x)", (1,), True),
                Waiting(1, "Recv(source=0)", "/elsewhere/a.py:7", "", (0,), True),
                Waiting(2, "ended", "", "", (), False),
                Waiting(3, "Recv(source=2)", "?", "", (2,), True),
            ),
            (0, 1),
            0,
        ),
    )


@pytest.mark.parametrize(("ranks", "left_out"), [(15, 0), (16, 0), (17, 1), (20, 4)])
def test_sixteen_ranks_are_drawn_those_of_the_cycle_and_that_wait_first(ranks: int, left_out: int) -> None:
    last = ranks - 1
    waits = tuple(
        Wait(rank, "Recv", "", (last - 1 if rank == last else last,), True)
        if rank >= last - 1
        else Wait(rank, "Recv", "", (last,), rank % 2 == 1)
        for rank in range(ranks)
    )
    (part,) = drawn(Evidence(waits=waits))
    assert isinstance(part, Waits)
    assert part.cycle == (last - 1, last)
    shown = [each.rank for each in part.waiting]
    assert shown == sorted(shown)
    # The last of those that do not wait are left out.
    idle = [rank for rank in range(ranks - 2) if rank % 2 == 0]
    assert set(range(ranks)) - set(shown) == set(idle[len(idle) - left_out :])
    assert part.left_out == left_out


@pytest.mark.parametrize("different", [None, 0, 1])
def test_matched_calls_are_a_sequence_of_events(different: int | None) -> None:
    calls = (MatchedCall(2, "Recv()", 0), MatchedCall(5, "Waitany()"))
    (lanes,) = drawn(Evidence(matched=(MatchedCalls("random, seed 3", calls, different),)))
    assert lanes == Lanes(
        "messages under random, seed 3",
        (0, 2, 5),
        (Event(2, "Recv()", 0, different == 0), Event(5, "Waitany()", None, different == 1)),
    )
