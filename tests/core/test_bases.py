"""Basis vectors, coordinates and images of a space, by ranks: against NumPy on the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core.bases import LinearMap, basis_batch, basis_vector, combination, coordinates
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor

pytestmark = pytest.mark.mpi_skip

# x is cut over ranks 2 and 0 (three rows and two), w lies on rank 1 alone; rank 3 is inactive.
CUT = Layout((5, 2), Partition((2, 1), (2, 0)))
TWO = Space(Tensor(CUT, name="x"), Tensor(Layout((2,), Partition((1,), (1,))), "complex64", name="w"))
COPIES = {
    kind: Space(Layout((2,), Partition((2,), (1, 0)), axes=(None,)), types=(kind,))
    for kind in ("replicated", "varying", "partial", "invariant")
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_basis_of_two_tensors_is_numbered_by_worker_and_row_by_row(library: str) -> None:
    assert TWO.dimension == 12
    chosen = (0, 5, 6, 11, 10)
    columns = np.eye(12)[:, chosen]
    for rank, rows_of_x, rows_of_w in (
        (2, (0, 6), (0, 0)),
        (0, (6, 10), (0, 0)),
        (1, (0, 0), (10, 12)),
        (3, (0, 0), (0, 0)),
    ):
        x, w = basis_batch(TWO, chosen, rank, library)
        assert tuple(x.shape) == (*CUT.local_shape(rank), 5)
        assert tuple(w.shape) == (*TWO.tensors[1].layout.local_shape(rank), 5)
        np.testing.assert_array_equal(np.asarray(x).reshape(-1, 5), columns[slice(*rows_of_x)])
        np.testing.assert_array_equal(np.asarray(w).reshape(-1, 5), columns[slice(*rows_of_w)])
        assert (np.asarray(x).dtype, np.asarray(w).dtype) == (np.float64, np.complex64)
        for position, index in enumerate(chosen):
            one_x, one_w = basis_vector(TWO, index, rank, library)
            np.testing.assert_array_equal(np.asarray(one_x), np.asarray(x)[..., position])
            np.testing.assert_array_equal(np.asarray(one_w), np.asarray(w)[..., position])


@pytest.mark.parametrize("index", [-1, 12, 13])
def test_there_are_no_basis_vectors_but_those_of_the_dimension(index: int) -> None:
    with pytest.raises(ValueError, match=rf"^index: {index} is not in 0 \.\.\. 11, the basis of x: \[5, 2\]"):
        basis_vector(TWO, index, 0)


@pytest.mark.parametrize("kind", COPIES)
def test_a_combination_is_the_weighted_sum_of_the_basis_vectors(kind: str) -> None:
    for space in (TWO, COPIES[kind]):
        weights = np.arange(2.0, 2.0 + space.dimension)
        for rank in range(4):
            sums = combination(space, weights, rank)
            batch = basis_batch(space, range(space.dimension), rank)
            for tensor, array, columns in zip(space.tensors, sums, batch, strict=True):
                assert (array.dtype, array.shape) == (tensor.dtype, tensor.layout.local_shape(rank))
                np.testing.assert_array_equal(array, columns @ weights)


@pytest.mark.parametrize("kind", COPIES)
def test_coordinates_summed_over_the_ranks_are_the_pairings_with_the_dual_basis(kind: str) -> None:
    """The Gram matrix of basis and dual basis, of one element and of a batch."""
    for space in (TWO, COPIES[kind]):
        every = range(space.dimension)
        batch = sum(
            coordinates(space, basis_batch(space, every, rank), rank, (len(every),)) for rank in range(4)
        )
        assert isinstance(batch, np.ndarray)
        assert batch.shape == (space.dual.dimension, space.dimension)
        assert batch.dtype == (np.complex128 if space is TWO else np.float64)
        alone = [
            sum(coordinates(space, basis_vector(space, i, rank), rank) for rank in range(4)) for i in every
        ]
        np.testing.assert_array_equal(batch, np.stack(alone, axis=1))
    gram = {
        "replicated": [[1, 0], [0, 1], [1, 0], [0, 1]],  # the dual, partial, has a basis vector for each copy
        "varying": np.eye(4),
        "partial": [[1, 0, 1, 0], [0, 1, 0, 1]],  # a sum of two copies
        "invariant": np.eye(2),
    }
    np.testing.assert_array_equal(batch, gram[kind])


def line(size: int, name: str = "x") -> Space:
    return Space(Layout((size,), Partition((1,))), name=name)


def widths(source: int, target: int, count: int) -> list[tuple[int, ...]]:
    """The shapes of the batches that an operator between spaces of these dimensions is asked for."""
    asked: list[tuple[int, ...]] = []

    def apply(x: Any) -> Any:
        asked.append(x[0].shape)
        return x

    mapped = LinearMap(line(source), line(target), apply, 0, "numpy", batched=True)
    batches = [batch for _, batch in mapped.images(range(count))]
    assert asked == [(source, *batch) for batch in batches]
    return batches


def test_a_batch_of_basis_vectors_or_of_images_has_a_million_elements_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert widths(2**10, 1, 2**10 + 1) == [(2**10,), (1,)]  # 2**20 elements
    monkeypatch.setattr("adjointlab.core.bases._BATCH_ELEMENTS", 12)
    assert widths(4, 1, 4) == [(3,), (1,)]
    assert widths(3, 6, 3) == [(2,), (1,)]
    assert widths(4, 12, 4) == widths(4, 13, 4) == [(1,)] * 4
    assert widths(4, 4, 0) == []


def test_basis_vectors_are_applied_one_by_one_where_an_operator_takes_no_batch() -> None:
    images = list(LinearMap(line(3), line(3), tuple, 0, "numpy", batched=False).images((2, 0)))
    assert [batch for _, batch in images] == [(), ()]
    assert [image[0].tolist() for image, _ in images] == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("batched", [False, True])
def test_contributions_are_columns_of_the_matrix_in_the_order_that_is_asked_for(
    batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjointlab.core.bases._BATCH_ELEMENTS", 8)
    dense = np.arange(12.0).reshape(3, 4)
    product = LinearMap(line(4), line(3), lambda x: (dense @ x[0],), 0, "numpy", batched)
    for indices in ((), (2,), (3, 0, 1), range(4)):
        columns = product.contributions(indices)
        np.testing.assert_array_equal(columns, dense[:, list(indices)])
        assert columns.shape == (3, len(indices))
