"""Looks of the proof."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from adjointlab.checks.proof import PROOF, _random_vector
from adjointlab.checks.verdict import Figure
from adjointlab.core.operator import Direction
from tests.checks.looks.harness import Look, assert_seen, each_of, verdict
from tests.checks.looks.operators import (
    Copies,
    Fault,
    Ring,
    RingWithForms,
    TwoOfCopies,
    doubled,
    last_lost,
    noting_largest,
    on,
    ring,
    where,
)
from tests.checks.looks.test_matrix import InBatches, at_a_basis_vector, of_batches
from tests.checks.looks.test_purity import only

NOT_TRANSPOSE = "adjoint is not the transpose of forward"


def is_no_basis_vector(operator: Any, x: Any) -> bool:
    """True on every rank for values that no basis vector has."""
    return any(operator.comm.allgather(float(abs(x).max(initial=0)) > 1))


def nan_for(fault: Fault) -> Fault:
    return lambda operator, x, result: fault(operator, x, result) + float("nan")


def both(direction: str) -> list[Look]:
    """The looks of a direction."""
    specified = f"{direction} is not what its specification says"
    image = f"{direction} gives a random vector another image"

    def fault(one: Any, is_specified: bool = True, kind: Any = Ring) -> Any:
        return ring(kind, is_specified=is_specified, **{direction: one})

    return [
        Look(f"{direction} beside the specification on rank 0", fault(on(0)), specified, 3),
        Look(f"{direction} beside the specification on the last rank", fault(on(-1)), specified, 3),
        Look(f"{direction} of the last basis vector", fault(at_a_basis_vector(-1, -1)), specified, 3),
        Look(f"{direction}, NaN", fault(on(1, nan_for(doubled))), specified),
        Look(f"{direction}, exactly", fault(lambda operator, x, r: r * (1 + 2.0**-50)), specified),
        Look(f"{direction} beside the other", fault(on(-1), is_specified=False), NOT_TRANSPOSE, 3),
        Look(f"{direction} of the first basis vector beside the other", fault(at_a_basis_vector(0, 0), is_specified=False), NOT_TRANSPOSE, 3),
        Look(f"{direction} of a random vector on rank 0", fault(on(0, where(lambda op, x: float(abs(x).max()) > 1))), image, 3),
        Look(f"{direction} of a random vector on the last rank", fault(on(-1, where(lambda op, x: float(abs(x).max()) > 1))), image, 3),
        Look(f"{direction} in a batch", ring(InBatches, **{direction: where(of_batches)}), NOT_TRANSPOSE, 3),
        Look(f"{direction} into `out`", ring(RingWithForms, into=only(direction, on(-1, last_lost))), f"{direction} into `out` gives a random vector another image", 3),
        Look(f"{direction} in place", ring(RingWithForms, in_place=only(direction, on(-1, last_lost))), f"{direction} in place gives a random vector another image", 3),
    ]  # fmt: skip


LOOKS = [
    *both("forward"),
    *both("adjoint"),
    Look("conjugates", ring(dtype="complex128", forward=lambda o, x, r: r * 1j, adjoint=lambda o, y, r: r * -1j), ""),
    Look("conjugates that are missing", ring(dtype="complex128", forward=lambda o, x, r: r * 1j, adjoint=lambda o, y, r: r * 1j), NOT_TRANSPOSE),
    Look("copies of forward", ring(Copies, domain="partial", codomain="invariant", sums=("forward",), forward=on(-1)), "forward returns different copies", 3),
    Look("copies of adjoint", ring(Copies, domain="invariant", codomain="partial", sums=("adjoint",), adjoint=on(-1, last_lost)), "adjoint returns different copies", 3),
    Look("copies of forward's second tensor", ring(TwoOfCopies, forward=on(-1)), "forward returns different copies", 3),
    Look("copies of adjoint's second tensor", ring(TwoOfCopies, adjoint=on(-1)), "adjoint returns different copies", 3),
    Look("a right operator", ring(is_specified=True), "", 3),
    Look("a right operator with other forms", ring(RingWithForms, is_specified=True), "", 3),
]  # fmt: skip


@each_of(LOOKS)
def test_a_look_of_the_proof(look: Look) -> None:
    assert_seen(PROOF, look)


def test_the_entries_are_counted() -> None:
    assert verdict(PROOF, Look("", ring(shape=(3,)), "", 2)).figures == {Figure.ENTRIES: 36}


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
def test_the_wrong_entry_is_named_by_domain_and_codomain(direction: str) -> None:
    found = verdict(PROOF, Look("", ring(shape=(1,), is_specified=True, **{direction: on(1)}), "", 3))
    assert found.entry is not None
    # What rank 1 gets is from rank 0 in forward, and belongs to the cotangent of rank 2 in adjoint.
    assert (found.entry.column, found.entry.row) == {"forward": (0, 1), "adjoint": (1, 2)}[direction]
    assert found.entry.weight == 1


@pytest.mark.parametrize("bound", [1, 2, 7, 64])
def test_the_random_vector_has_each_integer_up_to_its_bound_as_often(bound: int) -> None:
    count = 400 * (2 * bound + 1)
    drawn = []
    for seed, direction in product((3, 4), Direction):
        drawn.append(_random_vector(seed, direction, bound, count, is_complex=False))
        both = _random_vector(seed, direction, bound, count, is_complex=True)
        assert (both.real == drawn[-1]).all()
        drawn.append(both.imag.copy())
        drawn[-1].flags.writeable = both.flags.writeable
    for vector in drawn:
        values, times = np.unique(vector, return_counts=True)
        assert values.tolist() == list(range(-bound, bound + 1))
        assert (np.abs(times - 400) < 120).all()
        assert not vector.flags.writeable
    assert len({vector.tobytes() for vector in drawn}) == 8


def test_random_vectors_of_a_proof_have_integers_up_to_64() -> None:
    # So that a sum of products with any whole matrix that is proved is exact in float64.
    largest: dict[str, float] = {}
    make = ring(shape=(150,), **noting_largest(largest))
    assert verdict(PROOF, Look("", make, "")).is_coherent
    assert largest == {"forward": 64, "adjoint": 64}


@pytest.mark.parametrize(
    ("seed", "forward", "adjoint"),
    [(0, [-7, 4, 1, 1, 4, -3], [4, -7, -5, 6, 7, 0]), (3, [3, -3, 2, -1, -2, 3], [6, -6, 2, -1, -7, -3])],
)
def test_a_case_that_was_stored_is_replayed_with_the_random_vectors_that_it_had(
    seed: int, forward: list[int], adjoint: list[int]
) -> None:
    for direction, expected in ((Direction.FORWARD, forward), (Direction.ADJOINT, adjoint)):
        assert _random_vector(seed, direction, 7, 6, is_complex=False).tolist() == expected


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
def test_a_direction_is_told_beside_its_specification(direction: str) -> None:
    found = verdict(PROOF, Look("", ring(shape=(1,), is_specified=True, **{direction: on(1)}), "", 3))
    assert found.headline == f"{direction} is not what its specification says"
    moved = {"forward": "x[0] (rank 0) to y[1] (rank 1)", "adjoint": "y[2] (rank 2) to x[1] (rank 1)"}[
        direction
    ]
    assert found.lines == (
        (direction, f"moves {moved} with weight 2"),
        ("program", "gives that entry weight 1"),
    )
