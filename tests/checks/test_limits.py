"""Pictures and hints of large cases: so much is shown and looked at, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks import matrix
from adjointlab.checks.check import Spaces
from adjointlab.checks.compared import compared
from adjointlab.checks.declarations import declaration_hint
from adjointlab.checks.marked import marked_grid, tensor_hint
from adjointlab.pictures.model import Role

pytestmark = pytest.mark.mpi_skip

TYPES = {"invariant": np.ones((2, 2)), "replicated": np.eye(2)[::-1]}
"""The adjoint's matrix for copies of such a type, where forward's is the identity."""


@pytest.mark.parametrize("ranks", [7, 8, 9, 12])
def test_pictures_of_tensors_show_eight_ranks(ranks: int) -> None:
    copies = al.Space(al.Layout((1,), al.Partition((ranks,)), axes=[None]), types=["invariant"])
    cut = al.Space(al.Layout((ranks,), al.Partition((ranks,))))
    shown = min(ranks, 8)

    wrong = np.ones((ranks, 1), dtype=bool)
    bases = ((copies, [0]), (cut, range(ranks)))
    matrices = compared(("forward", "adjoint"), (1.0 * wrong, 2.0 * wrong), wrong, bases)
    for element in (matrices.of_domain, matrices.of_codomain):
        assert len(element.grid.pieces) == shown
    assert [mark.rank for mark in matrices.of_domain.grid.marks] == list(range(shown))

    grid = marked_grid(cut.tensors[0], (ranks - 1, Role.WRONG), (0,))
    assert {piece.rank for piece in grid.pieces} == {*range(shown - 1), ranks - 1}


@pytest.mark.parametrize(("elements", "is_told"), [(1000, True), (2**16, True), (2**16 + 1, False)])
def test_values_are_told_apart_up_to_65536_elements(elements: int, is_told: bool) -> None:
    tensor = al.Tensor(al.Layout((elements,), al.Partition((2,))))
    values = np.random.default_rng(0).integers(2000, 10**6, elements)
    want = dict(enumerate(np.split(values, [tensor.layout.local_size(0)])))
    hint = tensor_hint(tensor, {rank: 2 * part for rank, part in want.items()}, want, 0.0, 2)
    assert (hint is not None) is is_told


@pytest.mark.parametrize(
    ("position", "type_of_copies", "is_tried"),
    [(0, "replicated", True), (15, "replicated", True), (15, "invariant", True), (16, "replicated", False)],
)
def test_thirty_two_declarations_are_tried_two_of_each_tensor(
    position: int, type_of_copies: str, is_tried: bool
) -> None:
    copies, cut = al.Layout((1,), al.Partition((2,)), axes=[None]), al.Layout((2,), al.Partition((2,)))
    domain = al.Space(*(al.Tensor(copies, name=f"x{number}") for number in range(17)))
    forward, adjoint = np.zeros((2, domain.dimension)), np.zeros((2, domain.dimension))
    vectors = [domain.offset(position, rank) for rank in range(2)]
    forward[:, vectors], adjoint[:, vectors] = np.eye(2), TYPES[type_of_copies]

    told = declaration_hint(domain, al.Space(al.Tensor(cut, name="y")), forward, adjoint)

    assert told == (f"x{position} were declared {type_of_copies}" if is_tried else "")


@pytest.mark.parametrize(("rows", "is_shown"), [(256, True), (257, False)])
def test_the_specification_and_other_declarations_are_beside_matrices_of_65536_entries(
    rows: int, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain, codomain = (al.Space(al.Layout((side,), al.Partition((2,)))) for side in (256, rows))
    found = np.ones((rows, 256))
    observations: Any = [SimpleNamespace(programs=(None, None))]
    monkeypatch.setattr(matrix, "summed", lambda observations: (found, found))
    monkeypatch.setattr(matrix, "declaration_hint", lambda *given: "x were declared invariant")
    monkeypatch.setattr(
        matrix,
        "program_matrix",
        lambda program, source, target: np.zeros((target.dimension, source.dimension)),
    )

    shown = matrix.beside_specification(None, Spaces(domain, codomain), observations)
    assert (shown is not None) is is_shown
    assert bool(matrix._declaration(Spaces(domain, codomain), observations)) is is_shown
