"""Code that asks for mpi4py's classes, of its arguments or of exceptions, finds them in every world."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.world import RankContext, World

THEIRS = pytest.importorskip("mpi4py.MPI")


def kinds(context: RankContext, _: object) -> dict[str, list[bool]]:
    comm: Any = context.comm
    made = {
        "world": comm,
        "duplicate": comm.Dup(),
        "part": comm.Split(0, comm.rank),
        "grid": comm.Create_cart([comm.size]),
        "graph": comm.Create_dist_graph_adjacent([comm.rank], [comm.rank]),
    }
    classes = (
        THEIRS.Comm,
        THEIRS.Intracomm,
        THEIRS.Topocomm,
        THEIRS.Cartcomm,
        THEIRS.Distgraphcomm,
        THEIRS.Intercomm,
    )
    found = {name: [isinstance(each, one) for one in classes] for name, each in made.items()}
    for name, each in made.items():
        if name != "world":
            each.Free()
    return found


def test_communicators_are_of_the_classes_of_mpi4py(adjointlab_world: World) -> None:
    if adjointlab_world.name == "torch":
        pytest.skip("its ranks have no communicator of MPI")
    plain = [True, True, False, False, False, False]
    found = adjointlab_world.run(kinds, None, 2).values
    assert (
        list(found)
        == [
            {
                "world": plain,
                "duplicate": plain,
                "part": plain,
                "grid": [True, True, True, True, False, False],
                "graph": [True, True, True, False, True, False],
            }
        ]
        * 2
    )


def refused(context: RankContext, _: object) -> tuple[str, str, bool, list[bool]]:
    try:
        context.comm.Send(bytearray(1), dest=7)
    except THEIRS.Exception as error:
        raised = error
    assert raised
    found = raised.Get_error_class()
    same = [
        found == THEIRS.ERR_RANK,
        found == THEIRS.ERR_RANK,
        found == THEIRS.ERR_TAG,
        found != THEIRS.ERR_RANK,
    ]
    return type(raised).__name__, raised.Get_error_string(), bool(raised), same


def test_the_null_communicator_is_of_them_too(adjointlab_world: World) -> None:
    if adjointlab_world.name == "torch":
        pytest.skip("its ranks have no communicator of MPI")

    def parted(context: RankContext, _: object) -> tuple[bool, bool]:
        part = context.comm.Split(THEIRS.UNDEFINED if context.comm.rank else 0)
        is_null, is_comm = part == THEIRS.COMM_NULL, isinstance(part, THEIRS.Comm)
        if not is_null:
            part.Free()
        return is_null, is_comm

    assert adjointlab_world.run(parted, None, 2).values == ((False, True), (True, True))


def packed(context: RankContext, _: object) -> tuple[list[int], list[float]]:
    """As code that sends numbers of several types in one message does."""
    comm: Any = context.comm
    other = 1 - comm.Get_rank()
    size = THEIRS.INT.Pack_size(1, comm) + THEIRS.DOUBLE.Pack_size(2, comm=comm)
    sent, received = bytearray(size), bytearray(size)
    position = THEIRS.INT.Pack(np.full(1, comm.Get_rank(), "i"), sent, 0, comm)
    end = THEIRS.DOUBLE.Pack(np.array([0.5, 1.5]), sent, position=position, comm=comm)
    comm.Sendrecv([sent, THEIRS.PACKED], other, 0, [received, THEIRS.PACKED], other, 0)
    rank, values = np.zeros(1, "i"), np.zeros(2)
    position = THEIRS.INT.Unpack(received, 0, rank, comm)
    assert THEIRS.DOUBLE.Unpack(received, position, values, comm) == end == size
    return rank.tolist(), values.tolist()


def test_elements_are_packed_for_the_communicator_of_a_case(adjointlab_world: World) -> None:
    if adjointlab_world.name == "torch":
        pytest.skip("its ranks have no communicator of MPI")
    assert adjointlab_world.run(packed, None, 2).values == (([1], [0.5, 1.5]), ([0], [0.5, 1.5]))


def test_what_mpi_refuses_is_an_exception_of_mpi4py(adjointlab_world: World) -> None:
    if adjointlab_world.name == "torch":
        pytest.skip("its ranks have no communicator of MPI")
    for name, text, is_true, same in adjointlab_world.run(refused, None, 2).values:
        assert (name, is_true, same) == ("Exception", True, [True, True, False, False])
        assert "rank" in text.lower()


def test_an_exception_of_simulated_ranks_says_its_text() -> None:
    error = MPI.Exception("no such rank", MPI.ERR_RANK)
    assert isinstance(error, THEIRS.Exception)
    assert (str(error), repr(error)) == ("no such rank", "Exception('no such rank')")
    assert (error.error_string, error.error_class) == ("no such rank", MPI.ERR_RANK)
    assert len({error, error}) == 1
    assert str(copy.copy(error)) == "no such rank"
    assert error != MPI.Exception("no such rank", MPI.ERR_RANK)
