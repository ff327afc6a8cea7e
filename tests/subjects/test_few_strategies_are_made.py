"""Strategies of primitives are made once, not in each case: Hypothesis examines a new one, which takes as long as several draws."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import given
from hypothesis.strategies import SearchStrategy

from adjointlab.engine.case import Case, cases
from adjointlab.engine.hypothesis_searches import settings_of
from adjointlab.engine.subject import Subject
from adjointlab.primitives.subjects import installed

pytestmark = pytest.mark.mpi_skip

PRIMITIVES = [each for each in vars(installed).values() if isinstance(each, Subject)]


def draw(subject: Subject, number: int, seed: int) -> None:
    @hypothesis.seed(seed)
    @settings_of(number)
    @given(case=cases(subject, "adjoint", (1, 4)))
    def every_case(case: Case) -> None: ...

    every_case()


@pytest.mark.parametrize("subject", PRIMITIVES, ids=lambda subject: subject.name)
def test_later_cases_of_a_primitive_are_drawn_with_the_strategies_of_earlier_ones(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(subject, 100, seed=1)
    made, make = [], SearchStrategy.__init__

    def noted(self: SearchStrategy[object]) -> None:
        made.append(self)
        make(self)

    monkeypatch.setattr(SearchStrategy, "__init__", noted)
    draw(subject, 50, seed=2)
    assert len(made) <= 25
