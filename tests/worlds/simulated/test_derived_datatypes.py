"""Derived datatypes on simulated ranks, beyond what the programs of every world show."""

from __future__ import annotations

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.run import FindingKind
from adjointlab.worlds.schedule import Schedule, schedules_from
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip

WORLD = SimulatedWorld(2)
COLUMN = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
SCHEDULES = (Schedule(), *schedules_from(5, 6))


def run(program, schedule=None):
    return WORLD.run(lambda context, _: program(context.comm), None, 2, schedule=schedule)


def message_of(program):
    return run(program).outcomes[0].message


def test_a_datatype_that_reaches_beyond_the_buffer_is_refused():
    def program(comm):
        comm.Bcast([np.zeros(11), 2, COLUMN])

    assert (
        message_of(program)
        == "message: the datatype names elements 0 to 17, but the buffer holds 11; give the whole array, with a displacement where it begins elsewhere"
    )


def test_elements_that_are_sent_and_received_at_once_are_refused_and_others_of_one_buffer_are_not():
    def program(comm, first):
        whole = np.arange(12.0).reshape(3, 4)
        out, into = ([1, 1], [0, 8], [COLUMN] * 2), ([1, 1], [8 * first, 8 * (first + 1)], [COLUMN] * 2)
        comm.Alltoallw([whole, *out], [whole, *into])
        return whole[:, 2:].tolist()

    assert "must not be aliased" in message_of(lambda comm: program(comm, 1))
    assert run(lambda comm: program(comm, 2)).outcomes[0].value == [[0, 0], [4, 4], [8, 8]]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("dtype", ["bool", "int8", "complex128", "float32"])
def test_elements_between_those_that_are_received_stay_as_they_are(dtype, schedule):
    """Whenever the message arrives, and whatever shows until then that a buffer is not to be read."""

    def program(comm):
        other = 1 - comm.rank
        kind = MPI.Datatype("", dtype).Create_vector(3, 1, 2).Commit()
        sent, received = np.array([1, 0, 1, 1, 0, 1], dtype), np.array([0, 1, 0, 1, 0, 1], dtype)
        requests = [
            comm.Irecv([received, 1, kind], other),
            comm.Isend([sent, 3, MPI.Datatype("", dtype)], other),
        ]
        MPI.Request.Waitall(requests)
        return received.tolist()

    for outcome in run(program, schedule).outcomes:
        assert outcome.value == [1, 1, 0, 1, 1, 1]


def test_a_change_of_elements_that_are_on_their_way_is_found_and_of_those_between_them_is_not():
    def program(comm, place):
        sent, received = np.zeros((3, 4)), np.zeros(3)
        request = comm.Isend([sent, 1, COLUMN], 1 - comm.rank)
        sent[1, place] = 5.0
        comm.Recv(received, 1 - comm.rank)
        request.Wait()

    found = run(lambda comm: program(comm, 0)).findings
    assert [finding.kind for finding in found][:1] == [FindingKind.BUFFER_MISUSED]
    assert run(lambda comm: program(comm, 1)).findings == ()


def test_datatypes_of_other_elements_do_not_match():
    def program(comm):
        other = 1 - comm.rank
        comm.Sendrecv([np.zeros((3, 4)), 1, COLUMN], other, 0, np.zeros(3, "f"), other)

    (finding, *_) = run(program).findings
    assert "float64 was sent, and float32 is received" in finding.text


def test_a_reduction_of_elements_apart_from_one_another_is_refused():
    def program(comm):
        comm.Allreduce([np.zeros((3, 4)), 1, COLUMN], np.zeros(3))

    assert "not defined for this datatype: SUM of a derived datatype of DOUBLE" in message_of(program)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: MPI.INT.Create_subarray((3, 4), (2, 2), (2, 0)), "is not inside an array of shape"),
        (lambda: MPI.INT.Create_vector(2, -1, 3), "the number is negative"),
        (lambda: MPI.INT.Create_vector(-2, 1, 3), "count: -2 blocks"),
        (lambda: MPI.INT.Create_hvector(-1, 1, 3), "count: -1 blocks"),
    ],
)
def test_what_no_datatype_can_be_is_refused(make, problem):
    with pytest.raises(ValueError, match=problem):
        make()


def test_a_datatype_is_used_between_its_commit_and_its_release():
    def program(comm, prepare):
        kind = MPI.DOUBLE.Create_vector(2, 1, 3)
        prepare(kind)
        comm.Bcast([np.zeros(6), 1, kind])

    told = "Datatype has not been committed, or has been freed: DOUBLE.Create_vector(2, 1, 3)"
    assert message_of(lambda comm: program(comm, lambda kind: None)) == told
    assert message_of(lambda comm: program(comm, lambda kind: kind.Commit().Free())) == told
    assert run(lambda comm: program(comm, lambda kind: kind.Commit())).completed


def test_a_datatype_is_shown_as_it_was_made_and_long_arguments_are_cut_off():
    assert repr(MPI.INT) == "INT"
    long = MPI.INT.Create_vector(2, 1, 3).Create_indexed_block(1, range(100))
    assert repr(long).startswith("INT.Create_vector(2, 1, 3).Create_indexed_block(1, [0, 1, 2, 3,")
    assert len(repr(long)) < 100


def test_a_grid_without_dimensions_has_no_neighbours():
    def program(comm):
        point = comm.Create_cart([comm.size], [True]).Sub([False])
        received = np.full(3, -1.0)
        point.Neighbor_alltoall(np.zeros(3), received)
        return received.tolist(), point.neighbor_allgather(1)

    for outcome in run(program).outcomes:
        assert outcome.value == ([-1.0] * 3, [])


def test_a_datatype_that_is_made_of_a_structure_is_aligned_as_it_is():
    """In MPICH's way; the standard leaves extents of structures to the library."""
    inner = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT])
    assert inner.Get_extent() == (0, 16)
    made = [
        inner.Create_contiguous(2),
        inner.Create_resized(0, 24),
        inner.Create_vector(2, 1, 1),
        inner.Dup(),
    ]
    for kind in made:
        assert MPI.Datatype.Create_struct([1, 1], [0, 32], [kind, MPI.INT]).Get_extent() == (0, 40)
    loose = MPI.Datatype.Create_struct([1, 1], [0, 12], [MPI.INT.Create_vector(2, 1, 3), MPI.INT8_T])
    assert loose.Get_extent() == (0, 16)


@pytest.mark.starts_mpiexec
def test_absolute_addresses_are_refused_with_what_to_do():
    def program(comm):
        from mpi4py import MPI as mpi4py

        comm.Bcast([mpi4py.BOTTOM, 1, COLUMN])

    assert message_of(program).startswith(
        "MPI.BOTTOM: simulated ranks know no absolute addresses; give the array"
    )


@pytest.mark.starts_mpiexec
def test_persistent_requests_are_completed_by_the_functions_of_their_own_class():
    def program(comm):
        from mpi4py import MPI as mpi4py

        received, other = np.zeros(1), 1 - comm.Get_rank()
        requests = [comm.Recv_init(received, other), comm.Send_init(np.full(1, 7.0 + comm.Get_rank()), other)]
        mpi4py.Prequest.Startall(requests)
        mpi4py.Prequest.Waitall(requests)
        return float(received[0])

    assert run(program).values == (8.0, 7.0)
