"""Every operation reduces arrays and objects in the order of ranks, of the kinds of elements that MPI has it for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.simulated.world import SimulatedWorld

WORLD = SimulatedWorld(3)

BYTES_OF_KIND = {"b": "bool", "i": "int32", "u": "uint8", "f": "float64", "c": "complex128"}
LOGICAL, BITWISE = "biu", "iu"

# Of 6, 3 and 0 on ranks 0, 1 and 2: the result, and the kinds of elements that have the operation.
TABLE = [
    (MPI.SUM, 9, "iufc"),
    (MPI.PROD, 0, "iufc"),
    (MPI.MAX, 6, "iuf"),
    (MPI.MIN, 0, "iuf"),
    (MPI.LAND, 0, LOGICAL),
    (MPI.LOR, 1, LOGICAL),
    (MPI.LXOR, 0, LOGICAL),
    (MPI.BAND, 0, BITWISE),
    (MPI.BOR, 7, BITWISE),
    (MPI.BXOR, 5, BITWISE),
]
GIVEN = (6, 3, 0)


def values(body: Any, ranks: int = 3) -> Any:
    run = WORLD.run(lambda context, _: body(context.comm), ranks=ranks)
    assert run.completed, (run.findings, run.outcomes)
    return run.values


@pytest.mark.parametrize(("op", "expected", "kinds"), TABLE, ids=lambda entry: str(entry))
def test_an_operation_is_that_of_mpi(op: Any, expected: int, kinds: str) -> None:
    def body(comm: Any) -> Any:
        own, found = GIVEN[comm.rank], {}
        for kind, dtype in BYTES_OF_KIND.items():
            buffer = np.array([own], dtype)
            try:
                comm.Allreduce(MPI.IN_PLACE, buffer, op)
                found[kind] = buffer[0].item()
            except MPI.Exception as error:
                found[kind] = f"{error.Get_error_class() == MPI.ERR_OP} {error}"
        return comm.allreduce(own, op), found

    for result, found in values(body):
        assert result == expected
        for kind, of_arrays in found.items():
            if kind in kinds:
                assert of_arrays == (bool(expected) if kind == "b" else expected)
            else:
                assert of_arrays.startswith("True ")
                assert f"not defined for this datatype: {op.value} of " in of_arrays


@pytest.mark.parametrize(("op", "expected"), [(MPI.MAX, (3, 1)), (MPI.MIN, (0, 2))])
def test_the_largest_and_the_least_object_are_found_wherever_they_are(
    op: Any, expected: tuple[int, int]
) -> None:
    objects = [(1, 0), (3, 1), (0, 2)]
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        given = [objects[place] for place in order]
        assert values(lambda comm, given=given: comm.allreduce(given[comm.rank], op)) == (expected,) * 3


@pytest.mark.parametrize("op", [MPI.MAX, MPI.MIN])
def test_of_objects_that_are_equal_the_first_is_kept(op: Any) -> None:
    objects = (1.0, 1, True)
    assert values(lambda comm: type(comm.allreduce(objects[comm.rank], op))) == (float,) * 3


def test_bytes_have_bits_and_are_no_numbers() -> None:
    def body(comm: Any) -> Any:
        buffer = np.array([1 << comm.rank], "uint8")
        comm.Allreduce(MPI.IN_PLACE, [buffer, MPI.BYTE], MPI.BOR)
        with pytest.raises(MPI.Exception, match=": SUM of BYTE"):
            comm.Allreduce(MPI.IN_PLACE, [buffer, MPI.BYTE], MPI.SUM)
        return int(buffer[0])

    assert values(body) == (7, 7, 7)


def tens(first: Any, second: Any, datatype: Any) -> None:
    """The digits of the first followed by those of the second: the order matters."""
    one, other = (np.frombuffer(each, "int64") for each in (first, second))
    other[:] = 10 * one + other


def test_an_operation_of_user_code_combines_in_the_order_of_ranks_and_another_of_mpi4py_is_refused() -> None:
    theirs = pytest.importorskip("mpi4py.MPI")
    operation = theirs.Op.Create(tens, commute=False)

    def body(comm: Any) -> Any:
        buffer, own = np.empty(1, "int64"), np.array([comm.rank + 1])
        comm.Allreduce(own, buffer, operation)
        with pytest.raises(NotImplementedError, match="reduce buffers only with SUM"):
            comm.Allreduce(own, buffer, theirs.REPLACE)
        return int(buffer[0]), int(own[0])

    try:
        assert values(body) == ((123, 1), (123, 2), (123, 3))
    finally:
        operation.Free()


def joined(first: Any, second: Any, datatype: Any) -> None:
    """``second[:] = first`` followed by ``second``, digit by digit: associative, and not commutative."""
    one, other = (np.frombuffer(each, "int64") for each in (first, second))
    other[:] = int(f"{one[0]}{other[0]}")


def test_an_operation_of_user_code_that_is_said_to_commute_combines_in_the_opposite_order() -> None:
    theirs = pytest.importorskip("mpi4py.MPI")
    operation = theirs.Op.Create(joined, commute=True)

    def body(comm: Any) -> Any:
        own, found = np.array([comm.rank + 1]), []
        for call in (comm.Allreduce, comm.Scan, comm.Exscan):
            buffer = np.full(1, -1, "int64")
            call(own, buffer, operation)
            found.append(int(buffer[0]))
        in_place = own.copy()
        comm.Exscan(theirs.IN_PLACE, in_place, operation)
        return *found, int(in_place[0])

    try:
        # The first rank receives nothing from Exscan.
        assert values(body) == ((321, 1, -1, 1), (321, 21, 1, 1), (321, 321, 21, 21))
    finally:
        operation.Free()


def test_operations_that_ranks_make_take_none_of_the_room_that_mpi4py_has() -> None:
    theirs = pytest.importorskip("mpi4py.MPI")

    def body(comm: Any) -> Any:
        own, total = np.array([comm.rank + 1]), np.empty(1, "int64")
        kept = [theirs.Op.Create(tens, commute=False) for _ in range(20)]
        comm.Allreduce(own, total, kept[-1])
        with_object = theirs.Op.Create(lambda x, y, _: 10 * x + y).__call__
        return int(total[0]), comm.allreduce(comm.rank + 1, with_object)

    assert values(body) == ((123, 123),) * 3


def test_an_operation_that_a_rank_makes_is_one_of_mpi4py_until_it_is_freed() -> None:
    theirs = pytest.importorskip("mpi4py.MPI")

    def body(_: Any) -> Any:
        first, second = theirs.Op.Create(tens), theirs.Op.Create(tens, commute=True)
        assert isinstance(first, theirs.Op)
        assert first
        assert [each == first for each in (first, second, theirs.OP_NULL)] == [True, False, False]
        assert first != second
        assert (first.is_commutative, second.Is_commutative(), first.is_predefined) == (False, True, False)
        total = np.array([2])
        first.Reduce_local(np.array([1]), total)
        assert total == 12
        first.Free()
        assert (first == theirs.OP_NULL, bool(first), first.is_predefined) == (True, False, True)
        with pytest.raises(ValueError, match="cannot call"):
            first(1, 2)

    values(body)
