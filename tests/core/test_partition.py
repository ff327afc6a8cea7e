"""Partitions: grids of workers."""

from collections.abc import Callable
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition, as_partition

small = settings(max_examples=60, deadline=None)


@st.composite
def partitions(draw: st.DrawFn, max_order: int = 4) -> Partition:
    shape = draw(st.lists(st.integers(1, 4), max_size=max_order))
    ranks = draw(st.permutations(range(prod(shape) + draw(st.integers(0, 5)))))
    return Partition(shape, ranks[: prod(shape)])


def grid(partition: Partition) -> list[tuple[int, ...]]:
    return list(product(*(range(side) for side in partition.shape)))


@small
@given(partitions())
def test_index_and_rank_are_inverse(partition: Partition) -> None:
    assert [partition.index(rank) for rank in partition.ranks] == grid(partition)
    assert tuple(partition.rank(index) for index in grid(partition)) == partition.ranks
    assert partition.size == prod(partition.shape) == len(partition.ranks)
    assert partition.order == len(partition.shape)


@small
@given(partitions())
def test_a_rank_that_is_not_listed_is_inactive(partition: Partition) -> None:
    for rank in range(max(partition.ranks) + 3):
        assert partition.is_active(rank) == (rank in partition.ranks)
        if rank not in partition.ranks:
            with pytest.raises(ValueError, match=rf"{rank} is inactive"):
                partition.index(rank)


@small
@given(partitions(), st.integers(0, 3))
def test_promotion_puts_ones_first_and_moves_nobody(partition: Partition, more: int) -> None:
    promoted = partition.promote(partition.order + more)
    assert promoted.shape == (1,) * more + partition.shape
    assert all(promoted.index(rank) == (0,) * more + partition.index(rank) for rank in partition.ranks)


@small
@given(partitions())
def test_transposition_reverses_every_index_and_is_an_involution(partition: Partition) -> None:
    transposed = partition.transpose()
    assert transposed.transpose() == partition
    assert all(transposed.index(rank) == partition.index(rank)[::-1] for rank in partition.ranks)


@small
@given(partitions(), st.data())
def test_subpartitions_hold_every_worker_once_and_vary_along_their_dimensions_alone(
    partition: Partition, data: st.DataObject
) -> None:
    dims = data.draw(
        st.permutations(range(partition.order)).map(lambda all_dims: all_dims[: len(all_dims) // 2 + 1])
    )
    groups = partition.subpartitions(dims)
    assert sorted(rank for group in groups for rank in group.ranks) == sorted(partition.ranks)
    fixed = [dim for dim in range(partition.order) if dim not in dims]
    places: list[tuple[int, ...]] = []
    for group in groups:
        assert group.shape == tuple(partition.shape[dim] for dim in dims)
        for rank in group.ranks:
            assert group.index(rank) == tuple(partition.index(rank)[dim] for dim in dims)
        outside = {tuple(partition.index(rank)[dim] for dim in fixed) for rank in group.ranks}
        assert len(outside) == 1
        places += outside
        assert all(partition.subpartition(dims, rank) == group for rank in group.ranks)
    assert places == sorted(places)


@pytest.mark.parametrize("dims", [dims for count in range(4) for dims in permutations(range(3), count)])
def test_the_subpartition_of_each_worker_is_the_one_that_it_is_in(dims: tuple[int, ...]) -> None:
    partition = Partition((3, 5, 3), range(45, 0, -1))
    for group in partition.subpartitions(dims):
        assert all(partition.subpartition(dims, rank) == group for rank in group.ranks)


def test_subpartitions_along_no_dimension_are_single_workers() -> None:
    assert Partition((2, 2), (3, 1, 2, 0)).subpartitions(()) == tuple(
        Partition((), (r,)) for r in (3, 1, 2, 0)
    )


def test_a_partition_is_plain_data() -> None:
    shape: Any = np.array([2, 2])
    given_by_numpy = Partition(shape, np.array([0, 1, 2, 3]))
    assert given_by_numpy == Partition((2, 2))
    assert hash(given_by_numpy) == hash(Partition((2, 2)))
    assert all(type(entry) is int for entry in given_by_numpy.shape + given_by_numpy.ranks)
    assert Partition((2,), (0, 1)) != Partition((2,), (1, 0))


def test_a_partition_of_order_zero_is_one_worker() -> None:
    single = Partition((), (7,))
    assert single.index(7) == ()
    assert single.rank(()) == 7
    assert single.transpose() == single
    assert single.promote(2).shape == (1, 1)


@pytest.mark.parametrize(
    ("partition", "text"),
    [
        (Partition(()), "()"),
        (Partition((3,)), "3"),
        (Partition((2, 3)), "2x3"),
        (Partition((2,), (3, 1)), "2 over ranks 3, 1"),
        (Partition((1, 2), (1, 2)), "1x2 over ranks 1, 2"),
    ],
)
def test_a_partition_prints_its_grid_and_its_ranks_where_they_are_not_natural(
    partition: Partition, text: str
) -> None:
    assert str(partition) == text


@pytest.mark.parametrize(
    ("shape", "ranks", "message"),
    [
        ((2, 0), None, r"at least 1, not \(2, 0\)"),
        ((-1,), None, r"at least 1, not \(-1,\)"),
        ((2, 2), (0, 1, 2), r"2x2 partition needs 4 ranks, not the 3 of \(0, 1, 2\)"),
        ((2,), (0, 1, 2), r"2 partition needs 2 ranks, not the 3 of \(0, 1, 2\)"),
        ((), (), r"\(\) partition needs 1 ranks, not the 0"),
        ((3,), (0, 4, 4), r"\[4\] stand more than once in \(0, 4, 4\)"),
        ((6,), (4, 1, 4, 0, 1, 4), r"\[1, 4\] stand more than once in \(4, 1, 4, 0, 1, 4\)"),
        ((2,), (1, -2), "at least 0, not -2"),
        ((2,), (-1, 1), "at least 0, not -1"),
    ],
)
def test_a_bad_grid_is_refused_with_its_values(
    shape: tuple[int, ...], ranks: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Partition(shape, ranks)


def test_a_side_or_rank_that_is_not_an_integer_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a sequence of integers"):
        Partition((2.5,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is not a sequence of integers"):
        Partition((1,), (0.5,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "index", [(2, 0), (3, 0), (-1, 0), (0, 3), (0, 4), (0, -1), (0, -2), (), (0,), (0, 0, 0)]
)
def test_an_index_outside_the_grid_is_refused_with_its_value(index: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=rf"index: \({', '.join(map(str, index))},?\) is not in the 2x3 partition"
    ):
        Partition((2, 3)).rank(index)


@pytest.mark.parametrize("dims", [(0, 0), (1, 0, 1), (2,), (0, 3), (-1,), (-2, 0)])
def test_dimensions_that_are_none_of_the_partition_are_refused(dims: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=rf"dims: \({', '.join(map(str, dims))},?\) are not distinct dimensions"
    ):
        Partition((2, 3)).subpartitions(dims)


def test_an_inactive_rank_is_in_no_subpartition() -> None:
    with pytest.raises(ValueError, match="2 is inactive"):
        Partition((1, 2)).subpartition((1,), 2)


def test_promotion_to_a_lower_order_is_refused() -> None:
    with pytest.raises(ValueError, match="of order 2 is not promoted to 1"):
        Partition((2, 3)).promote(1)


def test_promotion_to_its_own_order_is_the_partition_itself() -> None:
    assert Partition((2, 3), range(6, 0, -1)).promote(2) == Partition((2, 3), (6, 5, 4, 3, 2, 1))


@pytest.mark.parametrize("ranks", [None, (700, 300, 500, 400)])
def test_a_large_grid_has_a_place_for_each_worker(ranks: tuple[int, ...] | None) -> None:
    """Numbers above 256, which Python makes anew each time."""
    line = Partition((4,) if ranks else (700,), ranks)
    last = line.ranks[-1]
    assert line.index(last) == (line.size - 1,)
    assert line.rank(line.index(last)) == last
    assert not line.is_active(701)
    with pytest.raises(ValueError, match=rf"index: \({line.size},\) is not in the {line.size} partition"):
        line.rank((line.size,))


@pytest.mark.parametrize("value", [Partition((2, 3)), (2, 3), [2, 3], np.array([2, 3])])
def test_the_sides_of_a_grid_stand_for_the_partition_over_the_first_ranks(value: Any) -> None:
    assert as_partition("root", value) == Partition((2, 3), range(6))


def test_a_partition_is_taken_as_it_is() -> None:
    given = Partition((2,), (3, 1))
    assert as_partition("root", given) is given


@pytest.mark.parametrize("value", [3, "", "23", None, (2.5,), [[2]]])
def test_what_is_neither_a_partition_nor_its_sides_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError) as raised:
        as_partition("root", value)
    assert str(raised.value) == (
        f"root: {value!r} is neither a Partition nor a sequence of its sides, such as (2, 3)"
    )
    with pytest.raises(TypeError) as raised:
        Partition(value)
    assert str(raised.value) == f"shape: {value!r} is not a sequence of integers"


@pytest.mark.parametrize("sides", [(0,), (2, 0), (-1, 2)])
def test_sides_below_one_are_refused_by_name(sides: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^root: every side of a partition is at least 1, not ") as raised:
        as_partition("root", sides)
    assert str(raised.value).endswith(f"not {sides}")


def test_equal_objects_share_what_is_computed_of_them() -> None:
    assert Partition((3, 2))._index_of is Partition((3, 2))._index_of
    assert Partition((3, 2)).ranks is Partition((3, 2)).ranks
    assert Partition((3, 2)).subpartitions([1]) is Partition((3, 2)).subpartitions([1])


def test_a_transposed_grid_by_hand() -> None:
    assert Partition((2, 3), (6, 5, 4, 3, 2, 1)).transpose() == Partition((3, 2), (6, 3, 5, 2, 4, 1))
    assert Partition((1, 2, 2)).transpose() == Partition((2, 2, 1), (0, 2, 1, 3))


def test_subpartitions_by_hand() -> None:
    grid = Partition((2, 3), (6, 5, 4, 3, 2, 1))
    assert grid.subpartitions([1]) == (Partition((3,), (6, 5, 4)), Partition((3,), (3, 2, 1)))
    assert grid.subpartitions([0]) == tuple(Partition((2,), (6 - k, 3 - k)) for k in range(3))
    assert grid.subpartitions([1, 0]) == (grid.transpose(),)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda grid: grid.rank(0), "index: 0 is not a sequence of integers"),
        (lambda grid: grid.promote("3"), "order: '3' is not a whole number"),
        (lambda grid: Layout((6, 6), grid).window([]), "rank: [] is not a whole number"),
        (lambda grid: Layout((6, 6), grid).window("0"), "rank: '0' is not a whole number"),
        (lambda grid: grid.subpartitions(0), "dims: 0 is not a sequence of integers"),
        (lambda grid: grid.subpartition("0", 0), "dims: '0' is not a sequence of integers"),
    ],
)
def test_an_index_and_dimensions_that_are_none_are_refused_by_their_names(
    call: Callable[[Partition], object], message: str
) -> None:
    with pytest.raises(TypeError) as raised:
        call(Partition((2, 2)))
    assert str(raised.value) == message
