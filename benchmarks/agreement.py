"""The cost of agreeing on arguments: `CheckedOperator` beside the operator that it wraps.

    mpiexec -n 2 python benchmarks/agreement.py
    python benchmarks/agreement.py      # on one rank by the processor's clock: what is not waiting, on a busy machine too

An application of a checked operator compares the arguments with its spaces and gathers one number of each rank. Both run side by side in
every round on mpi4py's own communicator; the ratio is taken in each round, and its median counts, as in `guard.py`. "At best" is the
ratio of the fastest rounds: what remains where nothing else runs on the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from plain_mpi import library
from timing import least, print_table, words

import adjointlab as al
from adjointlab.core.agreement import CheckedOperator
from adjointlab.core.operator import LinearOperator
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.quantities import counted

# Bytes of a local tensor: calls in a round.
SIZES = least({8: 200, 1 << 10: 200, 1 << 14: 100, 1 << 17: 30, 1 << 20: 10})
ROUNDS = least(41)


def operators(count: int) -> dict[str, LinearOperator]:
    """Operators whose local tensors have `count` elements each."""
    comm = MPI.COMM_WORLD
    ranks = comm.Get_size()
    line = al.Partition((ranks,))
    copies = al.Layout((count,), line, axes=(None,))
    parts = al.Layout((count * ranks,), line)
    windows = [(max(start - 1, 0), min(stop + 1, count * ranks)) for start, stop in parts.windows[0]]
    halos = al.Layout(parts.shape, line, [windows])
    return {
        "Broadcast": Broadcast(comm, al.Layout((count,), al.Partition((1,))), line),
        "AllSumReduce": AllSumReduce(comm, copies, [0]),
        "HaloExchange": HaloExchange(comm, parts, halos),
    }


def timed(call: Callable[[], object], repeats: int) -> float:
    """Seconds for one call."""
    MPI.COMM_WORLD.Barrier()
    clock = time.perf_counter if MPI.COMM_WORLD.Get_size() > 1 else time.process_time
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def compare(nbytes: int, repeats: int) -> list[list[str]]:
    """The rows of the table for one size."""
    rows = []
    for name, operator in operators(nbytes // 8).items():
        checked = CheckedOperator(operator)
        x = np.ones(operator.domain.tensors[0].layout.local_shape(MPI.COMM_WORLD.Get_rank()))
        bare, agreed = [], []
        for _ in range(ROUNDS):
            bare.append(timed(lambda o=operator, x=x: o.forward(x), repeats))  # type: ignore[misc]
            agreed.append(timed(lambda o=checked, x=x: o.forward(x), repeats))  # type: ignore[misc]
        ratios = sorted(one / other for one, other in zip(agreed, bare, strict=True))
        rows.append(
            [
                name,
                f"{nbytes:,}",
                f"{min(bare) * 1e6:.1f}",
                f"{statistics.median(ratios):.2f}",
                f"{ratios[ROUNDS // 4]:.2f} to {ratios[3 * ROUNDS // 4]:.2f}",
                f"{min(agreed) / min(bare):.2f}",
                f"{(min(agreed) - min(bare)) * 1e6:.1f}",
            ]
        )
    return rows


def main() -> None:
    rows = [row for nbytes, repeats in SIZES.items() for row in compare(nbytes, repeats)]
    if MPI.COMM_WORLD.Get_rank() == 0:
        ranks = MPI.COMM_WORLD.Get_size()
        print_table(
            f"checked beside unchecked, {counted(ranks, 'rank')}, {library()}",
            ["forward of", "bytes", "bare µs", "checked / bare", "middle half", "at best", "more µs"],
            rows,
        )


if __name__ == "__main__":
    words(__doc__)
    main()
