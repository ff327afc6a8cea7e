"""Both kinds of draws are timed alike."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from adjointlab.engine import hypothesis_searches
from benchmarks.__main__ import FOLDER


def test_each_kind_of_draws_comes_first_as_often_as_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("draws")
    order: list[object] = []

    def investigate(*_: object, **__: object) -> SimpleNamespace:
        order.append(hypothesis_searches.INDEPENDENT)
        return SimpleNamespace(verdict=SimpleNamespace(is_coherent=True), tried=1)

    monkeypatch.setattr(script, "investigate", investigate)
    monkeypatch.setattr(script, "checks_of", lambda *_: ("adjoint",))
    bugs: list[Any] = [None] * 4
    found = script.measured(bugs, 1)

    assert list(found["adjoint"]) == ["varied", "independent"]
    assert {order[first] for first in (0, 4)} != {order[first] for first in (2, 6)}
    assert sorted(map(str, order[::2])) == sorted(map(str, order[1::2]))
