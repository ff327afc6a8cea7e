"""The whole table of local types: what the adjoint of a collective is depends on what a copy means.

Along one dimension of P workers, each of them holding n elements, an operator is first of all a matrix that
acts on all memory. It is *defined* between two local types if it maps elements of the one to elements of the
other:

- an element of a varying tensor is anything; one of a replicated or invariant tensor is P equal copies;
- one of a partial tensor stands for the sum of its summands, so elements with equal sums are the same
  element.

The tables below were written by hand. The tests decide by linear algebra, over all memory and in exact
integers, which pairs are defined, and that the adjoint under the pairing is the one that the table names.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from adjointlab.core.bases import basis_vector
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.pairing import ZERO, Exact, pair_local
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space

N = 3
"""Elements of the global tensor: cut in two unevenly, in four with an empty local tensor."""

Matrix = np.ndarray[Any, Any]
Cell = tuple[str, str]
COPIED = ("varying", "replicated", "partial", "invariant")
CUT = ("varying",)


def own_window(ranks: int) -> list[tuple[int, int]]:
    return [window for (window,) in (Layout((N,), Partition((ranks,))).window(r) or () for r in range(ranks))]


def from_copies_to_cut(ranks: int, weight: Callable[[int, int], int]) -> Matrix:
    """Rows: each worker's own window of the cut. Columns: P copies of n elements; weight(row's rank,
    column's).
    """
    rows = [
        [weight(r, s) * int(i == k) for s in range(ranks) for k in range(N)]
        for r, (start, stop) in enumerate(own_window(ranks))
        for i in range(start, stop)
    ]
    return np.array(rows, dtype=np.int64).reshape(N, ranks * N)


def on_copies(weights: list[list[int]] | Matrix) -> Matrix:
    """The same P x P matrix for each of the n elements."""
    return np.kron(np.array(weights, dtype=np.int64), np.eye(N, dtype=np.int64))


def unit(ranks: int, *places: tuple[int, int]) -> Matrix:
    matrix = np.zeros((ranks, ranks), dtype=np.int64)
    for place in places:
        matrix[place] = 1
    return matrix


OPERATORS: dict[str, Callable[[int], Matrix]] = {
    # between tensors that every worker holds in full
    "identity": lambda P: on_copies(np.eye(P)),
    "all-reduce": lambda P: on_copies(np.ones((P, P))),
    "P * all-reduce": lambda P: on_copies(P * np.ones((P, P))),
    # worker 0's values to everybody
    "broadcast": lambda P: on_copies(unit(P, *((r, 0) for r in range(P)))),
    # the sum on worker 0, zero elsewhere
    "reduce": lambda P: on_copies(unit(P, *((0, r) for r in range(P)))),
    # worker 0's values stay, zero elsewhere
    "root": lambda P: on_copies(unit(P, (0, 0))),
    # from full tensors to a cut one: each worker its window of its own copy
    "slice": lambda P: from_copies_to_cut(P, lambda r, s: int(r == s)),
    "reduce-scatter": lambda P: from_copies_to_cut(P, lambda r, s: 1),
    # from a cut tensor to full ones: each worker its window, zero around it
    "place": lambda P: from_copies_to_cut(P, lambda r, s: int(r == s)).T,
    "all-gather": lambda P: from_copies_to_cut(P, lambda r, s: 1).T,
    "P * all-gather": lambda P: P * from_copies_to_cut(P, lambda r, s: 1).T,
}

# (domain, codomain) -> adjoint, for two workers and more. Pairs that are missing are not defined.
ALL_REDUCE: dict[Cell, str] = {
    ("varying", "varying"): "all-reduce",
    ("varying", "replicated"): "all-reduce",
    ("varying", "partial"): "all-reduce",
    ("varying", "invariant"): "identity",
    ("replicated", "varying"): "all-reduce",
    ("replicated", "replicated"): "all-reduce",
    ("replicated", "partial"): "all-reduce",
    ("replicated", "invariant"): "identity",
    ("partial", "varying"): "all-reduce",
    (
        "partial",
        "replicated",
    ): "all-reduce",  # the sum of gradients once more: torch.distributed.nn's convention
    ("partial", "partial"): "all-reduce",
    ("partial", "invariant"): "identity",  # Megatron's g
    ("invariant", "varying"): "P * all-reduce",
    ("invariant", "replicated"): "P * all-reduce",
    ("invariant", "partial"): "P * all-reduce",
    ("invariant", "invariant"): "all-reduce",
}
BROADCAST: dict[Cell, str] = {
    ("varying", "varying"): "reduce",  # eq. 17, with memory of its own for every copy
    ("varying", "replicated"): "reduce",
    ("varying", "partial"): "reduce",
    ("varying", "invariant"): "root",
    ("replicated", "varying"): "identity",
    ("replicated", "replicated"): "identity",
    ("replicated", "partial"): "identity",
    ("replicated", "invariant"): "root",
    ("invariant", "varying"): "all-reduce",
    ("invariant", "replicated"): "all-reduce",
    ("invariant", "partial"): "all-reduce",
    ("invariant", "invariant"): "identity",
}
IDENTITY: dict[Cell, str] = {
    ("varying", "varying"): "identity",
    ("varying", "partial"): "identity",
    ("replicated", "varying"): "identity",  # varying -> partial: nothing moves
    ("replicated", "replicated"): "identity",
    ("replicated", "partial"): "identity",
    ("replicated", "invariant"): "root",
    ("partial", "partial"): "identity",
    ("invariant", "varying"): "all-reduce",
    ("invariant", "replicated"): "all-reduce",  # Megatron's f
    ("invariant", "partial"): "all-reduce",
    ("invariant", "invariant"): "identity",
}
SLICE: dict[Cell, str] = {
    ("varying", "varying"): "place",
    ("replicated", "varying"): "place",  # varying -> partial: zeros around the window are summands
    ("invariant", "varying"): "all-gather",
}
REDUCE_SCATTER: dict[Cell, str] = {
    ("varying", "varying"): "all-gather",
    ("replicated", "varying"): "all-gather",
    ("partial", "varying"): "all-gather",
    ("invariant", "varying"): "P * all-gather",
}
PLACE: dict[Cell, str] = {("varying", "varying"): "slice", ("varying", "partial"): "slice"}
ALL_GATHER: dict[Cell, str] = {
    ("varying", "varying"): "reduce-scatter",
    ("varying", "replicated"): "reduce-scatter",
    ("varying", "partial"): "reduce-scatter",
    ("varying", "invariant"): "slice",
}
TABLES = {
    "all-reduce": (COPIED, COPIED, ALL_REDUCE),
    "broadcast": (COPIED, COPIED, BROADCAST),
    "identity": (COPIED, COPIED, IDENTITY),
    "slice": (COPIED, CUT, SLICE),
    "reduce-scatter": (COPIED, CUT, REDUCE_SCATTER),
    "place": (CUT, COPIED, PLACE),
    "all-gather": (CUT, COPIED, ALL_GATHER),
}


def space(ranks: int, local_type: str, cut: bool) -> Space:
    return Space(Layout((N,), Partition((ranks,)), axes=None if cut else (None,)), types=(local_type,))


def split(held: Space, memory: Matrix) -> list[Matrix]:
    """All memory as the local tensor of each rank."""
    layout = held.tensors[0].layout
    ends = np.cumsum([layout.local_size(rank) for rank in layout.partition.ranks])
    return np.split(memory, ends[:-1])


def elements(held: Space) -> Matrix:
    """A basis of the elements of a space, in all memory: one column each."""
    ranks = held.tensors[0].layout.partition.ranks
    columns = [
        np.concatenate([basis_vector(held, i, rank)[0] for rank in ranks]) for i in range(held.dimension)
    ]
    return np.stack(columns, axis=1).astype(np.int64)


def nothing(held: Space) -> Matrix:
    """Columns that span the contents of memory that stand for zero: in a partial tensor, all of sum zero."""
    (entry,) = held.tensors[0].types
    ranks = held.tensors[0].layout.partition.size
    if entry is not LocalType.PARTIAL:
        return np.zeros((elements(held).shape[0], 0), dtype=np.int64)
    columns = [on_copies(unit(ranks, (r, 0)) - unit(ranks, (0, 0)))[:, :N] for r in range(1, ranks)]
    return np.concatenate([*columns, np.zeros((ranks * N, 0), dtype=np.int64)], axis=1)


def are_elements(held: Space, columns: Matrix) -> bool:
    (entry,) = held.tensors[0].types
    return not entry.is_shared or all(
        np.array_equal(part, split(held, columns)[0]) for part in split(held, columns)
    )


def are_nothing(held: Space, columns: Matrix) -> bool:
    (entry,) = held.tensors[0].types
    return not np.any(sum(split(held, columns)) if entry is LocalType.PARTIAL else columns)


def is_defined(matrix: Matrix, domain: Space, codomain: Space) -> bool:
    return are_elements(codomain, matrix @ elements(domain)) and are_nothing(
        codomain, matrix @ nothing(domain)
    )


def pairing(held: Space, x: Matrix, g: Matrix) -> Exact:
    ranks = held.tensors[0].layout.partition.ranks
    total = ZERO
    for rank, a, b in zip(ranks, split(held, x), split(held, g), strict=True):
        total = total + pair_local(held, (a,), (b,), rank)
    return total


def is_adjoint(forward: Matrix, adjoint: Matrix, domain: Space, codomain: Space) -> bool:
    """<F x, g> = <x, F* g> for x and g in a basis of the domain and of the codomain's dual."""
    return all(
        pairing(codomain, forward @ x, g) == pairing(domain, x, adjoint @ g)
        for x, g in product(elements(domain).T, elements(codomain.dual).T)
    )


CELLS = [
    (operator, *cell)
    for operator, (domains, codomains, _) in TABLES.items()
    for cell in product(domains, codomains)
]
DEFINED = [cell for cell in CELLS if cell[1:] in TABLES[cell[0]][2]]


def spaces(operator: str, domain: str, codomain: str, ranks: int) -> tuple[Space, Space]:
    domains, codomains, _ = TABLES[operator]
    return space(ranks, domain, domains is CUT), space(ranks, codomain, codomains is CUT)


@pytest.mark.parametrize(("operator", "domain", "codomain"), CELLS)
def test_the_table_lists_the_pairs_of_types_between_which_an_operator_is_defined(
    operator: str, domain: str, codomain: str
) -> None:
    for ranks in (2, 3, 4):
        defined = is_defined(OPERATORS[operator](ranks), *spaces(operator, domain, codomain, ranks))
        assert defined == ((domain, codomain) in TABLES[operator][2])
    assert is_defined(OPERATORS[operator](1), *spaces(operator, domain, codomain, 1))


@pytest.mark.parametrize(("operator", "domain", "codomain"), DEFINED)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_adjoint_is_the_one_in_the_table(operator: str, domain: str, codomain: str, ranks: int) -> None:
    forward = OPERATORS[operator](ranks)
    adjoint = OPERATORS[TABLES[operator][2][domain, codomain]](ranks)
    x, y = spaces(operator, domain, codomain, ranks)
    assert is_defined(adjoint, y.dual, x.dual)
    assert is_adjoint(forward, adjoint, x, y)


@pytest.mark.parametrize(("operator", "domain", "codomain"), DEFINED)
def test_no_other_operator_passes_for_the_adjoint(operator: str, domain: str, codomain: str) -> None:
    forward = OPERATORS[operator](2)
    expected = OPERATORS[TABLES[operator][2][domain, codomain]](2)
    x, y = spaces(operator, domain, codomain, 2)
    for candidate in (make(2) for make in OPERATORS.values()):
        if candidate.shape != expected.shape or not is_defined(candidate, y.dual, x.dual):
            continue
        same = are_nothing(x.dual, (candidate - expected) @ elements(y.dual))
        assert is_adjoint(forward, candidate, x, y) == same


@pytest.mark.parametrize(("operator", "domain", "codomain"), DEFINED)
def test_the_adjoint_of_the_adjoint_is_the_operator(operator: str, domain: str, codomain: str) -> None:
    forward = OPERATORS[operator](3)
    adjoint = OPERATORS[TABLES[operator][2][domain, codomain]](3)
    x, y = spaces(operator, domain, codomain, 3)
    assert is_adjoint(adjoint, forward, y.dual, x.dual)


class Dense(LinearOperator):
    """The same two matrices over all memory as a distributed operator."""

    def __init__(self, comm: Any, domain: Space, codomain: Space, forward: Matrix, adjoint: Matrix) -> None:
        self.comm, self.domain, self.codomain = comm, domain, codomain
        self.matrices = forward, adjoint

    def _apply(self, matrix: Matrix, held: Space, local: Matrix) -> Any:
        everything = np.concatenate(self.comm.allgather(local))
        return split(held, (matrix @ everything).astype(local.dtype))[self.comm.Get_rank()]

    def forward(self, *x: Any) -> Any:
        return self._apply(self.matrices[0], self.codomain, x[0])

    def adjoint(self, *y: Any) -> Any:
        return self._apply(self.matrices[1], self.domain, y[0])


@pytest.mark.parametrize(("operator", "domain", "codomain"), DEFINED)
def test_the_matrix_of_the_adjoint_operator_is_the_transpose(
    operator: str, domain: str, codomain: str, on_ranks: Any
) -> None:
    x, y = spaces(operator, domain, codomain, 2)
    forward, adjoint = OPERATORS[operator](2), OPERATORS[TABLES[operator][2][domain, codomain]](2)

    def body(comm: Any) -> tuple[Matrix, Matrix]:
        subject = Dense(comm, x, y, forward, adjoint)
        return subject.matrix(), subject.H.matrix()

    for matrix, of_adjoint in on_ranks(2, body):
        assert matrix.shape == (y.dual.dimension, x.dimension)
        assert np.array_equal(of_adjoint, matrix.T)
        assert np.any(matrix)
