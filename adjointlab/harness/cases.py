"""How cases are drawn: the subject's parameters, and around them what hurts every subject."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from adjointlab.checks.bench import Setting
from adjointlab.harness.case import Case
from adjointlab.harness.subject import Subject

__all__ = ["cases"]


def cases(subject: Subject, check: str, ranks: int) -> SearchStrategy[Case]:
    """Cases of `subject` for the check called `check`, on at most `ranks` ranks."""
    counts = sorted(count for count in subject.ranks if count <= ranks) or [ranks]
    # Half of the cases keep plain memory and a plain schedule, so that other faults are found in plain sight.
    libraries = st.sampled_from(subject.libraries())
    orders = st.sampled_from(subject.orders)
    seeds = st.integers(0, 2**31 - 1)
    schedules = st.integers(0, 2**16 - 1)

    @st.composite
    def drawn(draw: DrawFn) -> Case:
        count = draw(st.sampled_from(counts))
        parameters: dict[str, Any] = dict(draw(subject.parameters(count)))
        setting = Setting(draw(seeds), draw(libraries), draw(orders), draw(orders))
        return Case(subject.name, check, count, parameters, setting, draw(schedules))

    return drawn()
