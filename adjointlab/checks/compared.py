"""Two matrices that should be equal, as evidence: the window around the first entry in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from adjointlab.checks.elements import element_name, global_name
from adjointlab.checks.evidence import ComparedMatrices, Element, weight_text
from adjointlab.checks.hints import Hint, matrix_hint
from adjointlab.core.space import Space, Tensor
from adjointlab.pictures.layouts import grid_of_tensor
from adjointlab.pictures.model import Mark, Role
from adjointlab.typing import NumpyArray

__all__ = ["OF_SPECIFICATION", "Bases", "compared", "locate", "place_of"]

_WINDOW: Final = 12
"""Largest number of rows and of columns of a matrix that are kept."""

OF_SPECIFICATION: Final = "specification"
"""Name of a matrix with which others are compared."""

_RANKED: Final = 256
"""Largest side of a matrix for which a hint is sought."""

_RANKS: Final = 8
"""Largest number of ranks in the picture of a tensor."""


Bases: TypeAlias = tuple[tuple[Space, Sequence[int]], tuple[Space, Sequence[int]]]
"""The space and the numbers of the basis vectors of a matrix's columns, and of its rows."""


def compared(
    names: tuple[str, str],
    matrices: tuple[NumpyArray, NumpyArray],
    wrong: NumpyArray,
    bases: Bases,
    *,
    of_adjoint: bool = False,
) -> ComparedMatrices:
    """Two matrices of shape (row, column), called `names`, which differ where `wrong` is true; at least one entry is.

    Columns belong to the domain and rows to the codomain's dual; with `of_adjoint` it is the other way round.
    """
    (source, column_vectors), (target, row_vectors) = bases
    column, row = (int(index) for index in np.argwhere(wrong.T)[0])
    rows, columns = _around(row, wrong.shape[0]), _around(column, wrong.shape[1])
    vectors = (tuple(int(row_vectors[i]) for i in rows), tuple(int(column_vectors[j]) for j in columns))
    at_source, at_target = int(column_vectors[column]), int(row_vectors[row])
    of_domain, of_codomain = (at_target, at_source) if of_adjoint else (at_source, at_target)
    domain, codomain = (target, source) if of_adjoint else (source, target)
    return ComparedMatrices(
        names,
        *vectors,
        tuple(
            tuple(tuple(weight_text(complex(matrix[i, j])) for j in columns) for i in rows)
            for matrix in matrices
        ),
        tuple((i - rows[0], j - columns[0]) for i in rows for j in columns if wrong[i, j]),
        (_labels(target, vectors[0]), _labels(source, vectors[1])),
        (row - rows[0], column - columns[0]),
        _element(domain, of_domain, Role.SOURCE, "domain"),
        _element(codomain, of_codomain, Role.TARGET, "codomain"),
        is_whole=wrong.shape == (len(rows), len(columns)),
        hint=_hint(names, matrices, bases),
    )


def _hint(names: tuple[str, str], matrices: tuple[NumpyArray, NumpyArray], bases: Bases) -> Hint | None:
    first, second = matrices
    if max(first.shape) > _RANKED:
        return None
    columns, rows = ([place_of(space, vector)[1] for vector in vectors] for space, vectors in bases)
    # Forward is compared with the specification, and adjoint with forward.
    got, want = (first, second) if names[1] == OF_SPECIFICATION else (second, first)
    return matrix_hint(got, want, rows, columns)


def _around(position: int, length: int) -> range:
    start = max(0, min(position - _WINDOW // 2, length - _WINDOW))
    return range(start, min(length, start + _WINDOW))


def _labels(space: Space, vectors: Sequence[int]) -> tuple[str, ...]:
    places = (place_of(space, vector) for vector in vectors)
    return tuple(f"{global_name(tensor, rank, local)}@{rank}" for tensor, rank, local in places)


def _element(space: Space, vector: int, role: Role, side: str) -> Element:
    tensor, rank, local = place_of(space, vector)
    index = tensor.layout.to_global(rank, local)
    # A basis vector of copies that are declared equal stands on all their ranks at once.
    copies = [other for other, first in tensor.groups.items() if first == tensor.groups[rank]]
    marks = [Mark(other, index, role) for other in copies[:_RANKS]]
    grid = grid_of_tensor(tensor, f"{tensor.name} ({side})", marks, _RANKS)
    return Element(replace(grid, note=""), global_name(tensor, rank, local), rank)


def locate(space: Space, index: int) -> str:
    """Name of the element in which a basis vector is 1: its global index, and its (first) rank."""
    return element_name(*place_of(space, index))


def place_of(space: Space, index: int) -> tuple[Tensor, int, tuple[int, ...]]:
    """Return the place where a basis vector is 1: the tensor, its (first) rank, and the index in that local tensor."""
    for position, tensor in enumerate(space.tensors):
        for rank in tensor.layout.partition.ranks:
            start = space.offset(position, rank)
            assert start is not None
            if start <= index < start + tensor.layout.local_size(rank):
                local = np.unravel_index(index - start, tensor.layout.local_shape(rank))
                return tensor, rank, tuple(int(i) for i in local)
    raise ValueError(f"index: {index} is not below the dimension {space.dimension}")
