"""Right code may refuse NaN, on all ranks or on one; the cases in which it is called on NaN are then not judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult

pytestmark = pytest.mark.mpi_skip


def solved_on_the_root(comm: Any, x: Any) -> Any:
    """Halved, by a solver on rank 0 alone that raises if it has not converged."""
    parts = comm.gather(np.array(x), root=0)
    if comm.Get_rank() == 0 and not all(np.isfinite(part).all() for part in parts):
        raise RuntimeError("not converged")
    return comm.scatter([part / 2 for part in parts] if comm.Get_rank() == 0 else None, root=0)


def asserted(comm: Any, x: Any) -> Any:
    assert np.isfinite(x).all()
    return x / 2


def refused_by_value(comm: Any, x: Any) -> Any:
    if np.isnan(x).any():
        raise ValueError("x: must be finite")
    return x / 2


kept: dict[int, Any] = {}


def cleared_by_arithmetic(comm: Any, x: Any) -> Any:
    rest = kept.pop(x.size, 0)
    kept[x.size] = 0 * np.array(x)
    return x / 2 + rest


def of(function: Any) -> SearchResult:
    @al.subject.pair(function, function)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(draw(al.strategies.layouts(ranks)))
        return dict(domain=space, codomain=space)

    return investigate(al.SimulatedWorld(3), lines, "reentrancy", Budget(30, seed=1))


@pytest.mark.parametrize("function", [solved_on_the_root, asserted, refused_by_value])
def test_an_operator_may_refuse_nan_by_any_exception(function: Any) -> None:
    result = of(function)
    assert result.verdict.is_coherent
    assert result.tried > 0
    assert result.counts is not None
    assert any("refuses NaN" in reason for reason in result.counts.rejected)


def test_nan_that_an_operator_keeps_is_found_beside() -> None:
    wrong = of(cleared_by_arithmetic)
    assert "(after one with NaN)" in dict(wrong.verdict.lines)["call"]
