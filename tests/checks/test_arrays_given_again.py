"""An array that is given twice may hold other values the second time: what was kept for the array is not right for these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class Doubling(al.LinearOperator):
    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(layout)

    def forward(self, x: Any) -> Any:
        return 2 * x

    def adjoint(self, y: Any) -> Any:
        return 2 * y


class Keeping(Doubling):
    """Keeps its last result for as long as its argument is the same array."""

    last: Any = (None, None)

    def forward(self, x: Any) -> Any:
        if self.last[0] is not x:
            self.last = (x, 2 * x)
        return self.last[1].copy()


class KeepingForItsValues(Keeping):
    def forward(self, x: Any) -> Any:
        if self.last[0] is None or not np.array_equal(self.last[0], x):
            self.last = (x.copy(), 2 * x)
        return self.last[1].copy()


class Viewing(Doubling):
    """The identity, which returns the very array that it was given."""

    def forward(self, x: Any) -> Any:
        return x

    def adjoint(self, y: Any) -> Any:
        return y


def judged(operator: type[Doubling]) -> Any:
    @al.subject(operator)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(layout=al.Layout((2 * ranks,), (ranks,)))

    return investigate(al.SimulatedWorld(2), lines, "reentrancy", Budget(20, seed=1)).verdict


def test_a_result_that_is_kept_for_an_array_is_found() -> None:
    verdict = judged(Keeping)
    assert verdict.headline == "forward depends on earlier calls"
    told = dict(verdict.lines)["call"]
    assert told == "one more, with other values in the array that the call before was given, on return"


@pytest.mark.parametrize("operator", [Doubling, KeepingForItsValues, Viewing])
def test_right_operators_are_coherent(operator: type[Doubling]) -> None:
    assert judged(operator).is_coherent


def test_a_function_that_asks_for_the_gradient_of_its_argument_is_coherent() -> None:
    torch = pytest.importorskip("torch")

    def doubled(comm: Any, x: Any) -> Any:
        x.requires_grad_()
        return (2 * x).detach()

    @al.subject.pair(doubled, doubled, arrays=["torch"])
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((2 * ranks,), (ranks,)))
        return dict(domain=space, codomain=space)

    assert torch
    assert investigate(al.SimulatedWorld(2), lines, "reentrancy", Budget(20, seed=1)).verdict.is_coherent
