"""How cases are drawn: the subject's parameters, and around them what hurts every subject."""

from __future__ import annotations

from collections.abc import Sequence
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
    libraries = st.sampled_from(subject.libraries())
    memory = st.sampled_from(_memory_orders(subject.orders))
    seeds = st.integers(0, 2**31 - 1)
    schedules = st.integers(0, 2**16 - 1)

    @st.composite
    def drawn(draw: DrawFn) -> Case:
        count = draw(st.sampled_from(counts))
        parameters: dict[str, Any] = dict(draw(subject.parameters(count)))
        setting = Setting(draw(seeds), draw(libraries), *draw(memory))
        return Case(subject.name, check, count, parameters, setting, draw(schedules))

    return drawn()


def _memory_orders(orders: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of memory orders, of inputs and of cotangents; the plain one first.

    Those with transposed memory stand there twice: tensors of order 1 and of single rows do not feel it, and it is what
    code takes for contiguous memory most easily.
    """
    plain, *others = [(one, other) for one in orders for other in orders]
    turned = [pair for pair in others if "column-major" in pair]
    return [plain, *turned, *others]
