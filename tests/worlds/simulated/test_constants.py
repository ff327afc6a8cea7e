"""mpi4py's constants are understood, and adjointlab's are translated into them."""

import inspect

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds import constants
from adjointlab.worlds.comm_world import redirection_of
from adjointlab.worlds.simulated.communicator import Communicator
from adjointlab.worlds.simulated.requests import SimulatedRequest
from adjointlab.worlds.simulated.world import SimulatedWorld

theirs = pytest.importorskip("mpi4py.MPI")

WORLD = SimulatedWorld(2)


@pytest.mark.parametrize("op", list(MPI.Op), ids=lambda op: op.value)
def test_operations_go_both_ways(op):
    assert constants.to_mpi4py(op) == getattr(theirs, op.value)
    assert constants.as_op(getattr(theirs, op.value)) is op


@pytest.mark.parametrize("name", ["ANY_SOURCE", "ANY_TAG", "PROC_NULL", "ROOT", "UNDEFINED"])
def test_integers_go_to_mpi4py(name):
    assert constants.to_mpi4py(getattr(MPI, name)) == getattr(theirs, name)


def test_integers_are_read_by_what_they_stand_for():
    assert constants.as_source(theirs.ANY_SOURCE) == MPI.ANY_SOURCE
    assert constants.as_source(theirs.PROC_NULL) == MPI.PROC_NULL
    assert constants.as_tag(theirs.ANY_TAG) == MPI.ANY_TAG
    assert constants.is_undefined(theirs.UNDEFINED)
    assert constants.as_source(3) == constants.as_tag(3) == 3
    assert constants.to_mpi4py(3) == 3


@pytest.mark.parametrize("name", sorted(constants.DATATYPES))
def test_datatypes_go_both_ways(name):
    ours = constants.DATATYPES[name]
    there = constants.to_mpi4py(ours)
    assert constants.datatype(there).numpy == ours.numpy
    assert there.Get_size() == np.dtype(ours.numpy).itemsize


def test_pairs_of_a_value_and_an_index_are_refused_with_what_works_instead():
    with pytest.raises(
        NotImplementedError, match=r"MPI_DOUBLE_INT: .*comm\.allreduce\(\(value, index\), MPI\.MINLOC\)"
    ):
        constants.datatype(theirs.DOUBLE_INT)


def test_buffer_specifications_are_translated_item_by_item():
    array = np.zeros(3)
    translated = constants.to_mpi4py([array, (1, 2), MPI.DOUBLE])
    assert translated[0] is array
    assert translated[1:] == [(1, 2), theirs.DOUBLE]
    assert constants.to_mpi4py(MPI.IN_PLACE) is theirs.IN_PLACE


@pytest.mark.parametrize(("library", "dtype"), [(MPI, MPI.DOUBLE), (theirs, theirs.DOUBLE)])
def test_a_status_of_either_library_is_filled(library, dtype):
    status = library.Status()
    constants.fill_status(status, MPI.PROC_NULL, 5, 16)
    constants.mark_cancelled(status)
    assert (status.Get_source(), status.Get_tag(), status.Get_count(dtype)) == (library.PROC_NULL, 5, 2)
    assert status.count == 16
    assert status.Is_cancelled()


def test_a_communicator_takes_mpi4pys_constants():
    def body(context, _):
        comm, status = context.comm, theirs.Status()
        buffer = np.array([comm.rank + 1.0])
        comm.Allreduce(theirs.IN_PLACE, [buffer, theirs.DOUBLE], op=theirs.PROD)
        comm.Send(buffer, theirs.PROC_NULL)
        request = comm.Irecv(np.zeros(2), source=theirs.ANY_SOURCE, tag=theirs.ANY_TAG)
        comm.Send(buffer, 1 - comm.rank, 6)
        request.Wait(status)
        part = comm.Split(theirs.UNDEFINED)
        return buffer[0], status.Get_source(), status.Get_tag(), status.Get_count(theirs.DOUBLE), bool(part)

    for seed in range(3):
        assert WORLD.run(body, ranks=2, seed=seed).values == ((2.0, 1, 6, 1, False), (2.0, 0, 6, 1, False))


def methods_of(kind):
    """The methods of a class of mpi4py, by name; of communicators those that it has itself, where a run has replaced them."""
    found = dict(inspect.getmembers(kind, callable))
    for base in reversed(kind.__mro__):
        found |= redirection_of(theirs)._originals.get(base, {})
    return found


@pytest.mark.parametrize("ours", [Communicator, SimulatedRequest])
def test_arguments_that_are_left_out_are_those_of_mpi4py(ours):
    library = methods_of(theirs.Cartcomm if ours is Communicator else theirs.Request)
    compared = set()
    for name, method in inspect.getmembers(ours, inspect.isfunction):
        if name.startswith("_") or name not in library:
            continue
        expected = inspect.signature(library[name]).parameters
        for argument in inspect.signature(method).parameters.values():
            if argument.name not in expected or argument.name == "info":  # which is not looked at
                continue
            default = expected[argument.name].default
            if argument.default is not argument.empty or default is not argument.empty:
                compared.add((name, argument.name))
                assert constants.to_mpi4py(argument.default) == default, (name, argument.name)
    some = {("Bcast", "root"), ("allreduce", "op"), ("Send", "tag"), ("Split", "color"), ("Ireduce", "op")}
    assert compared >= (some if ours is Communicator else {("Wait", "status")})


def test_the_communicator_of_the_run_equals_comm_world_and_no_other_one_does():
    def body(context, _):
        comm = context.comm
        copied = comm.Dup()
        others = (theirs.COMM_SELF, None, 5, comm.group)
        assert not any(comm == other or copied == other for other in others)
        return comm == theirs.COMM_WORLD, copied == theirs.COMM_WORLD, comm == comm, comm == copied

    assert WORLD.run(body, ranks=2).values == ((True, False, True, False),) * 2


def test_requests_of_any_kind_complete_by_our_waitall():
    class Duck:
        def wait(self, status=None):
            return None

    def body(context, _):
        comm = context.comm
        requests = [comm.Irecv(np.zeros(1), 1 - comm.rank), comm.Isend(np.ones(1), 1 - comm.rank)]
        return MPI.Request.Waitall([*requests, Duck()])

    assert WORLD.run(body, ranks=2).values == (True, True)


def test_requests_of_another_library_are_given_to_its_own_waitall():
    waited = []

    class Theirs:
        def wait(self, status=None):
            waited.append(self)

        @staticmethod
        def Waitall(requests):
            waited.append(requests)
            return True

    two, status = [Theirs(), Theirs()], MPI.Status()
    assert MPI.Request.Waitall(two)
    assert MPI.Request.Waitall([])
    assert waited == [two]
    assert MPI.Request.Waitall(two, [status])  # which may be one of ours, that no other library fills
    assert waited[1:] == two


RECEIVING = {
    "Waitall": lambda request: theirs.Request.Waitall(request),
    "Waitany": lambda request: theirs.Request.Waitany(request) == 0,
    "Waitsome": lambda request: theirs.Request.Waitsome(request) == [0],
    "Testall": lambda request: again(lambda: theirs.Request.Testall(request)),
    "Testany": lambda request: again(lambda: theirs.Request.Testany(request)[1]),
    "Testsome": lambda request: again(lambda: theirs.Request.Testsome(request)),
    "waitall": lambda request: theirs.Request.waitall(request),
    "testall": lambda request: again(lambda: theirs.Request.testall(request)[0]),
    "waitany": lambda request: theirs.Request.waitany(request)[0] == 0,
    "testany": lambda request: again(lambda: theirs.Request.testany(request)[1]),
    "waitsome": lambda request: theirs.Request.waitsome(request) == ([0], [None]),
    "testsome": lambda request: again(lambda: theirs.Request.testsome(request)[0]),
}


def again(test):
    while not (found := test()):
        pass
    return found


@pytest.mark.parametrize("name", RECEIVING)
@pytest.mark.parametrize("seed", range(3))
def test_mpi4pys_own_functions_complete_simulated_requests(name, seed):
    def body(context, _):
        comm, received = context.comm, np.zeros(1)
        request = comm.Irecv(received, 1 - comm.rank)
        assert isinstance(request, theirs.Request)
        sending = comm.Isend(np.full(1, comm.rank + 1.0), 1 - comm.rank)
        assert RECEIVING[name]([request])
        theirs.Request.Waitall([sending, theirs.REQUEST_NULL])
        return received[0]

    run = WORLD.run(body, ranks=2, seed=seed)
    assert run.completed, run
    assert run.values == (2.0, 1.0)


def test_mpi4pys_own_requests_go_through_untouched_and_its_class_is_put_back():
    before = theirs.Request

    def body(context, _):
        if context.rank == 0:
            comm, received = theirs.COMM_SELF, np.zeros(1)
            requests = [comm.Irecv(received, 0), comm.Isend(np.ones(1), 0)]
            assert isinstance(requests[0], theirs.Request)
            theirs.Request.Waitall(requests)
            assert theirs.Request.Waitany(requests) == theirs.UNDEFINED
            assert received[0] == 1
        raise RuntimeError("the end")

    run = WORLD.run(body, ranks=2)
    assert {outcome.message for outcome in run.outcomes} == {"the end"}
    assert theirs.Request is before


@pytest.mark.parametrize("seed", range(3))
def test_a_test_of_several_completes_none_of_them_while_one_is_missing(seed):
    def body(context, _):
        comm, received, statuses = context.comm, np.zeros(2), [MPI.Status(), MPI.Status()]
        requests = [comm.Irecv(received[:1], 1 - comm.rank, 1), comm.Irecv(received[1:], 1 - comm.rank, 2)]
        comm.Send(np.full(1, 3.0), 1 - comm.rank, 1)
        for _ in range(5):
            assert not MPI.Request.Testall(requests, statuses)
        assert again(requests[0].Get_status)
        assert all(requests)
        comm.Barrier()
        comm.Send(np.full(1, 4.0), 1 - comm.rank, 2)
        again(lambda: MPI.Request.Testall(requests, statuses))
        return [*received, *(status.Get_tag() for status in statuses)]

    assert WORLD.run(body, ranks=2, seed=seed).values == ([3.0, 4.0, 1, 2], [3.0, 4.0, 1, 2])


def test_what_the_labs_constants_do_not_have_is_said_with_what_has_it() -> None:
    assert MPI.C_FLOAT_COMPLEX is MPI.COMPLEX
    assert MPI.C_DOUBLE_COMPLEX is MPI.DOUBLE_COMPLEX
    assert not hasattr(MPI, "INFO_NULL")
    with pytest.raises(AttributeError, match=r"has no INFO_NULL; mpi4py's own may have it"):
        _ = MPI.INFO_NULL
    with pytest.raises(AttributeError, match="one-sided communication works in neither world"):
        _ = MPI.Win
    with pytest.raises(NotImplementedError, match=r"mpi4py's Op\.Create"):
        MPI.Op.Create(max, commute=True)
