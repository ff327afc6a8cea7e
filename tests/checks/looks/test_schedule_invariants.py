"""Results that no schedule may change: of each check, all that a direction has a part in."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from adjointlab.checks.adjoint import ADJOINT
from adjointlab.checks.check import AnyCheck, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.layers.sequential import SEQUENTIAL
from adjointlab.checks.linearity import LINEARITY
from adjointlab.checks.matrix import MATRIX
from adjointlab.checks.purity import PURITY
from adjointlab.checks.reentrancy import REENTRANCY
from adjointlab.checks.schedule_invariant import ScheduleInvariant
from adjointlab.checks.specification import SPECIFICATION
from tests.checks.looks.harness import PLAIN, WORLD
from tests.checks.looks.operators import Ring, on, ring

BOTH = [ADJOINT, LINEARITY, MATRIX, PURITY, REENTRANCY, SPECIFICATION]


def invariants(check: AnyCheck, **faults: Any) -> dict[str, ScheduleInvariant]:
    """The invariants of a ring with these faults, on two ranks."""

    def observe(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm
        make = partial(ring(Ring, is_specified=True, **faults), comm)
        context = CheckContext(make, PLAIN, comm, lambda x: x)
        return check.observe(context), Spaces(context.domain, context.codomain)

    with check.surroundings():
        seen = WORLD.run(observe, None, 2).values
    return dict(check.schedule_invariants(seen[0][1], [observation for observation, _ in seen]))


def differing(check: AnyCheck, direction: str, rank: int) -> set[str]:
    """The results that differ where a direction is wrong on one rank."""
    right, wrong = invariants(check), invariants(check, **{direction: on(rank)})
    return {name for name, result in right.items() if result.difference(wrong[name])}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("check", BOTH, ids=lambda check: check.name)
def test_every_result_of_either_direction_is_compared_on_every_rank(check: AnyCheck, rank: int) -> None:
    forward, adjoint = differing(check, "forward", rank), differing(check, "adjoint", rank)
    assert forward
    assert adjoint
    assert not forward & adjoint
    assert forward | adjoint == set(invariants(check))


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_compared_with_a_reference_is_compared_under_each_schedule(rank: int) -> None:
    assert differing(SEQUENTIAL, "forward", rank) == {"forward"}
