"""Looks of the matrix test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.checks.check import BothDirections
from adjointlab.checks.context import InputSetting
from adjointlab.checks.matrix import MATRIX, MatrixCheck, _explained_by_graph
from adjointlab.checks.probed_matrices import ProbedMatrices, _chosen
from adjointlab.checks.verdict import Figure
from tests.checks.looks.harness import Look, assert_seen, each_of, verdict
from tests.checks.looks.operators import Ring, doubled, filled_with, last_lost, on, ring, where
from tests.checks.looks.test_adjoint import Embedding, RealPart

WRONG = "adjoint is not the transpose of forward"


class InBatches(Ring):
    """Takes batches, which its faults get too."""

    batched = True


def basis(number: int) -> Any:
    """True on the rank that has the basis vector of that local number, in a call with it alone."""
    return lambda operator, x: bool(x.ravel()[number % x.size] == 1 and np.abs(x).sum() == 1)


def at_a_basis_vector(number: int, rank: int) -> Any:
    """Doubled on all ranks where one rank has the basis vector."""
    has = basis(number)

    def apply(operator: Any, x: Any, result: Any) -> Any:
        mine = operator.rank == rank % operator.size and has(operator, x)
        return doubled(operator, x, result) if any(operator.comm.allgather(mine)) else result

    return apply


def of_batches(operator: Any, x: Any) -> bool:
    return bool(x.ndim == 2)


def of_one(operator: Any, x: Any) -> bool:
    return bool(x.ndim == 1)


def one_more(operator: Any, x: Any, result: Any) -> Any:
    return result + 1


def in_a_batch(number: int) -> Any:
    """Doubles one member of a batch."""

    def change(operator: Any, x: Any, result: Any) -> Any:
        if x.ndim == 2:
            result[:, number] *= 2
        return result

    return change


def times(weight: complex) -> Any:
    return lambda operator, x, result: result * weight


def both(direction: str) -> list[Look]:
    """The looks of a direction."""
    batch = f"{direction} gives something else for a batch"
    return [
        Look(f"{direction} on rank 0", ring(**{direction: on(0)}), WRONG, 3),
        Look(f"{direction} on the last rank", ring(**{direction: on(-1)}), WRONG, 3),
        Look(f"{direction}, the last element", ring(**{direction: on(1, last_lost)}), WRONG),
        Look(f"{direction} of the first basis vector", ring(**{direction: at_a_basis_vector(0, 0)}), WRONG, 3),
        Look(f"{direction} of the last basis vector", ring(**{direction: at_a_basis_vector(-1, -1)}), WRONG, 3),
        Look(f"{direction}, the sign", ring(**{direction: times(-1)}), WRONG),
        Look(f"{direction}, the imaginary part", ring(dtype="complex128", **{direction: times(1j)}), WRONG),
        Look(f"{direction}, the imaginary part beside a right real part", ring(dtype="complex128", **{direction: times(1 + 1j)}), WRONG),
        Look(f"{direction}, whole numbers exactly", ring(**{direction: times(1 + 2.0**-50)}), WRONG),
        Look(f"{direction} of a batch on rank 0", ring(InBatches, **{direction: on(0, where(of_one, one_more))}), batch, 3),
        Look(f"{direction} of a batch on the last rank", ring(InBatches, **{direction: on(-1, where(of_one, one_more))}), batch, 3),
        Look(f"{direction} in a batch", ring(InBatches, **{direction: where(of_batches)}), batch, 3),
        *(Look(f"{direction} of member {number} of a batch", ring(InBatches, **{direction: in_a_batch(number)}), batch, 3, InputSetting(6 + number)) for number in (0, 3, 5)),
        Look(f"{direction}, NaN on rank 0", ring(**{direction: on(0, filled_with(np.nan))}), f"{direction} returned nan on rank 0", 3),
        Look(f"{direction}, infinity on the last rank", ring(**{direction: on(-1, filled_with(np.inf))}), f"{direction} returned inf on rank 2", 3),
    ]  # fmt: skip


def sevenths(operator: Any, x: Any, result: Any) -> Any:
    return result / 7


def rounded_once_more(operator: Any, x: Any, result: Any) -> Any:
    return result * (3 / 7) / 3


def further_off(operator: Any, x: Any, result: Any) -> Any:
    return result * (1 / 7 + 2.0**-48)


FOURFOLD = {"forward": times(4), "adjoint": times(4)}

LOOKS = [
    *both("forward"),
    *both("adjoint"),
    Look("the real part of a mixed pair", ring(RealPart, weight=2), WRONG),
    Look("the real part alone of a mixed pair", ring(RealPart), ""),
    Look("the real part of the other mixed pair", ring(Embedding, weight=2), WRONG),
    Look("the real part alone of the other mixed pair", ring(Embedding), ""),
    Look("entries that are rounded", ring(forward=sevenths, adjoint=rounded_once_more), ""),
    Look("entries that rounding does not explain", ring(forward=sevenths, adjoint=further_off), WRONG),
    Look("a gain that is declared too small", ring(gain=3, **FOURFOLD), "the declared gain is too small"),
    Look("a gain that is declared", ring(gain=4, **FOURFOLD), ""),
    Look("batches", ring(InBatches), "", 3),
]


@each_of(LOOKS)
def test_a_look_of_the_matrix_test(look: Look) -> None:
    assert_seen(MATRIX, look)


class SumOnRankZero(Ring):
    """Row sums of 4, the other way column sums: sums of both directions count for the gain."""

    def __init__(self, comm: Any, sums: str, **given: Any) -> None:
        super().__init__(comm, **given)
        self.sums = sums

    def forward(self, x: Any) -> Any:
        return self.applied_sum(x) if self.sums == "forward" else self.copied(x)

    def adjoint(self, y: Any) -> Any:
        return self.copied(y) if self.sums == "forward" else self.applied_sum(y)

    def applied_sum(self, x: Any) -> Any:
        total = self.comm.allreduce(x.sum())
        return np.array([total, 0.0]) if self.rank == 0 else np.zeros(2)

    def copied(self, y: Any) -> Any:
        return np.full(2, self.comm.bcast(y[0] if self.rank == 0 else None))


@pytest.mark.parametrize("sums", ["forward", "adjoint"])
def test_a_gain_that_either_direction_exceeds_is_too_small(sums: str) -> None:
    assert_seen(MATRIX, Look("", ring(SumOnRankZero, sums=sums, gain=3), "row sum   4"))
    assert_seen(MATRIX, Look("", ring(SumOnRankZero, sums=sums, gain=4), ""))


def test_a_sample_has_every_basis_vector_sooner_or_later_the_last_included() -> None:
    sampled = [set(_chosen(30, 24, seed)) for seed in range(20)]
    assert {len(each) for each in sampled} == {24}
    assert set.union(*sampled) == set(range(30))
    assert any(29 in each for each in sampled[:5])
    assert _chosen(24, 24, 0) == tuple(range(24))


def test_rows_and_columns_are_sampled_apart_and_the_entries_are_counted() -> None:
    whole = verdict(MATRIX, Look("", ring(shape=(3,)), "", 2))
    assert whole.figures == {Figure.ENTRIES: 36, Figure.PROVED: "all entries"}
    sampled = verdict(MatrixCheck(limit=4), Look("", ring(shape=(3,)), "", 2))
    assert sampled.figures == {Figure.ENTRIES: 16, Figure.PROVED: "a sample"}
    rows_and_columns = [(_chosen(30, 24, seed), _chosen(30, 24, seed + 1)) for seed in range(3)]
    assert all(columns != rows for columns, rows in rows_and_columns)


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
def test_a_sample_compares_the_entries_that_it_has(direction: str) -> None:
    """A matrix that is wrong everywhere but on the diagonal of the ring is seen by any sample of both sides."""

    def all_of(operator: Any, x: Any, result: Any) -> Any:
        return result + operator.comm.allreduce(x.sum())

    settings = [InputSetting(seed) for seed in range(3)]
    looks = [Look("", ring(shape=(3,), **{direction: all_of}), WRONG, 2, setting) for setting in settings]
    for look in looks:
        assert not verdict(MatrixCheck(limit=2), look).is_coherent


def test_a_picture_marks_the_entry_that_is_named() -> None:
    found = verdict(MATRIX, Look("", ring(adjoint=doubled), WRONG, 3))
    assert found.entry is not None
    assert found.evidence is not None
    shown = found.evidence.matrices
    assert shown is not None
    row, column = shown.first
    assert (shown.columns[column], shown.rows[row]) == (found.entry.column, found.entry.row)
    assert (shown.of_domain.name, shown.of_codomain.name) == (
        f"x[{found.entry.column}]",
        f"y[{found.entry.row}]",
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_entry_of_a_sample_is_told_by_the_elements_that_it_belongs_to(seed: int) -> None:
    look = Look("", ring(shape=(6,), adjoint=doubled), WRONG, 2, InputSetting(seed))
    found = verdict(MatrixCheck(limit=8), look)
    assert found.entry is not None
    # Six elements on each of two ranks, each of which moves to the other rank.
    column, row = found.entry.column, found.entry.row
    assert dict(found.lines)["forward"] in {
        f"moves x[{column}] (rank {column // 6}) to y[{row}] (rank {row // 6}) with weight {int(row == (column + 6) % 12)}"
    }


def test_an_output_without_a_graph_is_told_with_its_ranks() -> None:
    def seen(*without_graph: str) -> ProbedMatrices:
        nothing = np.zeros((0, 0))
        return ProbedMatrices((), (), BothDirections(nothing, nothing), 0.0, 0, without_graph)

    lines = _explained_by_graph([seen("y"), seen(), seen("y", "z")])
    assert [label for label, _ in lines] == ["no graph", "no graph"]
    assert "output y does not require a gradient (rank 0, 2)" in lines[0][1]
    assert "output z does not require a gradient (rank 2)" in lines[1][1]
