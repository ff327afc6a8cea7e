"""Cores of processes, and whether these are more than their cores."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from adjointlab.cores import are_crowded, cores, own_cores


@pytest.mark.parametrize(
    ("of_each", "crowded"),
    [
        ([{("one", 0), ("one", 1)}] * 2, False),
        ([{("one", 0), ("one", 1)}] * 3, True),
        # A launcher may give each process a core of its own,
        ([{("one", 0)}, {("one", 1)}], False),
        ([{("one", 0)}, {("one", 0)}], True),
        # and the machines of a job have as many cores as all of them together.
        ([{("one", 0)}, {("two", 0)}], False),
        ([{("one", 0)}, {("two", 0)}, {("two", 0)}], True),
    ],
)
def test_processes_are_crowded_that_are_more_than_all_their_cores(
    of_each: Sequence[set[tuple[str, int]]], crowded: bool
) -> None:
    assert are_crowded([frozenset(each) for each in of_each]) == crowded


def test_the_own_cores_are_as_many_as_there_are_and_of_this_machine() -> None:
    assert len(own_cores()) == cores()
    assert {machine for machine, _ in own_cores()} == {socket.gethostname()}
