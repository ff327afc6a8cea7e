"""Distributions with strides of ranks: the note's inequalities, and distinct ranks of the machine."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjointlab.layers.rank_strides import strided_partition

SIDES = st.integers(1, 3)


def test_the_documented_example() -> None:
    assert strided_partition((2, 2, 2, 1), (2, 2, 4), range(16)).ranks == (0, 1, 4, 5, 8, 9, 12, 13)


@given(st.tuples(SIDES, SIDES, SIDES, SIDES), st.tuples(SIDES, SIDES, st.integers(1, 6)), st.integers(1, 60))
def test_strides_are_legal_if_and_only_if_the_inequalities_hold_and_ranks_are_distinct(
    distribution: tuple[int, int, int, int], strides: tuple[int, int, int], size: int
) -> None:
    (n, c, h, w), (room_n, room_c, room_p) = distribution, strides
    machine = range(100 + size, 100, -1)
    place = {
        index: (index[0] * room_c + index[1]) * room_p + index[2] * w + index[3]
        for index in product(range(n), range(c), range(h), range(w))
    }
    legal = (
        h * w <= room_p
        and c * h * w <= room_c * room_p
        and n * c * h * w <= room_n * room_c * room_p <= size
        and len(set(place.values())) == len(place)
        and max(place.values()) < size
    )
    if not legal:
        with pytest.raises(ValueError, match="strides: "):
            strided_partition(distribution, strides, machine)
        return
    partition = strided_partition(distribution, strides, machine)
    assert partition.shape == distribution
    assert all(partition.rank(index) == machine[at] for index, at in place.items())


@pytest.mark.parametrize(
    ("distribution", "strides", "size", "number"),
    [((1, 1, 2, 2), (1, 1, 3), 9, "3.1"), ((1, 3, 2, 1), (1, 2, 2), 9, "3.2"), ((3, 1, 1, 1), (2, 1, 1), 9, "3.3"), ((1, 1, 1, 1), (3, 3, 3), 9, "3.3")],
)  # fmt: skip
def test_the_inequality_that_fails_is_named(
    distribution: tuple[int, ...], strides: tuple[int, ...], size: int, number: str
) -> None:
    with pytest.raises(ValueError, match=f"inequality {number}"):
        strided_partition(distribution, strides, range(size))
