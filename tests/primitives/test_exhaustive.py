"""The enumerations list what they say, and a reduced bound of each primitive is proved."""

from __future__ import annotations

import pytest

from adjointlab.checks.verdict import Status
from adjointlab.harness.exhaust import Bound, bound_of, every_case, exhaust
from adjointlab.harness.find import Found, find
from adjointlab.harness.subject import Subject
from adjointlab.partition import Partition
from adjointlab.primitives import exhaustive

PRIMITIVES = [found for found in find(["adjointlab.primitives.subjects"]) if found.subject.every is not None]

REDUCED = {"ranks": 2, "order": 2, "side": 2, "kernel": 2, "stride": 1, "dilation": 1}
FURTHER = {
    "HaloExchange": {"side": 1},
    "HaloExchangeInPlace": {"side": 1},
    "Redistribute": {"order": 1},
}
"""For those that list very many cases."""


def reduced(subject: Subject) -> Bound:
    return bound_of(subject, {**REDUCED, **FURTHER.get(subject.name, {})})


@pytest.mark.parametrize("found", PRIMITIVES, ids=lambda found: found.subject.name)
def test_a_reduced_bound_is_proved(found: Found) -> None:
    bound = reduced(found.subject)
    report = exhaust(found.subject, found.reference, bound, jobs=1)
    assert report.status is Status.COHERENT, report.verdict
    assert report.tried == len(list(every_case(found.subject, bound)))


def test_every_primitive_lists_its_cases() -> None:
    every = {found.subject.name for found in find(["adjointlab.primitives.subjects"])}
    assert {found.subject.name for found in PRIMITIVES} == every


@pytest.mark.parametrize("found", PRIMITIVES, ids=lambda found: found.subject.name)
def test_no_case_is_listed_twice(found: Found) -> None:
    keys = [
        (case.ranks, repr(sorted(case.parameters.items())))
        for case in every_case(found.subject, reduced(found.subject))
    ]
    assert len(keys) == len(set(keys))


def test_all_cuts_are_listed() -> None:
    assert sorted(exhaustive.cuts(2, 3)) == [(0, a, b, 2) for a in range(3) for b in range(a, 3)]
    assert list(exhaustive.cuts(0, 2)) == [(0, 0, 0)]


def test_all_windows_are_listed() -> None:
    listed = list(exhaustive.windows(2, 1))
    assert len(listed) == len(set(listed))
    assert set(listed) == {(0, 0)} | {(a, b) for a in range(-1, 3) for b in range(a + 1, 4)}


def test_all_cuts_of_all_shapes_over_a_grid_are_listed() -> None:
    # Sides 0, 1 and 2 over two workers: 1 + 2 + 3 cuts.
    layouts = list(exhaustive.layouts(Partition((2,)), 2))
    assert len(layouts) == 6
    assert len(list(exhaustive.layouts(Partition((2, 1)), 2))) == 6 * 3
