"""The same small programs by raw mpi4py, the guarded communicator and simulated ranks: same results, statuses, errors.

``mpiexec -n 3 python -m pytest tests/worlds/test_conformance.py`` compares with MPI; without mpiexec, the schedules of
simulated ranks are compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.local_calls import LocalCalls
from adjointlab.worlds.schedule import Schedule, schedules_from
from adjointlab.worlds.simulated.communicator import CartesianCommunicator, Communicator
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.worlds.mpi_programs import (
    collectives,
    communicators,
    datatypes,
    errors,
    neighbourhoods,
    objects,
    point_to_point,
    requests,
)
from tests.worlds.mpi_programs.registry import ERRORS, PROGRAMS, plain
from tests.worlds.mpi_world.worlds import opened

if is_launched():
    from mpi4py import MPI as MPI4PY


# Importing a topic registers its programs.
TOPICS = (point_to_point, objects, requests, collectives, communicators, datatypes, neighbourhoods, errors)

SIMULATED_ONLY = {"matched_probing": "Mprobe"}
"""Programs with a call that the guarded communicator has not."""

UNCHECKED = (
    "a_direction_that_the_grid_has_not",
    "a_group_with_ranks_that_the_communicator_has_not",
    "a_negative_color",
    "coordinates_of_a_rank_beyond",
)
"""Errors that a library may let pass (Open MPI does, MPICH a negative color)."""

launched = pytest.mark.skipif(not is_launched(), reason="processes of MPI are needed: run under mpiexec -n 3")
SIMULATED = SimulatedWorld(4)
SCHEDULES = (Schedule(), *schedules_from(11, 6))


@pytest.fixture(scope="module")
def guarded():
    with opened(patience=20.0) as world:
        yield world


@pytest.fixture(scope="module")
def raw():
    comm = MPI4PY.COMM_WORLD.Dup()
    yield comm
    comm.Free()


def refused(call: Callable[[], Any]) -> str:
    """The class of the error that `call` raises, in MPI's terms where it is MPI's."""
    try:
        call()
    except Exception as error:
        if not hasattr(error, "Get_error_class"):
            return type(error).__name__
        module = MPI if isinstance(error, MPI.Exception) else MPI4PY
        found = error.Get_error_class()
        return next(name for name in vars(MPI) if name.startswith("ERR_") and getattr(module, name) == found)
    return "no error"


def simulated(program: Callable[[Any], Any], ranks: int, schedule: Schedule) -> list[Any]:
    """Values that the simulated ranks return."""
    result = SIMULATED.run(lambda context, _: program(context.comm), ranks=ranks, schedule=schedule)
    assert result.completed, (result.findings, result.outcomes)
    return list(result.values)


def with_guard(guarded: Any, program: Callable[[Any, Any], Any]) -> list[Any]:
    """Values that the ranks return with the guarded communicator; on all ranks."""
    result = guarded.run(lambda context, _: program(context.comm, MPI))
    assert result.completed, (result.findings, result.outcomes)
    return list(result.values)


@launched
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_same_results_in_all_worlds(name, raw, guarded):
    def program(comm, mpi):
        return plain(PROGRAMS[name](comm, mpi))

    real = raw.allgather(program(raw, MPI4PY))
    for schedule in SCHEDULES:
        assert simulated(lambda comm: program(comm, MPI), raw.size, schedule) == real, schedule
    if name in SIMULATED_ONLY:
        result = guarded.run(lambda context, _: program(context.comm, MPI))
        assert f"the guarded communicator has no '{SIMULATED_ONLY[name]}'" in result.outcomes[0].message
    else:
        assert with_guard(guarded, program) == real


@launched
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_the_constants_of_mpi4py_does_the_same_in_all_worlds(name, raw, guarded):
    def program(comm):
        return plain(PROGRAMS[name](comm, MPI4PY))

    real = raw.allgather(program(raw))
    assert simulated(program, raw.size, SCHEDULES[1]) == real
    if name not in SIMULATED_ONLY:
        assert with_guard(guarded, lambda comm, _: program(comm)) == real


def composed(inner, outer, _datatype):
    """Compose the affine maps (factor, shift) of two ranks: an operation whose order matters."""
    first, second = np.frombuffer(inner, "d").reshape(-1, 2), np.frombuffer(outer, "d").reshape(-1, 2)
    second[:, 1] += second[:, 0] * first[:, 1]
    second[:, 0] *= first[:, 0]


@launched
def test_an_operation_of_user_code_on_buffers_is_the_same_in_all_worlds(raw, guarded):
    operation = MPI4PY.Op.Create(composed, commute=False)

    def program(comm, _=None):
        own = np.array([2.0 + comm.rank, 1.0, -1.0, comm.rank])
        results = np.zeros((4, 4))
        comm.Allreduce(own, results[0], operation)
        comm.Scan(own, results[1], operation)
        comm.Reduce(own, results[2] if comm.rank == 0 else None, operation, 0)
        comm.Iallreduce(own, results[3], operation).Wait()
        return plain(results)

    real = raw.allgather(program(raw))
    assert simulated(program, raw.size, SCHEDULES[1]) == real
    assert with_guard(guarded, program) == real
    operation.Free()


@launched
@pytest.mark.parametrize("name", ERRORS)
def test_what_mpi_refuses_is_refused_alike_in_all_worlds(name, raw, guarded):
    def program(comm, mpi):
        return refused(lambda: ERRORS[name](comm, mpi))

    real = raw.allgather(program(raw, MPI4PY))
    with_guards = with_guard(guarded, program)
    made_up = simulated(lambda comm: program(comm, MPI), raw.size, Schedule())
    if name in UNCHECKED and set(real) == {"no error"}:
        assert "no error" not in made_up
        assert with_guards in (real, made_up)
    else:
        assert "no error" not in real
        assert with_guards == made_up == real


@launched
@pytest.mark.parametrize("blocking", [True, False])
def test_a_truncated_message_is_an_error_in_all_worlds(blocking, raw, guarded):
    def program(comm, mpi):
        rank, size = comm.Get_rank(), comm.Get_size()
        request = comm.Isend(np.ones(4), (rank + 1) % size)

        def receive():
            buffer = np.zeros(2)
            if blocking:
                comm.Recv(buffer, (rank - 1) % size)
            else:
                comm.Irecv(buffer, (rank - 1) % size).Wait()

        error = refused(receive)
        request.Wait()
        return error

    assert raw.allgather(program(raw, MPI4PY)) == ["ERR_TRUNCATE"] * raw.size
    # What is an error of the library's there is a finding here, which names both calls; under MPI it is both.
    for result in (
        guarded.run(lambda context, _: program(context.comm, MPI)),
        SIMULATED.run(lambda context, _: program(context.comm, MPI), ranks=raw.size),
    ):
        assert "mismatched message" in {finding.kind for finding in result.findings}
        assert "32 bytes were sent, and the receive buffer holds 16" in result.findings[0].text


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.skipif(is_launched(), reason="compared with MPI there")
def test_a_program_has_the_same_results_under_every_schedule(name, ranks):
    def program(comm):
        return plain(PROGRAMS[name](comm, MPI))

    first, *others = [simulated(program, ranks, schedule) for schedule in SCHEDULES]
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.skipif(is_launched(), reason="compared with MPI there")
def test_what_mpi_refuses_is_refused_under_every_schedule(name):
    def program(comm):
        return refused(lambda: ERRORS[name](comm, MPI))

    first, *others = [simulated(program, 3, schedule) for schedule in SCHEDULES]
    assert "no error" not in first
    assert all(other == first for other in others)


def test_every_method_of_a_communicator_is_called_by_some_program():
    """Of both kinds of communicator, but for those listed."""
    called = set()

    class Spy:
        def __init__(self, comm):
            object.__setattr__(self, "_comm", comm)

        def __getattr__(self, name):
            called.add(name)
            value = getattr(self._comm, name)
            return spied(value) if callable(value) else value

        def __eq__(self, other):
            return self._comm == other

        __hash__ = None

    def spied(function):
        def call(*arguments, **keywords):
            result = function(*arguments, **keywords)
            return Spy(result) if isinstance(result, Communicator) else result

        return call

    for program in PROGRAMS.values():
        simulated(lambda comm, program=program: plain(program(Spy(comm), MPI)), 4, Schedule())
    names = {
        name
        for kind in (LocalCalls, Communicator, CartesianCommunicator)
        for name, value in vars(kind).items()
        if not name.startswith("_") and callable(value)
    }
    uncalled = {
        # Not for programs: the world's own, and what ends the run.
        *(
            "Abort",
            "first_given",
            "keep",
            "members_in_order",
            "new_shared",
            "node",
            "note_application",
            "note_backward",
            "note_return",
            "separate",
            "unfreed",
            "view",
        ),
        # Other spellings of what is called, or without an effect that a program could see.
        *("Bsend", "bsend", "mprobe", "probe", "iprobe", "Get_name", "Set_name"),
        # What the machine decides.
        "Split_type",
        *("Ialltoallv", "Iexscan", "Igatherv", "Iscatterv", "Ireduce_scatter"),
    }
    assert names - called == uncalled


def test_a_world_that_differs_is_noticed(monkeypatch):
    def program(comm):
        return plain(PROGRAMS["messages_with_nobody"](comm, MPI))

    right = simulated(program, 3, Schedule())
    monkeypatch.setattr(Communicator, "Iprobe", lambda *_: False)
    assert simulated(program, 3, Schedule()) != right
