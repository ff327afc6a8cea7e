"""The first examples that a strategy draws, for tests that something is drawn within a stated number of cases."""

from __future__ import annotations

from functools import cache
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from adjointlab.engine.independent_draws import INDEPENDENT


@cache
def first_examples(
    strategy: st.SearchStrategy[Any], number: int, seed: int = 0, *, backend: str = "hypothesis"
) -> tuple[Any, ...]:
    """Examples as Hypothesis draws them, as many as `number`; fewer where there are no more different ones."""
    found: list[Any] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=number,
        backend=backend,
        database=None,
        derandomize=False,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return tuple(found)


def first_cases(strategy: st.SearchStrategy[Any], number: int, seed: int = 0) -> tuple[Any, ...]:
    """Examples as the search of a check draws them."""
    return first_examples(strategy, number, seed, backend=INDEPENDENT)
