"""Collectives that do not fit together: two ranks call different ones, or the same with other arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjointlab import MPI
from tests.faults.declaring import DEADLOCK, MISMATCH, WRONG, RuntimeFault, declared, fault

RAISED_BY_MPI = ("raised ValueError", "raised Exception")

Call = Callable[[Any], object]
"""A collective: called with a communicator."""


def ones(count: int = 4, dtype: str = "float64") -> Any:
    return np.ones(count, dtype)


def unlike(
    name: str, others: Call, faulty: Call, found: tuple[str, ...] = MISMATCH, **row: Any
) -> RuntimeFault:
    """A row in which the faulty rank makes another call than the others."""
    return fault(
        name, found, everywhere={"forward": lambda op: (faulty if op.is_faulty else others)(op.comm)}, **row
    )


def on_part(name: str, others: Call, faulty: Call, found: tuple[str, ...] = MISMATCH) -> RuntimeFault:
    """The same on a communicator of two ranks, made of all by Split."""

    def call(op: Any) -> None:
        part = op.comm.Split(op.rank // 2, op.rank)
        if part.Get_size() == 2:
            (faulty if op.is_faulty else others)(part)
        part.Free()

    return fault(name, found, everywhere={"forward": call})


def allreduce(op: Any = MPI.SUM, count: int = 4, dtype: str = "float64") -> Call:
    return lambda comm: comm.Allreduce(ones(count, dtype), np.zeros(count, dtype), op)


def reduce(op: Any = MPI.SUM, root: int = 0) -> Call:
    return lambda comm: comm.Reduce(ones(), np.zeros(4), op, root)


def bcast(root: int = 0, count: int = 4, dtype: str = "float64") -> Call:
    return lambda comm: comm.Bcast(ones(count, dtype), root)


def gather(root: int = 0, count: int = 4) -> Call:
    return lambda comm: comm.Gather(ones(count), np.zeros(count * comm.Get_size()), root)


def scatter(root: int = 0, count: int = 4) -> Call:
    return lambda comm: comm.Scatter(ones(count * comm.Get_size()), np.zeros(count), root)


def allgather(count: int = 4, dtype: str = "float64") -> Call:
    return lambda comm: comm.Allgather(ones(count, dtype), np.zeros(count * comm.Get_size(), dtype))


def alltoall(count: int = 4) -> Call:
    return lambda comm: comm.Alltoall(ones(count * comm.Get_size()), np.zeros(count * comm.Get_size()))


def allgatherv(counts: Call) -> Call:
    """All send two elements, and receive as many of each as `counts` says."""
    return lambda comm: comm.Allgatherv(ones(2), [np.zeros(64), counts(comm)])


def gatherv(count: int) -> Call:
    return lambda comm: comm.Gatherv(ones(count), [np.zeros(64), [2] * comm.Get_size()], 0)


def scatterv(count: int) -> Call:
    return lambda comm: comm.Scatterv([ones(2 * comm.Get_size()), [2] * comm.Get_size()], np.zeros(count), 0)


def alltoallv(count: int) -> Call:
    def call(comm: Any) -> None:
        size = comm.Get_size()
        comm.Alltoallv([ones(count * size), [count] * size], [np.zeros(2 * size), [2] * size])

    return call


def reduce_scatter(counts: Call) -> Call:
    def call(comm: Any) -> None:
        each: Any = counts(comm)
        comm.Reduce_scatter(ones(sum(each)), np.zeros(each[comm.Get_rank()]), each)

    return call


def both(*calls: Call) -> Call:
    return lambda comm: [call(comm) for call in calls]


def nothing(comm: Any) -> None:
    """The call that one rank leaves out."""


def barrier(comm: Any) -> None:
    comm.Barrier()


def split_with_undefined(comm: Any) -> None:
    comm.Split(MPI.UNDEFINED, 0).Barrier()


def split_as_one(comm: Any) -> None:
    comm.Split(0, 0).Free()


def on_two(first: int) -> Call:
    """Barriers on two communicators, one after the other."""

    def call(comm: Any) -> None:
        two = [comm, comm.Dup()]
        two[first].Barrier()
        two[1 - first].Barrier()
        two[1].Free()

    return call


def on_a_copy(comm: Any) -> None:
    comm.Dup().Barrier()


def dup_and_barrier(comm: Any) -> None:
    comm.Dup()
    comm.Barrier()


def of_other_colours(op: Any, x: Any, right: Any) -> Any:
    """Sums over a part of the ranks, and one is in the wrong part."""
    part = op.comm.Split(0 if op.is_faulty else op.rank % 2, op.rank)
    total = np.zeros(1)
    part.Allreduce(np.ones(1), total, MPI.SUM)
    part.Free()
    return right * total[0] if op.size > 1 else right


FAULTS = declared(
    globals(),
    (
        unlike("Allreduce by another operation", allreduce(), allreduce(MPI.MAX)),
        unlike("Reduce by another operation", reduce(), reduce(MPI.PROD)),
        unlike(
            "allreduce of objects by another operation",
            lambda comm: comm.allreduce(1),
            lambda comm: comm.allreduce(1, op=MPI.MAX),
        ),
        unlike("Reduce to another root", reduce(), reduce(root=1)),
        unlike("Gather to another root", gather(), gather(1)),
        unlike("Scatter from another root", scatter(), scatter(1)),
        unlike(
            "bcast of objects from another root", lambda comm: comm.bcast(1, 0), lambda comm: comm.bcast(1, 1)
        ),
        unlike(
            "gather of objects to another root",
            lambda comm: comm.gather(1, 0),
            lambda comm: comm.gather(1, 1),
        ),
        unlike("Bcast of another count", bcast(), bcast(count=3)),
        unlike("Allgather of another count", allgather(), allgather(3)),
        unlike("Alltoall of another count", alltoall(), alltoall(3)),
        unlike("Gather of another count", gather(), gather(count=3)),
        unlike("Scatter of another count", scatter(), scatter(count=3)),
        unlike("Bcast of another dtype", bcast(), bcast(dtype="float32")),
        unlike("Allgather of another dtype", allgather(), allgather(dtype="complex128")),
        unlike(
            "Allgatherv with another rank's count",
            allgatherv(lambda comm: [2] * comm.Get_size()),
            allgatherv(lambda comm: [2] * (comm.Get_size() - 1) + [3]),
        ),
        unlike("Gatherv of more than the root expects", gatherv(2), gatherv(3)),
        unlike("Scatterv into less than the root sends", scatterv(2), scatterv(1)),
        unlike("Alltoallv of more than is received", alltoallv(2), alltoallv(3)),
        unlike(
            "Reduce_scatter with other counts",
            reduce_scatter(lambda comm: [2] * comm.Get_size()),
            reduce_scatter(lambda comm: [3] + [1] + [2] * (comm.Get_size() - 2)),
        ),
        unlike("Allgather against Allreduce", allreduce(), allgather()),
        unlike("Barrier against Allreduce", allreduce(), barrier),
        unlike("Reduce against Bcast", bcast(), reduce()),
        unlike("Gather against Scatter", scatter(), gather()),
        unlike(
            "Scan against Exscan",
            lambda comm: comm.Scan(ones(), np.zeros(4)),
            lambda comm: comm.Exscan(ones(), np.zeros(4)),
        ),
        unlike("bcast of an object against Bcast of a buffer", bcast(), lambda comm: comm.bcast(ones(), 0)),
        unlike(
            "allreduce of an object against Allreduce of a buffer",
            allreduce(),
            lambda comm: comm.allreduce(1.0),
        ),
        unlike("Ibarrier against Barrier", barrier, lambda comm: comm.Ibarrier().Wait()),
        unlike(
            "Iallreduce against Allreduce",
            allreduce(),
            lambda comm: comm.Iallreduce(ones(), np.zeros(4)).Wait(),
        ),
        unlike("Ibcast against Bcast", bcast(), lambda comm: comm.Ibcast(ones(), 0).Wait()),
        unlike("two collectives in another order", both(barrier, allreduce()), both(allreduce(), barrier)),
        unlike("two broadcasts in another order", both(bcast(0), bcast(1)), both(bcast(1), bcast(0))),
        unlike("collective that one rank leaves out", barrier, nothing, (*DEADLOCK, *MISMATCH)),
        unlike("collective that one rank calls alone", nothing, barrier, (*DEADLOCK, *MISMATCH)),
        unlike(
            "collective that one rank calls twice",
            allreduce(),
            both(allreduce(), allreduce()),
            (*DEADLOCK, *MISMATCH),
        ),
        unlike(
            "collectives on two communicators in another order", on_two(0), on_two(1), (*DEADLOCK, *MISMATCH)
        ),
        unlike(
            "collective on a copy of the communicator", dup_and_barrier, on_a_copy, (*DEADLOCK, *MISMATCH)
        ),
        unlike("Dup against Split", lambda comm: comm.Dup(), split_as_one),
        unlike("Split that one rank leaves out", split_as_one, nothing, (*DEADLOCK, *MISMATCH)),
        unlike(
            "Split with an undefined colour, and a call on the result",
            split_as_one,
            split_with_undefined,
            ("raised RuntimeError", "raised Exception", "raised ValueError", "raised AttributeError"),
        ),
        fault("Split with a wrong colour", WRONG, result={"adjoint": of_other_colours}, ranks=0),
        unlike(
            "root that is no rank",
            lambda comm: comm.Bcast(ones(), 99),
            lambda comm: comm.Bcast(ones(), 99),
            RAISED_BY_MPI,
        ),
        on_part("another root on a part of the ranks", bcast(), bcast(1)),
        on_part("another operation on a part of the ranks", allreduce(), allreduce(MPI.MIN)),
        on_part("another collective on a part of the ranks", allreduce(), barrier),
        on_part("collective left out on a part of the ranks", barrier, nothing, (*DEADLOCK, *MISMATCH)),
    ),
)
