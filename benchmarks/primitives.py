"""Broadcast, SumReduce and AllSumReduce, forward and adjoint, beside the bare mpi4py collectives.

    mpiexec -n 2 python benchmarks/primitives.py
    mpiexec -n 4 python benchmarks/primitives.py

The floor is the pair of collectives on the same communicator with preallocated buffers. Both run side by side in
every round; the ratio of the medians is what counts. "raw" hands the operators the mpi4py communicator, "guarded"
the one of the MPI world.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from timing import interleaved, print_table

from adjointlab import Layout, Partition
from adjointlab.operator import LinearOperator
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.worlds.mpi import MPIWorld
from adjointlab.worlds.world import RankContext

SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24]


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
    """The bare collectives of a forward and an adjoint pass."""
    x, y = np.ones(count), np.empty(count)
    root = comm.Get_rank() == 0

    def bcast_and_reduce() -> None:
        comm.Bcast(x, 0)
        comm.Reduce(x, y if root else None, op=MPI.SUM, root=0)

    def reduce_and_bcast() -> None:
        comm.Reduce(x, y if root else None, op=MPI.SUM, root=0)
        comm.Bcast(x, 0)

    def two_allreduces() -> None:
        comm.Allreduce(x, y)
        comm.Allreduce(x, y)

    return {"Broadcast": bcast_and_reduce, "SumReduce": reduce_and_bcast, "AllSumReduce": two_allreduces}


def passes(operator: LinearOperator, rank: int) -> Callable[[], None]:
    """A forward and an adjoint pass on fixed inputs."""
    x = np.ones(operator.domain.tensors[0].layout.local_shape(rank))
    y = np.ones(operator.codomain.tensors[0].layout.local_shape(rank))

    def both() -> None:
        operator.forward(x)
        operator.adjoint(y)

    return both


def measure(context: RankContext, _: object) -> list[list[str]]:
    comm = MPI.COMM_WORLD
    rank, ranks = comm.Get_rank(), comm.Get_size()
    rows = []
    for size in SIZES:
        count = size // 8
        raw, guarded = operators(comm, ranks, count), operators(context.comm, ranks, count)
        repeats = max(3, min(200, (1 << 22) // size))
        for name, floor in floors(comm, count).items():
            taken = interleaved(
                {"floor": floor, "raw": passes(raw[name], rank), "guarded": passes(guarded[name], rank)},
                repeats,
                meet=comm.Barrier,
            )
            worst = {key: comm.allreduce(value, MPI.MAX) for key, value in taken.items()}
            rows.append(
                [
                    name,
                    f"{size >> 10} KiB",
                    f"{worst['floor'] * 1e6:.0f}",
                    f"{worst['raw'] / worst['floor']:.2f}",
                    f"{worst['guarded'] / worst['floor']:.2f}",
                ]
            )
    return rows


def main() -> None:
    world = MPIWorld()
    run = world.run(measure)
    if world.is_leader:
        if not run.completed:
            raise SystemExit(f"the measurement failed: {run.outcomes}")
        print_table(
            f"forward + adjoint, {world.ranks} ranks, {MPI.Get_library_version().splitlines()[0]}",
            ["primitive", "bytes", "floor µs", "raw / floor", "guarded / floor"],
            run.values[0],
        )
    world.close()


if __name__ == "__main__":
    main()
