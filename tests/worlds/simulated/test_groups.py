"""Groups are ordered sets of ranks, and grids number theirs in row-major order."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import product
from typing import Any

import pytest

from adjointlab import MPI
from adjointlab.worlds.simulated.groups import SimulatedGroup
from adjointlab.worlds.simulated.topologies import Grid
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

pytestmark = pytest.mark.mpi_skip

GROUP = SimulatedGroup((5, 2, 7, 0), own=7)
OTHER = SimulatedGroup((7, 9, 5), own=7)


def test_a_group_numbers_its_members_and_knows_the_rank_that_looks_at_it() -> None:
    assert (GROUP.size, GROUP.rank) == (GROUP.Get_size(), GROUP.Get_rank()) == (4, 2)
    assert SimulatedGroup((5, 2), own=7).rank == MPI.UNDEFINED
    assert repr(GROUP) == "Group([5, 2, 7, 0])"


@pytest.mark.parametrize(
    ("made", "members"),
    [
        (GROUP.Incl([3, 0]), (0, 5)),
        (GROUP.Incl([]), ()),
        (GROUP.Excl([3, 0]), (2, 7)),
        (GROUP.Excl([]), (5, 2, 7, 0)),
        (GROUP.Union(OTHER), (5, 2, 7, 0, 9)),
        (OTHER.Union(GROUP), (7, 9, 5, 2, 0)),
        (GROUP.Intersection(OTHER), (5, 7)),
        (OTHER.Intersect(GROUP), (7, 5)),
        (GROUP.Difference(OTHER), (2, 0)),
        (OTHER.Difference(GROUP), (9,)),
        (GROUP.Union(OTHER, GROUP), (7, 9, 5, 2, 0)),
        (GROUP.Difference(OTHER, GROUP), (9,)),
        (GROUP.Dup(), (5, 2, 7, 0)),
        (GROUP.Range_incl([(0, 3, 2), (1, 1, 1)]), (5, 7, 2)),
        (GROUP.Range_incl([(3, 0, -2)]), (0, 2)),
        (GROUP.Range_incl([]), ()),
        (GROUP.Range_excl([(0, 2, 2)]), (2, 0)),
    ],
)
def test_groups_are_made_of_groups_in_the_order_that_mpi_names(
    made: SimulatedGroup, members: tuple[int, ...]
) -> None:
    assert made.members == members
    assert made.rank == (members.index(7) if 7 in members else MPI.UNDEFINED)


def test_groups_are_equal_if_they_have_the_same_members_in_the_same_order() -> None:
    same = SimulatedGroup([5, 2, 7, 0], own=0)
    assert same == GROUP
    assert hash(same) == hash(GROUP)
    assert SimulatedGroup((2, 5, 7, 0), own=7) != GROUP
    assert GROUP != (5, 2, 7, 0)


def test_a_group_includes_those_of_its_members_alone() -> None:
    assert GROUP.includes(GROUP.Incl([3, 1]))
    assert GROUP.includes(GROUP)
    assert GROUP.includes(GROUP.Incl([]))
    assert not GROUP.includes(OTHER)
    assert not GROUP.Incl([0, 1]).includes(GROUP)


def test_ranks_are_translated_from_one_group_to_another() -> None:
    assert GROUP.Translate_ranks() == [0, 1, 2, 3]
    assert GROUP.Translate_ranks([2, 0]) == [2, 0]
    assert GROUP.Translate_ranks([2, 0, 1], OTHER) == [0, 2, MPI.UNDEFINED]
    assert GROUP.Translate_ranks(group=OTHER) == [2, MPI.UNDEFINED, 0, MPI.UNDEFINED]
    assert GROUP.Translate_ranks([], OTHER) == []


@pytest.mark.parametrize("rank", [-2, -1, 4, 9])
@pytest.mark.parametrize("name", ["Incl", "Excl", "Translate_ranks"])
def test_a_rank_that_a_group_does_not_have_is_refused(name: str, rank: int) -> None:
    for ranks in ([rank], [0, rank], [rank, 3]):
        with pytest.raises(MPI.Exception, match=f"^Invalid rank {rank} in a group of 4$") as caught:
            getattr(GROUP, name)(ranks)
        assert caught.value.Get_error_class() == MPI.ERR_RANK


@pytest.mark.parametrize("ranks", [[0, 0], [1, 2, 1]])
def test_a_rank_is_left_out_once(ranks: list[int]) -> None:
    with pytest.raises(MPI.Exception) as caught:
        GROUP.Excl(ranks)
    assert str(caught.value) == f"Invalid ranks {ranks}: one is there twice"
    assert caught.value.Get_error_class() == MPI.ERR_RANK


GRID = Grid((2, 3, 4), (False, True, False))


def test_coordinates_and_ranks_of_a_grid_are_in_row_major_order() -> None:
    everywhere = list(product(range(2), range(3), range(4)))
    assert GRID.size == 24
    assert [tuple(GRID.coordinates(rank)) for rank in range(24)] == everywhere
    assert [GRID.rank(coordinates) for coordinates in everywhere] == list(range(24))
    assert (Grid((), ()).size, Grid((), ()).coordinates(0), Grid((), ()).rank([])) == (1, [], 0)


@pytest.mark.parametrize("rank", [-2, -1, 24, 25])
def test_a_rank_beyond_a_grid_is_refused(rank: int) -> None:
    with pytest.raises(MPI.Exception, match=f"^Invalid rank {rank} in a grid of 24$") as caught:
        GRID.coordinates(rank)
    assert caught.value.Get_error_class() == MPI.ERR_RANK


@pytest.mark.parametrize(("around", "inside"), [(-1, 2), (-4, 2), (3, 0), (7, 1)])
def test_coordinates_wrap_around_where_a_grid_is_periodic(around: int, inside: int) -> None:
    assert GRID.rank([1, around, 2]) == GRID.rank([1, inside, 2])


@pytest.mark.parametrize(
    ("coordinates", "dim", "last"),
    [
        *(([at, 0, 0], 0, 1) for at in (-2, -1, 2, 3)),
        *(([1, 1, at], 2, 3) for at in (-2, -1, 4, 5)),
        ([0, 9, -1], 2, 3),
    ],
)
def test_coordinates_beyond_an_edge_are_refused(coordinates: list[int], dim: int, last: int) -> None:
    with pytest.raises(MPI.Exception) as caught:
        GRID.rank(coordinates)
    assert (
        str(caught.value) == f"coordinate {coordinates[dim]} of dimension {dim} must be between 0 and {last}"
    )
    assert caught.value.Get_error_class() == MPI.ERR_ARG


@pytest.mark.parametrize(
    ("at", "direction", "displacement", "expected"),
    [
        ([0, 1, 1], 0, 1, (None, [1, 1, 1])),
        ([1, 1, 1], 0, 1, ([0, 1, 1], None)),
        ([1, 1, 1], 0, -1, (None, [0, 1, 1])),
        ([0, 1, 1], 0, 2, (None, None)),
        ([0, 1, 1], 0, 3, (None, None)),
        ([0, 1, 1], 2, 7, (None, None)),
        ([1, 2, 3], 1, 1, ([1, 1, 3], [1, 0, 3])),
        ([1, 0, 3], 1, 2, ([1, 1, 3], [1, 2, 3])),
        ([0, 2, 1], 2, 2, (None, [0, 2, 3])),
        ([0, 2, 2], 2, 2, ([0, 2, 0], None)),
        ([0, 2, 2], 2, 0, ([0, 2, 2], [0, 2, 2])),
    ],
)
def test_a_shift_goes_around_or_ends_at_nobody(
    at: list[int], direction: int, displacement: int, expected: tuple[Any, Any]
) -> None:
    ranks = tuple(MPI.PROC_NULL if each is None else GRID.rank(each) for each in expected)
    assert GRID.shift(GRID.rank(at), direction, displacement) == ranks


@pytest.mark.parametrize("direction", [-2, -1, 3, 4])
def test_a_shift_goes_along_a_dimension_of_the_grid(direction: int) -> None:
    with pytest.raises(MPI.Exception) as caught:
        GRID.shift(0, direction, 1)
    assert str(caught.value) == f"Invalid direction {direction} in a grid of 3 dimensions"
    assert caught.value.Get_error_class() == MPI.ERR_ARG


def test_a_grid_is_data() -> None:
    same = Grid((2, 3, 4), (False, True, False))
    assert same == GRID
    assert hash(same) == hash(GRID)
    with pytest.raises(FrozenInstanceError):
        same.dims = (1,)  # type: ignore[misc]


def test_groups_are_compared_by_their_members_and_their_order() -> None:
    assert GROUP.Compare(GROUP.Dup()) == MPI.IDENT
    assert GROUP.Compare(GROUP.Incl([3, 2, 1, 0])) == MPI.SIMILAR
    assert GROUP.Compare(OTHER) == GROUP.Compare(GROUP.Incl([0])) == MPI.UNEQUAL


def test_a_range_without_a_stride_is_refused() -> None:
    with pytest.raises(MPI.Exception, match="the stride is 0"):
        GROUP.Range_incl([(0, 1, 0)])


def test_functions_of_mpi4pys_class_take_groups_of_simulated_ranks_and_the_empty_group_names_nobody() -> None:
    mpi4py = pytest.importorskip("mpi4py.MPI")

    def body(context: RankContext, _: None) -> tuple[Any, ...]:
        comm, group = context.comm, context.comm.Get_group()
        first = mpi4py.Group.Range_incl(group, [(0, 1, 1)])
        made = comm.Create(first if comm.rank < 2 else mpi4py.GROUP_EMPTY)
        return (
            mpi4py.Group.Compare(first, group) == mpi4py.UNEQUAL,
            mpi4py.Group.Difference(group, first).Get_size(),
            mpi4py.Group.Union(first, mpi4py.GROUP_EMPTY) == first,
            mpi4py.Group.Translate_ranks(group, [0, 2], first) == [0, mpi4py.UNDEFINED],
            isinstance(group, mpi4py.Group) and isinstance(mpi4py.GROUP_EMPTY, mpi4py.Group),
            made.Get_size() if comm.rank < 2 else made == mpi4py.COMM_NULL,
        )

    run = SimulatedWorld(3).run(body)
    assert run.completed, run
    assert run.values == tuple((True, 1, True, True, True, 2 if rank < 2 else True) for rank in range(3))
    assert mpi4py.Group.Get_size(mpi4py.GROUP_EMPTY) == 0


def test_what_is_no_group_is_refused() -> None:
    def body(context: RankContext, _: None) -> None:
        with pytest.raises(TypeError, match="is not a group of ranks of the case"):
            context.comm.Create([0, 1])

    assert SimulatedWorld(1).run(body).completed
