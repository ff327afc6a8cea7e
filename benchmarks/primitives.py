"""Broadcast, SumReduce and AllSumReduce, forward and adjoint, beside the bare mpi4py collectives.

    mpiexec -n 2 python benchmarks/primitives.py
    mpiexec -n 4 python benchmarks/primitives.py

The floor is the pair of collectives on the same communicator with preallocated buffers. Both run side by side in
every round; the ratio of the medians is what counts. "out=" writes into preallocated arrays as the floor does, "fresh"
returns new ones: it pays for the memory too, which glibc gives back to the system and faults in again on every call
unless told otherwise (GLIBC_TUNABLES=glibc.malloc.trim_threshold=268435456:glibc.malloc.mmap_threshold=67108864).
"guarded" is on the communicator of the MPI world, the others on mpi4py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from timing import interleaved, least, print_table, words

from adjointlab import Layout, Partition
from adjointlab.core.operator import LinearOperator
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.worlds.mpi.world import MPIWorld
from adjointlab.worlds.world import RankContext

SIZES = least([1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24])


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
    """The bare collectives of a forward and an adjoint pass, each on buffers of its own as the operators' are."""
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
                {
                    "floor": floor,
                    "fresh": passes(raw[name], rank, reuse=False),
                    "out": passes(raw[name], rank, reuse=True),
                    "guarded": passes(guarded[name], rank, reuse=True),
                },
                repeats,
                meet=comm.Barrier,
            )
            worst = {key: comm.allreduce(value, MPI.MAX) for key, value in taken.items()}
            rows.append(
                [
                    name,
                    f"{size >> 10} KiB",
                    f"{worst['floor'] * 1e6:.0f}",
                    f"{worst['out'] / worst['floor']:.2f}",
                    f"{worst['fresh'] / worst['floor']:.2f}",
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
            ["primitive", "bytes", "floor µs", "out= / floor", "fresh / floor", "guarded, out= / floor"],
            run.values[0],
        )
    world.close()


if __name__ == "__main__":
    words(__doc__)
    main()
