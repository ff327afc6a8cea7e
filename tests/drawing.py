"""The first examples that a strategy draws, for tests that something is drawn within a stated number of cases."""

from __future__ import annotations

from functools import cache
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st


@cache
def first_examples(strategy: st.SearchStrategy[Any], number: int, seed: int = 0) -> tuple[Any, ...]:
    """Examples as a search draws them, as many as `number`; fewer where there are no more different ones."""
    found: list[Any] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=number,
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
