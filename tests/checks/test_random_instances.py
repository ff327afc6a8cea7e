"""An operator that draws numbers when it is made is the same operator each time, and each rank's numbers are its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class Signs(al.LinearOperator):
    """Multiplies by random signs, which rank 0 draws for all."""

    is_shared = True

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(layout, types=("invariant",))
        signs = np.random.choice([-1.0, 1.0], layout.shape)
        self.signs = comm.bcast(signs) if self.is_shared else signs

    def forward(self, x: Any) -> Any:
        return self.signs * x

    adjoint = forward


class OwnSigns(Signs):
    is_shared = False


def verdict(operator: type[Signs], check: str) -> Any:
    @al.subject.operator(operator)
    def copies(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(layout=al.Layout((8,), al.Partition((ranks,)), axes=[None]))

    return investigate(al.SimulatedWorld(3), copies, check, Budget(10, ranks=3, seed=1)).verdict


def test_numbers_that_an_instance_draws_are_those_of_the_next() -> None:
    assert verdict(Signs, "reentrancy").is_coherent
    assert not verdict(OwnSigns, "declared").is_coherent
