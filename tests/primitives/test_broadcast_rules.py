"""The partition broadcasting rules: [DistDL]'s eight examples, and what the groups of a pattern are."""

from __future__ import annotations

import pytest
from hypothesis import given

from adjointlab.core import strategies
from adjointlab.core.partition import Partition
from adjointlab.primitives.broadcast_rules import BroadcastPattern, CopyGroup, broadcast_pattern


def pattern(one: tuple[int, ...], many: tuple[int, ...], **transposes: bool) -> BroadcastPattern:
    return broadcast_pattern(Partition(one), Partition(many), **transposes)


def test_example_1_one_worker_broadcasts_to_four() -> None:
    assert pattern((1,), (4,)).groups == (CopyGroup(0, (0, 1, 2, 3)),)


def test_example_2_one_worker_broadcasts_to_2x3_by_promotion() -> None:
    assert pattern((1,), (2, 3)).groups == (CopyGroup(0, (0, 1, 2, 3, 4, 5)),)


def test_example_3_each_row_of_3x1_broadcasts_along_3x4() -> None:
    assert pattern((3, 1), (3, 4)).groups == (
        CopyGroup(0, (0, 1, 2, 3)),
        CopyGroup(1, (4, 5, 6, 7)),
        CopyGroup(2, (8, 9, 10, 11)),
    )


def test_example_4_1x1x3_broadcasts_sixteen_copies_to_4x4x3() -> None:
    groups = pattern((1, 1, 3), (4, 4, 3)).groups
    assert [group.one for group in groups] == [0, 1, 2]
    assert all(group.many == tuple(range(group.one, 48, 3)) for group in groups)


def test_example_5_1x1x3_does_not_broadcast_to_3x3x2() -> None:
    with pytest.raises(
        ValueError, match="1x1x3 does not broadcast to 3x3x2: in dimension 2 the sides are 3 and 2"
    ):
        pattern((1, 1, 3), (3, 3, 2))


def test_example_6_1x3_does_not_broadcast_to_3x1() -> None:
    with pytest.raises(ValueError, match="in dimension 1 the sides are 3 and 1; the first must be 1"):
        pattern((1, 3), (3, 1))


@pytest.mark.parametrize("flag", ["transpose_one", "transpose_many"])
def test_example_6_broadcasts_when_either_is_transposed(flag: str) -> None:
    assert pattern((1, 3), (3, 1), **{flag: True}).groups == (
        CopyGroup(0, (0,)),
        CopyGroup(1, (1,)),
        CopyGroup(2, (2,)),
    )


def test_example_7_1x3_broadcasts_to_3x4_when_the_source_is_transposed() -> None:
    groups = pattern((1, 3), (3, 4), transpose_one=True).groups
    assert groups == (CopyGroup(0, (0, 1, 2, 3)), CopyGroup(1, (4, 5, 6, 7)), CopyGroup(2, (8, 9, 10, 11)))
    with pytest.raises(ValueError, match="in dimension 1 the sides are 3 and 4"):
        pattern((1, 3), (3, 4))


def test_example_8_4x1_broadcasts_to_3x4_when_the_destination_is_transposed() -> None:
    groups = pattern((4, 1), (3, 4), transpose_many=True).groups
    assert groups == tuple(CopyGroup(column, (column, column + 4, column + 8)) for column in range(4))
    with pytest.raises(ValueError, match="in dimension 0 the sides are 4 and 3"):
        pattern((4, 1), (3, 4))


def test_transposition_comes_before_promotion() -> None:
    """3x4 transposed is 1x4x3, not 4x3x1."""
    assert pattern((3, 4), (2, 4, 3), transpose_one=True).dims == (2, 1)
    with pytest.raises(ValueError, match=r"4x3 \(3x4 transposed\) does not broadcast to 4x3x1"):
        pattern((3, 4), (4, 3, 1), transpose_one=True)


def test_a_source_of_higher_order_does_not_broadcast() -> None:
    with pytest.raises(ValueError, match="1x1 does not broadcast to 4: it has order 2, which is above 1"):
        pattern((1, 1), (4,))


@given(pair=strategies.broadcasting_partitions(8))
def test_every_worker_of_the_destination_gets_one_copy(pair: dict) -> None:
    found = broadcast_pattern(
        pair["source"],
        pair["destination"],
        transpose_one=pair["transpose_src"],
        transpose_many=pair["transpose_dest"],
    )
    assert tuple(group.one for group in found.groups) == pair["source"].ranks
    assert sorted(rank for group in found.groups for rank in group.many) == sorted(pair["destination"].ranks)
    assert {len(group.many) for group in found.groups} == {found.largest}


@given(pair=strategies.broadcasting_partitions(8))
def test_transposing_is_the_same_as_handing_over_the_transposed_partition(pair: dict) -> None:
    source, destination = pair["source"], pair["destination"]
    flagged = broadcast_pattern(
        source, destination, transpose_one=pair["transpose_src"], transpose_many=pair["transpose_dest"]
    )
    plain = broadcast_pattern(
        source.transpose() if pair["transpose_src"] else source,
        destination.transpose() if pair["transpose_dest"] else destination,
    )
    as_sets = [{group.one: set(group.many) for group in found.groups} for found in (flagged, plain)]
    assert as_sets[0] == as_sets[1]
