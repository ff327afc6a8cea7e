"""Fixtures that run an operator on simulated ranks, with values keyed by rank and index, and compare exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from adjointlab.checks.elements import first_difference
from adjointlab.checks.memory_orders import place
from adjointlab.core import arrays
from adjointlab.core.operator import LinearOperator, apply_adjoint, apply_forward
from adjointlab.core.pairing import ZERO, pair_local
from adjointlab.core.program import Program
from adjointlab.core.space import LocalType, Space
from adjointlab.core.vectors import Draw, local_values
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.outcomes import values_of

settings.register_profile(
    "primitives", deadline=None, suppress_health_check=list(HealthCheck), max_examples=50
)
settings.load_profile("primitives")

Local = tuple[Any, ...]


@pytest.fixture(scope="session")
def spmd() -> Callable[..., tuple[Any, ...]]:
    """``spmd(ranks, body)``: the values of ``body(comm)`` on all ranks, or the first exception raised."""

    def run(ranks: int, body: Callable[[Any], Any]) -> tuple[Any, ...]:
        return values_of(SimulatedWorld(ranks).run(lambda context, _: body(context.comm)))

    return run


@pytest.fixture(scope="session")
def apply_both(spmd: Callable[..., Any]) -> Callable[..., Any]:
    """Assert that forward and adjoint are what the specification says, exactly, and adjoint to each other.

    ``apply_both(ranks, make, library, order)``: the operators that ``make(comm)`` made on each rank, with small
    integers, keyed by rank, as inputs in a memory order. Inputs and the memory around them must stay as they were, and
    results are fresh.
    """

    def run(
        ranks: int, make: Callable[[Any], LinearOperator], library: str = "numpy", order: str = "row-major"
    ) -> tuple[LinearOperator, ...]:
        def body(comm: Any) -> Any:
            rank = comm.Get_rank()
            operator = make(comm)
            x = [place(v, t.dtype, library, order) for v, t in _drawn(operator.domain, rank, "primal")]
            y = [place(v, t.dtype, library, order) for v, t in _drawn(operator.codomain.dual, rank, "dual")]
            forward = apply_forward(operator, [placed.view for placed in x])
            adjoint = apply_adjoint(operator, [placed.view for placed in y])
            for given in (*x, *y):
                assert given.unchanged
                for result in (*forward, *adjoint):
                    assert not np.shares_memory(arrays.to_numpy(result), arrays.to_numpy(given.buffer))
            left = pair_local(operator.codomain, forward, [placed.view for placed in y], rank)
            right = pair_local(operator.domain, [placed.view for placed in x], adjoint, rank)
            return operator, forward, adjoint, left - right

        values = spmd(ranks, body)
        operator = values[-1][0]
        given = operator.specification()
        program, back = given if isinstance(given, tuple) else (given, given.adjoint())
        for position, specification, source, target, side in (
            (1, program, operator.domain, operator.codomain, "primal"),
            (2, back, operator.codomain.dual, operator.domain.dual, "dual"),
        ):
            actual = [tuple(arrays.to_numpy(array) for array in value[position]) for value in values]
            expected = _specified(specification, source, target, ranks, side)
            # Summands of a partial tensor are summed first.
            assert first_difference(target, actual, expected) is None
        assert sum((value[3] for value in values), ZERO) == ZERO
        summands = _has_summands(operator.codomain) or _has_summands(operator.domain.dual)
        if operator.domain.dimension == 0:
            pass  # nothing is added, whatever would be
        elif isinstance(given, tuple):  # the mechanical adjoint, which is not used, may have a larger gain
            assert summands or operator.gain <= max(program.gain(), back.gain())
        elif summands:
            assert operator.gain >= program.gain()  # which does not add summands of different workers
        else:
            assert operator.gain == program.gain()
        return tuple(value[0] for value in values)

    return run


def _has_summands(space: Space) -> bool:
    return any(LocalType.PARTIAL in tensor.types for tensor in space.tensors)


def _drawn(space: Space, rank: int, side: str) -> list[tuple[Any, Any]]:
    draw = Draw(seed=5, index=0, side=side, bound=5)
    return [(local_values(space, i, rank, draw), tensor) for i, tensor in enumerate(space.tensors)]


def _specified(program: Program, source: Space, target: Space, ranks: int, side: str) -> list[Local]:
    """Results of the program, over one global memory, on the same values, for each rank."""
    memory = {
        (rank, tensor.name): values for rank in range(ranks) for values, tensor in _drawn(source, rank, side)
    }
    result = program.execute(memory)
    return [
        tuple(result.get((rank, tensor.name), np.zeros(0)) for tensor in target.tensors)
        for rank in range(ranks)
    ]
