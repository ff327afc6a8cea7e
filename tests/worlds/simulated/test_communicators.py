"""Communicators made from others: groups, colours, grids."""

import inspect
import itertools

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.run import Blocked, PeerFailed
from adjointlab.worlds.simulated.communicator import _collective
from adjointlab.worlds.simulated.topologies import Grid
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.worlds.simulated.completed import values

WORLD = SimulatedWorld(6)
SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_split_orders_by_key_and_leaves_out_the_undefined(seed):
    def body(comm):
        color = MPI.UNDEFINED if comm.rank == 4 else comm.rank % 2
        part = comm.Split(color, key=-comm.rank)
        if not part:
            assert part is MPI.COMM_NULL
            return None
        found = part.rank, part.size, part.allgather(comm.rank)
        part.Free()
        with pytest.raises(MPI.Exception, match="freed"):
            part.Barrier()
        return found

    assert values(body, 6, seed) == (
        (1, 2, [2, 0]),
        (2, 3, [5, 3, 1]),
        (0, 2, [2, 0]),
        (1, 3, [5, 3, 1]),
        None,
        (0, 3, [5, 3, 1]),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_create_group_concerns_its_members_alone(seed):
    def body(comm):
        group = comm.Get_group().Incl([3, 1])
        assert group.size == 2
        if comm.rank not in (1, 3):
            assert group.rank == MPI.UNDEFINED
            return None
        made = comm.Create_group(group, tag=5)
        again = comm.Create_group(group, tag=5)
        assert made != again
        return made.rank, made.allgather(comm.rank), again.allreduce(1)

    assert values(body, 4, seed) == (None, (1, [3, 1], 2), None, (0, [3, 1], 2))


@pytest.mark.parametrize("make", ["Create", "Create_group"])
def test_a_communicator_has_only_members_of_the_one_it_is_made_from(make):
    def body(comm):
        part = comm.Split(comm.rank % 2)
        with pytest.raises(MPI.Exception, match="not all its members are in the communicator"):
            getattr(part, make)(comm.Get_group())
        with pytest.raises(MPI.Exception, match="Invalid rank -1 in a group of 2"):
            part.Get_group().Incl([0, -1])

    values(body, 4)


def test_create_gives_null_to_those_outside():
    def body(comm):
        made = comm.Create(comm.group.Excl([0]))
        return bool(made) and made.rank

    assert values(body, 3) == (False, 0, 1)


def test_a_third_rank_leaves_a_mismatch_of_two_because_they_failed():
    """The last to arrive computes, and finds that two others disagree."""

    def body(context, _):
        comm = context.comm
        comm.Create(comm.group.Incl([[0, 1], [1], [2]][context.rank]))

    run = SimulatedWorld(3).run(body)
    assert [type(outcome) for outcome in run.outcomes] == [Blocked, Blocked, PeerFailed]
    assert run.outcomes[2].peers == (0, 1)
    assert run.outcomes[2].call.startswith("Create(")
    assert [finding.kind for finding in run.findings] == ["mismatched collective"]


def test_groups_translate_and_combine():
    def body(comm):
        everyone = comm.Get_group()
        some = everyone.Incl([2, 0])
        assert everyone.Translate_ranks([0, 1, 2], some) == [1, MPI.UNDEFINED, 0]
        assert MPI.UNDEFINED < 0
        assert type(some).Translate_ranks(some, [0, 1], everyone) == [2, 0]
        assert some.Union(everyone.Incl([3])).members == (2, 0, 3)
        assert everyone.Intersection(some).members == (0, 2)
        assert everyone.Difference(some).members == (1, 3)

    values(body)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_grid_knows_its_neighbours_and_its_lines(seed):
    def body(comm):
        grid = comm.Create_cart([2, 3], periods=[False, True])
        row, column = grid.Get_coords(grid.rank)
        assert (row, column) == divmod(grid.rank, 3)
        assert grid.Get_cart_rank([row, column + 3]) == grid.rank
        assert grid.Get_topo() == ([2, 3], [0, 1], [row, column])
        assert (grid.dims, grid.periods, grid.coords, grid.dim) == ([2, 3], [0, 1], [row, column], 2)
        with pytest.raises(MPI.Exception, match="coordinate 2 of dimension 0 must be between 0 and 1"):
            grid.Get_cart_rank([2, 0])
        below = grid.rank + 3 if row == 0 else MPI.PROC_NULL
        above = grid.rank - 3 if row == 1 else MPI.PROC_NULL
        assert grid.Shift(0, 1) == (above, below)
        assert grid.Shift(1, 1) == (3 * row + (column - 1) % 3, 3 * row + (column + 1) % 3)
        line = grid.Sub([False, True])
        assert (line.rank, line.dims) == (column, [3])
        assert line.allgather(grid.rank) == [3 * row, 3 * row + 1, 3 * row + 2]
        source, dest = grid.Shift(0, 1)
        return grid.sendrecv(grid.rank, dest, source=source)

    assert values(body, 6, seed) == (None, None, None, 0, 1, 2)


def test_the_lines_of_a_grid_keep_their_own_dimensions_and_periods():
    grid = Grid((2, 3, 4), (False, True, False))
    assert grid.keep([False, True, False]) == Grid((3,), (True,))
    assert grid.keep([0, 1, 1]) == Grid((3, 4), (True, False))
    assert grid.keep([1, 0, 1]) == Grid((2, 4), (False, False))


def test_ranks_beyond_the_grid_get_null_and_a_grid_too_large_is_refused():
    assert values(lambda comm: bool(comm.Create_cart([2])), 3) == (True, True, False)
    assert values(lambda comm: bool(comm.Create_cart([0, 2])), 2) == (False, False)
    assert values(lambda comm: bool(comm.Create_cart([1, 2])), 2) == (True, True)

    def body(comm):
        with pytest.raises(MPI.Exception, match="has 2 ranks"):
            comm.Create_cart([3])

    values(body, 2)


def test_messages_do_not_cross_from_one_communicator_to_another():
    def body(comm):
        other = comm.Dup()
        if comm.rank == 0:
            MPI.Request.waitall([comm.isend("first", 1), other.isend("second", 1)])
            return None
        return other.recv(source=0), comm.recv(source=0)

    for seed in range(5):
        assert values(body, 2, seed)[1] == ("second", "first")


def test_names_and_kinds():
    def body(comm):
        copied = comm.Dup()
        copied.Set_name("copied")
        assert copied.name == "copied"
        assert copied != comm
        assert comm == comm
        assert not comm.Is_inter()
        assert comm.Get_topology() == MPI.UNDEFINED
        grid = copied.Create_cart([2])
        assert [each.Get_topology() for each in (comm, grid)] == [MPI.UNDEFINED, MPI.CART]
        assert [each.topology for each in (comm, grid)] == [MPI.UNDEFINED, MPI.CART]
        assert [each.is_topo for each in (comm, grid)] == [False, True]
        assert (comm.carried_topology, grid.carried_topology) == (None, Grid((2,), (False,)))
        assert grid.dim == grid.ndim == grid.Get_dim() == 1
        assert grid.topo == grid.Get_topo() == ([2], [0], [grid.rank])
        assert comm.takes_device_memory is True
        assert comm.unfreed() == [copied._shared, grid._shared]
        grid.keep()
        copied.Free()
        assert comm.unfreed() == []

    values(body, 2)


def test_a_communicator_shows_its_rank_its_size_and_its_name():
    def body(comm):
        copied, grid = comm.Dup(), comm.Create_cart([2])
        grid.Set_name("grid")
        return repr(comm), repr(copied), repr(grid)

    assert values(body, 2)[1] == (
        "<Communicator rank 1 of 2>",
        "<Communicator rank 1 of 2 ranks 0 1>",
        "<CartesianCommunicator rank 1 of 2 grid>",
    )


def test_a_deadlock_on_a_part_speaks_in_ranks_of_the_run():
    def body(comm):
        part = comm.Split(comm.rank % 2)
        if comm.rank == 1:
            part.Recv(np.empty(1), source=1)

    run = WORLD.run(lambda context, _: body(context.comm), ranks=4)
    assert [finding.kind for finding in run.findings] == ["deadlock"]
    assert run.outcomes[1].call == "Recv(source=1, tag=ANY_TAG, comm=ranks 1 3)"
    assert run.outcomes[1].waits_for == (3,)


def test_a_collective_has_the_name_of_its_method_and_the_arguments_that_it_reads():
    def read(comm, buf, root=0):
        """Read it."""

    made = _collective("Ibcast", read, blocking=False)
    assert (made.__name__, made.__qualname__, made.__doc__) == ("Ibcast", "Communicator.Ibcast", "Read it.")
    assert inspect.signature(made) == inspect.signature(read)


def test_views_of_one_communicator_on_two_ranks_are_not_equal():
    run = WORLD.run(lambda context, _: context.comm, ranks=3)
    for one, other in itertools.product(run.values, repeat=2):
        assert (one == other) is (one is other)


def test_grids_of_other_remaining_dimensions_are_a_mismatch():
    def body(context, _):
        grid = context.comm.Create_cart([2, 2])
        grid.Sub([True, False] if context.rank == 0 else [False, True])

    (finding,) = SimulatedWorld(4).run(body, None, 4).findings
    assert "the count or shape is (" in finding.text
    assert "(True, False)" in finding.text
