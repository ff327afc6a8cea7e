"""Broadcast, SumReduce and AllSumReduce, forward and adjoint, beside the bare mpi4py collectives.

    mpiexec -n 2 python benchmarks/primitives.py
    mpiexec -n 4 python benchmarks/primitives.py

The floor is the pair of collectives of mpi4py's COMM_WORLD with preallocated buffers. All run side by side in
every round; the ratio of the medians is what counts. "out=" writes into preallocated arrays as the floor does, "fresh"
returns new ones: it pays for the memory too, which glibc gives back to the system and faults in again on every call
unless told otherwise (GLIBC_TUNABLES=glibc.malloc.trim_threshold=268435456:glibc.malloc.mmap_threshold=67108864).
Both are on COMM_WORLD too, before the first run of a world, which would replace the methods of mpi4py's communicators.
"guarded" is on the communicator of the MPI world, in a run, where the floor is timed once more beside it. The script ends
with an error where COMM_WORLD is not mpi4py's own, or the guard counts the calls of a floor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from plain_mpi import comm_world, library, nothing_counted, refuse_replaced_methods
from timing import interleaved, least, print_table, words

from adjointlab import Layout, Partition
from adjointlab.core.operator import LinearOperator
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.worlds.mpi.world import MPIWorld
from adjointlab.worlds.world import RankContext

SIZES = least([1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24])
ROWS = [(size, name) for size in SIZES for name in ("Broadcast", "SumReduce", "AllSumReduce")]


def operators(comm: object, ranks: int, count: int) -> dict[str, LinearOperator]:
    """The three primitives on a tensor of `count` float64 elements over all ranks."""
    one, all_ranks = Partition((1,)), Partition((ranks,))
    whole = Layout((count,), one)
    copies = Layout((count,), all_ranks, axes=(None,))
    return {
        "Broadcast": Broadcast(comm, whole, all_ranks),
        "SumReduce": SumReduce(comm, copies, one),
        "AllSumReduce": AllSumReduce(comm, copies, (0,)),
    }


def floors(comm: MPI.Comm, count: int) -> dict[str, Callable[[], None]]:
    """The bare collectives of a forward and an adjoint pass, each with separate buffers, like the operators."""
    (x, y), (g, h) = (np.ones(count), np.empty(count)), (np.ones(count), np.empty(count))
    root = comm.Get_rank() == 0

    def bcast_and_reduce() -> None:
        comm.Bcast(x if root else y, 0)
        comm.Reduce(g, h if root else None, op=MPI.SUM, root=0)

    def reduce_and_bcast() -> None:
        comm.Reduce(x, y if root else None, op=MPI.SUM, root=0)
        comm.Bcast(g if root else h, 0)

    def two_allreduces() -> None:
        comm.Allreduce(x, y)
        comm.Allreduce(g, h)

    return {"Broadcast": bcast_and_reduce, "SumReduce": reduce_and_bcast, "AllSumReduce": two_allreduces}


def passes(operator: Any, rank: int, reuse: bool) -> Callable[[], None]:
    """A forward and an adjoint pass on fixed inputs, into fresh arrays or into the same ones."""
    x = np.ones(operator.domain.tensors[0].layout.local_shape(rank))
    y = np.ones(operator.codomain.tensors[0].layout.local_shape(rank))
    into_y, into_x = ({"out": np.empty_like(y)}, {"out": np.empty_like(x)}) if reuse else ({}, {})

    def both() -> None:
        operator.forward(x, **into_y)
        operator.adjoint(y, **into_x)

    return both


def unguarded() -> list[dict[str, float]]:
    """Seconds of the floor and of the operators on COMM_WORLD, for each row."""
    refuse_replaced_methods()
    comm = MPI.COMM_WORLD
    rows = []
    for size, name in ROWS:
        operator = operators(comm, comm.Get_size(), size // 8)[name]
        calls = {
            "floor": floors(comm, size // 8)[name],
            "fresh": passes(operator, comm.Get_rank(), reuse=False),
            "out": passes(operator, comm.Get_rank(), reuse=True),
        }
        rows.append(slowest(comm, calls, size))
    refuse_replaced_methods()
    return rows


def guarded(context: RankContext, _: object) -> list[dict[str, float]]:
    """Seconds of the floor and of the operators on the communicator of a run, for each row."""
    comm, rows = comm_world(), []
    for size, name in ROWS:
        operator, floor = (
            operators(context.comm, context.size, size // 8)[name],
            floors(comm, size // 8)[name],
        )
        with nothing_counted(context.comm):
            floor()
        calls = {"floor": floor, "guarded": passes(operator, context.rank, reuse=True)}
        rows.append(slowest(comm, calls, size))
    return rows


def slowest(comm: MPI.Comm, calls: dict[str, Callable[[], None]], size: int) -> dict[str, float]:
    """Seconds of the slowest rank for a call of each contestant."""
    taken = interleaved(calls, max(3, min(200, (1 << 22) // size)), meet=comm.Barrier)
    return {name: comm.allreduce(seconds, MPI.MAX) for name, seconds in taken.items()}


def main() -> None:
    on_comm_world = unguarded()
    world = MPIWorld()
    run = world.run(guarded)
    if not run.completed:
        raise SystemExit(f"the measurement failed: {run.outcomes}")
    if world.is_leader:
        print_table(
            f"forward + adjoint, {world.ranks} ranks, {library()}",
            ["primitive", "bytes", "floor µs", "out= / floor", "fresh / floor", "guarded, out= / floor"],
            [
                [
                    name,
                    f"{size >> 10} KiB",
                    f"{bare['floor'] * 1e6:.0f}",
                    f"{bare['out'] / bare['floor']:.2f}",
                    f"{bare['fresh'] / bare['floor']:.2f}",
                    f"{beside['guarded'] / beside['floor']:.2f}",
                ]
                for (size, name), bare, beside in zip(ROWS, on_comm_world, run.values[0], strict=True)
            ],
        )
    world.close()


if __name__ == "__main__":
    words(__doc__)
    main()
