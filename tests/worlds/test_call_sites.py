"""Calls of ranks are beside each other where one line of user code makes them."""

from __future__ import annotations

import dis
from types import SimpleNamespace
from typing import Any

import pytest

from adjointlab.worlds.call_sites import SimulatedCall


def program(comm: Any) -> None:
    comm.first(), comm.second()
    comm.third()


CALLS = [each for each in dis.get_instructions(program) if each.opname == "CALL"]


def call(number: int) -> SimulatedCall:
    frame: Any = SimpleNamespace(f_code=program.__code__, f_lasti=CALLS[number].offset)
    return SimulatedCall("Barrier", (), frame)


@pytest.mark.parametrize(
    ("one", "other", "expected"), [(0, 0, True), (0, 1, True), (0, 2, False), (2, 1, False)]
)
def test_calls_are_beside_each_other_on_one_line(one: int, other: int, expected: bool) -> None:
    """Python 3.12 copies a call into both branches of a condition in its arguments: one line, two instructions."""
    assert call(one).is_beside(call(other)) is expected
