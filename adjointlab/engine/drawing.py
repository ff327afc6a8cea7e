"""The strategy of cases: the subject's parameters, and with them the memory orders and schedules that break many subjects."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.checks.context import InputSetting
from adjointlab.engine.case import Case
from adjointlab.engine.subject import Subject
from adjointlab.worlds.schedule import schedules_from

__all__ = ["cases"]


@st.composite
def cases(draw: DrawFn, subject: Subject, check: str, ranks: int, schedules: int = 1) -> Case:
    """Draw a case of `subject` for the check called `check`, on at most `ranks` ranks, for so many `schedules`.

    The number of ranks is drawn first and the smallest comes first, so that the shrinker reduces it before all else.
    """
    counts = tuple(sorted(count for count in subject.ranks if count <= ranks)) or (ranks,)
    count = draw(st.sampled_from(counts))
    parameters = subject.drawn(draw, count)
    library = draw(st.sampled_from(subject.libraries()))
    memory = draw(st.sampled_from(_memory_orders(subject.orders)))
    seed, schedule = draw(st.integers(0, 2**31 - 1)), draw(st.integers(0, 2**16 - 1))
    several = schedules_from(schedule, schedules) if schedules > 1 else ()
    return Case(
        subject.name, check, count, parameters, InputSetting(seed, library, *memory), schedule, several
    )


@cache
def _memory_orders(orders: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Pairs of memory orders, of inputs and of cotangents; the plain one first.

    Those with transposed memory stand there twice: tensors of order 1 and of single rows do not feel it, and it is what
    code takes for contiguous memory most easily.
    """
    plain, *others = [(one, other) for one in orders for other in orders]
    turned = [pair for pair in others if "column-major" in pair]
    return (plain, *turned, *others)
