"""Overlaps as pure data, beside what a search of all pairs and all elements finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Tensor
from adjointlab.primitives.boxes import Box, assemble, relative_to
from adjointlab.primitives.overlaps import Endpoint, Overlap, Overlaps, gaps, overlaps
from adjointlab.primitives.subjects.repartition import repartitions

RANKS = 8


@st.composite
def moves(draw: st.DrawFn) -> Overlaps:
    """Any layouts that a repartition takes, with any copies of which one takes part."""
    parameters = draw(repartitions.parameters(RANKS))
    x = Tensor(parameters["layout"], types=parameters["types"])
    y = Tensor(parameters["target"], types=parameters["target_types"])
    return overlaps(Endpoint.of_source(x), Endpoint.of_target(y))


def every(entries: Overlaps) -> list[Overlap]:
    return [entry for rank in range(RANKS) for entry in entries.leaving(rank)]


def elements(layout: Layout, rank: int) -> set[tuple[int, ...]]:
    """The elements of the tensor that a rank holds."""
    window = layout.window(rank)
    if window is None:
        return set()
    inside = [range(max(0, a), min(side, b)) for (a, b), side in zip(window, layout.shape, strict=True)]
    return set(product(*inside))


def elements_of(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(start, stop) for start, stop in box)))


@given(moves())
def test_two_groups_exchange_exactly_what_both_hold_and_once(entries: Overlaps) -> None:
    source, target = entries.source, entries.target
    seen: dict[Any, Overlap] = {}
    for entry in every(entries):
        groups = source.group_of(entry.source), target.group_of(entry.target)
        assert groups not in seen
        seen[groups] = entry
        held = elements(source.layout, entry.source) & elements(target.layout, entry.target)
        assert elements_of(entry.box) == held != set()
        assert len(held) == entry.size
    for a, b in product(source.layout.partition.ranks, target.layout.partition.ranks):
        met = bool(elements(source.layout, a) & elements(target.layout, b))
        assert met == ((source.group_of(a), target.group_of(b)) in seen)


@given(moves())
def test_what_arrives_is_what_leaves_and_the_way_back_is_the_same(entries: Overlaps) -> None:
    leaving = set(every(entries))
    assert {entry for rank in range(RANKS) for entry in entries.arriving(rank)} == leaving
    assert {Overlap(e.target, e.source, e.box) for e in every(entries.reversed)} == leaving
    assert all(e.source == rank for rank in range(RANKS) for e in entries.leaving(rank))


@given(moves())
def test_a_pair_of_workers_has_one_message_at_most(entries: Overlaps) -> None:
    pairs = [(entry.source, entry.target) for entry in every(entries)]
    assert len(set(pairs)) == len(pairs)


@given(moves())
def test_what_travels_is_the_least_that_can(entries: Overlaps) -> None:
    """Of each element that two groups share, nothing travels if a worker is in both, and one copy otherwise.

    Where one copy of each element is read, that is: what a worker needs and has not. Where summands must be equal, one by
    one, it is not all the same which of them gets what, and more may have to travel.
    """
    source, target = entries.source, entries.target
    for side in (source, target):
        sides = side.layout.partition.shape
        assume(not all(_longer(sides, kind) for kind in (side.interchangeable, side.agreeing)))
    least = 0
    groups = {
        source.group_of(rank): set(source.members(source.group_of(rank)))
        for rank in source.layout.partition.ranks
    }
    others = {
        target.group_of(rank): set(target.members(target.group_of(rank)))
        for rank in target.layout.partition.ranks
    }
    for some, any_of in product(groups.values(), others.values()):
        if not some & any_of:
            least += len(elements(source.layout, min(some)) & elements(target.layout, min(any_of)))
    assert sum(entry.size for entry in every(entries) if entry.is_sent) == least
    if all(
        single or copies == 1 for single, copies in zip(source.interchangeable, _copies(source), strict=True)
    ) and not any(target.interchangeable):
        needed = (len(elements(target.layout, rank) - elements(source.layout, rank)) for rank in range(RANKS))
        assert least == sum(needed)


def _longer(sides: Sequence[int], chosen: Sequence[bool]) -> bool:
    return any(is_chosen and side > 1 for side, is_chosen in zip(sides, chosen, strict=True))


@given(moves())
def test_workers_that_must_end_up_equal_get_the_same(entries: Overlaps) -> None:
    target, partition = entries.target, entries.target.layout.partition
    for rank in partition.ranks:
        index = partition.index(rank)
        first = partition.rank([0 if equal else i for i, equal in zip(index, target.agreeing, strict=True)])
        mine, theirs = (
            [(entries.source.group_of(entry.source), entry.box) for entry in entries.arriving(one)]
            for one in (rank, first)
        )
        assert mine == theirs  # in the same order too: they are summed in it


def _copies(side: Endpoint) -> list[int]:
    return [side.copies(dim) for dim in range(side.layout.partition.order)]


@given(moves())
def test_the_number_of_terms_is_the_largest_number_of_holders_that_take_part(entries: Overlaps) -> None:
    for side in (entries.source, entries.target):
        groups = {side.group_of(rank): rank for rank in side.layout.partition.ranks}
        counts: dict[tuple[int, ...], int] = {}
        for rank in groups.values():
            for element in elements(side.layout, rank):
                counts[element] = counts.get(element, 0) + 1
        assert side.terms == max(counts.values(), default=1)
        assert side.holds_anything == bool(counts)


@given(moves())
def test_gaps_are_what_the_target_needs_and_nobody_holds(entries: Overlaps) -> None:
    one, other = entries.target, entries.source  # the other way round, there are some
    held: set[Any] = set().union(*(elements(one.layout, rank) for rank in range(RANKS)))
    needed: set[Any] = set().union(*(elements(other.layout, rank) for rank in range(RANKS)))
    found = gaps(one, other)
    assert (found is None) == (needed <= held)
    if found is not None:
        dim, windows = found
        named = {i for start, stop in windows for i in range(start, stop)}
        # Held along this dimension, whether or not anything is held in the others.
        along, windows_of = range(one.layout.shape[dim]), (other.layout.windows[dim], one.layout.windows[dim])
        wanted, there = ({i for w in windows for i in range(*w) if i in along} for windows in windows_of)
        assert named == wanted - there


def test_copies_are_spread_over_the_workers_that_have_none() -> None:
    """Two workers hold a tensor that four others get, half each: each copy is read twice."""
    copies = Layout([8], Partition([2], [4, 5]), axes=[None])
    source = Endpoint.of_source(Tensor(copies, types=["replicated"]))
    target = Endpoint.of_target(Tensor(Layout([8], Partition([4]))))
    sources = [entry.source for entry in every(overlaps(source, target))]
    assert sorted(sources) == [4, 4, 5, 5]


def test_a_worker_looks_at_its_neighbours_alone() -> None:
    """Half a window on, among 1,024: two neighbours, found without a look at the others."""
    ranks = 1024
    layout = Layout([4 * ranks], Partition([ranks]))
    shifted = Layout.cut([4 * ranks], Partition([ranks]), [[0, *range(6, 4 * ranks, 4), 4 * ranks]])
    entries = overlaps(Endpoint.of_source(Tensor(layout)), Endpoint.of_target(Tensor(shifted)))
    line = entries.target.sorted_windows[0]
    seen = []

    class Watched(tuple[Any, ...]):
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            seen.append(len(found))
            return found

    object.__setattr__(line, "entries", Watched(line.entries))
    assert [(e.source, e.target, e.box) for e in entries.leaving(500)] == [
        (500, 499, ((2000, 2002),)),
        (500, 500, ((2002, 2004),)),
    ]
    assert seen == [2]


boxes = st.integers(0, 3).flatmap(
    lambda order: st.tuples(
        st.tuples(*[st.integers(0, 4)] * order),
        st.lists(
            st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4)).map(sorted).map(tuple)] * order),
            max_size=5,
        ),
    )
)


@given(boxes)
def test_a_tensor_is_assembled_from_any_boxes(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, given_boxes = drawn
    inside = [
        tuple((min(a, n), min(b, n)) for (a, b), n in zip(box, shape, strict=True)) for box in given_boxes
    ]
    found = [box for box in inside if all(a < b for a, b in box)]
    expected = np.zeros(shape)
    for position, box in enumerate(found):
        expected[(*(slice(*part) for part in box), ...)] += 2.0**position
    for regular in {False, all(one == other or not _meet(one, other) for one in found for other in found)}:
        parts = assemble(shape, found, regular)
        result = np.full(shape, np.nan)
        for box in parts.cleared:
            region = result[(*(slice(*part) for part in box), ...)]
            assert region.size > 0
            region[...] = 0
        for position in parts.copied:
            result[(*(slice(*part) for part in found[position]), ...)] = 2.0**position
        for position in parts.added:
            result[(*(slice(*part) for part in found[position]), ...)] += 2.0**position
        np.testing.assert_array_equal(result, expected)
        for one, other in product(parts.added, parts.added):
            if one < other and found[one] == found[other]:
                assert parts.added.index(one) < parts.added.index(other)


def _meet(one: Box, other: Box) -> bool:
    return all(max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(one, other, strict=True))


def test_nothing_is_cleared_that_is_overwritten_anyway() -> None:
    left, right, middle = ((0, 3), (0, 2)), ((0, 3), (2, 5)), ((1, 2), (0, 2))
    assert assemble([3, 5], [left, right], True).cleared == ()
    assert assemble([3, 5], [left, right], False).cleared == ()
    assert assemble([3, 5], [middle, right, left], False).cleared == ()  # what is added finds its box
    padded = assemble([3, 6], [relative_to(((0, 3), (-1, 5)), box) for box in (left, right)], True)
    assert padded.cleared == (((0, 3), (0, 1)),)
