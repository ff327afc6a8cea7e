"""Communicators that are leaked, freed too early, used after that, or not the one that the operator was given."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjointlab import MPI
from adjointlab.worlds.launch import is_launched
from tests.faults.declaring import COHERENT, DEADLOCK, OPEN, WRONG, Shift, declared, fault

REFUSED = ("raised RuntimeError", "raised Exception", "raised ValueError", "raised AttributeError")

KEPT: dict[int, Any] = {}
"""Communicators that outlive the case in which they were made."""


class OnItsOwn(Shift):
    """Shifts on a communicator of its own, which `use` may do something to."""

    def __init__(self, comm: Any, layout: Any, dtype: str = "float64") -> None:
        super().__init__(comm, layout, dtype)
        self.given, self.comm = comm, comm.Dup()


class UsesAfterFree(Shift):
    def forward(self, x: Any) -> Any:
        own = self.comm.Dup()
        own.Free()
        own.Barrier()
        return super().forward(x)


class FreesOnOneRank(Shift):
    def forward(self, x: Any) -> Any:
        own = self.comm.Dup()
        if not self.is_faulty:
            own.Free()
        return super().forward(x)


class KeepsTheFirst(Shift):
    """Uses the communicator of the first case in all later ones of as many ranks."""

    def __init__(self, comm: Any, layout: Any, dtype: str = "float64") -> None:
        super().__init__(comm, layout, dtype)
        key = self.size if is_launched() else 100 * self.size + self.rank
        self.kept = KEPT.setdefault(key, comm)

    def forward(self, x: Any) -> Any:
        self.kept.Barrier()
        return super().forward(x)


class Reordered(Shift):
    """Shifts backwards on a communicator whose ranks are in the order of another key on one of them."""

    def adjoint(self, y: Any) -> Any:
        own = self.comm.Split(0, -1 if self.is_faulty else self.rank)
        result = np.empty(y.shape)
        rank, size = own.Get_rank(), own.Get_size()
        own.Sendrecv(np.array(y), (rank - 1) % size, 0, result, (rank + 1) % size, 0)
        own.Free()
        return result


class WithCommSelf(Shift):
    """Its adjoint is on its own rank alone."""

    def adjoint(self, y: Any) -> Any:
        result = np.empty(y.shape)
        self_comm().Sendrecv(np.array(y), 0, 0, result, 0, 0)
        return result


def raw_world() -> Any:
    from mpi4py import MPI as mpi

    return mpi.COMM_WORLD


def self_comm() -> Any:
    from mpi4py import MPI as mpi

    return mpi.COMM_SELF


def aborts_itself(op: Any) -> None:
    from mpi4py.MPI import COMM_SELF

    COMM_SELF.Abort(0)


def waits_on_world(op: Any) -> None:
    raw_world().recv(source=0, tag=77)


def sums_over_world(op: Any, y: Any, right: Any) -> Any:
    return raw_world().allreduce(right)


def makes_with_world(op: Any) -> None:
    raw_world().Dup()


def freed_twice(op: Any) -> None:
    own = op.comm.Dup()
    own.Free()
    own.Free()


def freed_while_pending(op: Any) -> None:
    own = op.comm.Dup()
    own.Irecv(np.empty(1), op.left, 3)
    own.Free()


def split_and_kept(op: Any) -> None:
    op.comm.Split(op.rank % 2, op.rank)


def cart_and_kept(op: Any) -> None:
    op.comm.Create_cart([op.size]).Sub([True])


def group_and_kept(op: Any) -> None:
    op.comm.Create(op.comm.Get_group())


def without_itself(op: Any) -> None:
    group = op.comm.Get_group().Excl([1])
    op.comm.Create(group).Barrier()


FAULTS = declared(
    globals(),
    (
        fault("Split for each call", OPEN, everywhere={"forward": split_and_kept}, check="purity"),
        fault(
            "Create_cart and Sub for each call", OPEN, everywhere={"forward": cart_and_kept}, check="purity"
        ),
        fault("Create for each call", OPEN, everywhere={"forward": group_and_kept}, check="purity"),
        fault("freed on all ranks but one", OPEN, base=FreesOnOneRank, check="purity"),
        fault("used after it was freed", REFUSED, base=UsesAfterFree, ranks=1),
        fault("freed twice", REFUSED, everywhere={"forward": freed_twice}),
        fault(
            "freed while a request is pending",
            ("request left open", *DEADLOCK),
            everywhere={"forward": freed_while_pending},
        ),
        fault(
            "frees the communicator that it is given",
            REFUSED,
            everywhere={"forward": lambda op: op.comm.Free()},
        ),
        fault(
            "frees COMM_WORLD", REFUSED, everywhere={"forward": lambda op: raw_world().Free()}, is_fatal=True
        ),
        # Processes share no state, and have one communicator in all cases: there it is no fault.
        fault("kept for later cases", REFUSED, COHERENT, base=KeepsTheFirst, ranks=0),
        fault("ranks in another order", WRONG, base=Reordered, ranks=0),
        fault("COMM_SELF for the communicator", WRONG, base=WithCommSelf),
        fault("call on COMM_NULL", REFUSED, first={"forward": lambda op: MPI.COMM_NULL.Barrier()}),
        fault("Create without the rank that calls it", REFUSED, everywhere={"forward": without_itself}),
        fault("waits on COMM_WORLD", DEADLOCK, first={"forward": waits_on_world}),
        fault("sums over COMM_WORLD", WRONG, result={"adjoint": sums_over_world}),
        fault(
            "communicator of COMM_WORLD for each call",
            OPEN,
            everywhere={"forward": makes_with_world},
            check="purity",
        ),
        fault(
            "MPI_Abort of COMM_SELF with 0",
            ("a rank called MPI_Abort(0)",),
            first={"forward": aborts_itself},
            is_fatal=True,
        ),
        fault("one communicator for each operator", COHERENT, base=OnItsOwn, ranks=0),
    ),
)
