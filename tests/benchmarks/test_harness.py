"""The cost of a case is measured after what a process makes once."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from adjointlab.engine.search_result import Budget
from benchmarks.__main__ import FOLDER


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("harness")


def test_draws_are_timed_beside_the_operator_and_never_the_first_ones(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(harness, "drawn", lambda count, check: (drawn.append(check), [None])[1])
    monkeypatch.setattr(harness, "rate", lambda *_: 1.0)

    def interleaved(contestants: Mapping[str, object], *_: object, **__: object) -> dict[str, float]:
        assert drawn
        assert list(contestants) == ["draw", "bare", "check"]
        return dict.fromkeys(contestants, 1.0)

    monkeypatch.setattr(harness, "interleaved", interleaved)
    harness.per_case()

    assert len(set(drawn)) == len(drawn) > 1


def test_a_rate_is_that_of_a_second_search_of_as_many_cases(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def investigate(world: object, subject: object, check: str, budget: Budget) -> SimpleNamespace:
        searched.append(budget.cases)
        return SimpleNamespace(tried=budget.cases)

    monkeypatch.setattr(harness, "investigate", investigate)
    assert harness.rate(None, None, "jacobian", 60) > 0

    assert searched == [60, 60]


def test_growth_is_measured_by_the_clock_of_the_processor(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks: list[object] = []

    def seconds_per_rank(runs: Mapping[int, object], rounds: int, clock: object) -> dict[int, float]:
        clocks.append(clock)
        return dict.fromkeys(runs, 1.0)

    monkeypatch.setattr(harness, "seconds_per_rank", seconds_per_rank)
    harness.growth()

    assert clocks == [time.process_time]
