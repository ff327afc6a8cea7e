"""Of two matrices that differ, the part around the first difference is shown, with what its rows and columns stand for."""

from __future__ import annotations

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.compared import compared
from adjointlab.checks.drawing import _matrices
from adjointlab.checks.evidence import ComparedMatrices, Element
from adjointlab.pictures.model import Grid

ROWS, COLUMNS = 20, 30
DOMAIN, CODOMAIN = (
    al.Space(al.Tensor(al.Layout((side,), al.Partition((2,))), name=name))
    for side, name in ((COLUMNS, "x"), (ROWS, "y"))
)


@pytest.mark.parametrize("of_adjoint", [False, True])
@pytest.mark.parametrize(("row", "first_row"), [(0, 0), (6, 0), (7, 1), (10, 4), (14, 8), (19, 8)])
@pytest.mark.parametrize(("column", "first_column"), [(5, 0), (12, 6), (29, 18)])
def test_twelve_rows_and_columns_around_the_first_difference_are_shown(
    row: int, first_row: int, column: int, first_column: int, of_adjoint: bool
) -> None:
    first = np.arange(ROWS * COLUMNS, dtype=float).reshape(ROWS, COLUMNS)
    second = first.copy()
    second[row, column] += 0.5
    second[19, 29] += 0.5  # the last in any order
    spaces = (CODOMAIN, DOMAIN) if of_adjoint else (DOMAIN, CODOMAIN)
    if of_adjoint:
        first, second = first.T, second.T
        row, first_row, column, first_column = column, first_column, row, first_row
    bases = tuple((space, range(space.dimension)) for space in spaces)
    shown = compared(("forward", "adjoint"), (first, second), first != second, bases, of_adjoint=of_adjoint)  # type: ignore[arg-type]

    rows, columns = range(first_row, first_row + 12), range(first_column, first_column + 12)
    assert (shown.rows, shown.columns) == (tuple(rows), tuple(columns))
    assert shown.first == (row - first_row, column - first_column)
    assert shown.first in shown.wrong
    assert not shown.is_whole
    for entries, matrix in zip(shown.entries, (first, second), strict=True):
        assert entries == tuple(tuple(f"{matrix[i, j]:g}" for j in columns) for i in rows)


@pytest.mark.parametrize(("side", "has_hint"), [(4, True), (256, True), (257, False), (300, False)])
def test_the_relation_of_large_matrices_is_not_looked_for(side: int, has_hint: bool) -> None:
    bases = ((al.Space(al.Layout((side,), al.Partition((2,)))), range(side)),) * 2
    right = np.eye(side) + np.eye(side)[::-1]
    shown = compared(("forward", "specification"), (2 * right, right), right != 0, bases)
    assert (shown.hint is not None) is has_hint
    if shown.hint is not None:
        # Forward is compared with the specification, and adjoint against forward.
        assert shown.hint.text == "twice the expected value, on 2 ranks"
        held = compared(("forward", "adjoint, transposed"), (2 * right, right), right != 0, bases)
        assert held.hint is not None
        assert held.hint.text == "half of the expected value, on 2 ranks"


@pytest.mark.parametrize("is_whole", [False, True])
def test_entries_are_marked_that_differ_from_the_specification_where_there_is_one(is_whole: bool) -> None:
    element = Element(Grid("", "", (), (), ()), "x", 0)
    found = {
        "forward": (("1", "2"), ("3", "4")),
        "adjoint": (("1", "2"), ("3", "5")),
        "specification": (("1", "0"), ("3", "4")),
    }

    def marked(*names: str) -> list[set[tuple[int, int]]]:
        entries = tuple(found[name] for name in names)
        labels = (("a", "b"), ("c", "d"))
        matrices = ComparedMatrices(
            names, (0, 1), (0, 1), entries, ((1, 1),), labels, (1, 1), element, element, is_whole=is_whole
        )
        drawn = _matrices(matrices)
        assert (drawn.rows, drawn.columns) == labels
        assert [(each.title, each.entries) for each in drawn.matrices] == list(
            zip(names, entries, strict=True)
        )
        assert ("part of the matrix" in drawn.note) is not is_whole
        return [set(each.wrong) for each in drawn.matrices]

    assert marked("forward", "adjoint") == [{(1, 1)}, {(1, 1)}]
    assert marked("forward", "adjoint", "specification") == [{(0, 1)}, {(0, 1), (1, 1)}, set()]
