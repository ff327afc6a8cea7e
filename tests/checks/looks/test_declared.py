"""Looks of the check of declarations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.declared import DECLARED
from tests.checks.looks.harness import Look, assert_seen, each_of
from tests.checks.looks.operators import Copies, Ring, TwoOfCopies, filled_with, last_lost, on, ring


class Local(Ring):
    """Claims to be the identity, and is it but for its faults."""

    def moved(self, x: Any, step: int) -> Any:
        return np.array(x)


class OfOtherSpaces(Local):
    """Its last rank takes the others' parts for other ones."""

    def __init__(self, comm: Any, **given: Any) -> None:
        super().__init__(comm, **given)
        if self.rank == self.size - 1:
            layout = al.Layout.cut((2 * self.size,), (self.size,), [(0, 1, *range(4, 2 * self.size + 1, 2))])
            self.domain = self.codomain = al.Space(layout)


def in_torch(operator: Any, x: Any, result: Any) -> Any:
    return pytest.importorskip("torch").from_numpy(result)


def summed_to_copies(**fault: Any) -> Any:
    return ring(Copies, domain="partial", codomain="invariant", sums=("forward",), **fault)


def copied_to_summands(**fault: Any) -> Any:
    """The dual of its domain has equal copies."""
    return ring(Copies, domain="partial", codomain="replicated", sums=("forward", "adjoint"), **fault)


LOOKS = [
    Look("copies of forward on rank 1", summed_to_copies(forward=on(1)), "forward returns different copies", 3),
    Look("copies of forward on the last rank", summed_to_copies(forward=on(-1)), "forward returns different copies", 3),
    Look("copies of adjoint on rank 1", copied_to_summands(adjoint=on(1)), "adjoint returns different copies", 3),
    Look("copies of adjoint on the last rank", copied_to_summands(adjoint=on(-1)), "adjoint returns different copies", 3),
    Look("the rank of the other copy", summed_to_copies(forward=on(1)), "on rank 0"),
    Look("the last element of a copy", summed_to_copies(forward=on(1, last_lost)), "forward returns different copies"),
    Look("one copy that is NaN", summed_to_copies(forward=on(1, filled_with(np.nan))), "forward returns different copies"),
    Look("copies that are all NaN", summed_to_copies(forward=filled_with(np.nan)), ""),
    Look("copies of forward's second tensor", ring(TwoOfCopies, forward=on(-1)), "forward returns different copies", 3),
    Look("copies of adjoint's second tensor", ring(TwoOfCopies, adjoint=on(-1)), "adjoint returns different copies", 3),
    Look("equal copies", copied_to_summands(), "", 3),
    Look("an identity in forward on rank 0", ring(Local, is_identity=True, forward=on(0)), "forward is not the identity", 3),
    Look("an identity in forward on the last rank", ring(Local, is_identity=True, forward=on(-1)), "forward is not the identity", 3),
    Look("an identity in adjoint on rank 0", ring(Local, is_identity=True, adjoint=on(0)), "adjoint is not the identity", 3),
    Look("an identity in adjoint on the last rank", ring(Local, is_identity=True, adjoint=on(-1)), "adjoint is not the identity", 3),
    Look("the sign of an identity", ring(Local, is_identity=True, forward=lambda op, x, r: -r), "forward is not the identity"),
    Look("spaces of the last rank", ring(OfOtherSpaces), "0 and 2", 3),
    Look("an identity", ring(Local, is_identity=True), ""),
    Look("what does not claim to be one", ring(Local, forward=on(0)), ""),
]  # fmt: skip

OF_LIBRARIES = [
    Look(f"the library of {direction} on rank {rank}", ring(**{direction: on(rank, in_torch)}), "of another array library", 3)
    for direction in ("forward", "adjoint")
    for rank in (0, 2)
]  # fmt: skip


@each_of([*LOOKS, *OF_LIBRARIES])
def test_a_look_of_declarations(look: Look) -> None:
    if look in OF_LIBRARIES:
        pytest.importorskip("torch")
    assert_seen(DECLARED, look)
