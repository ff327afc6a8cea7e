"""The cost of the guard on a good run: calls on the guarded communicator beside the same calls of mpi4py.

    mpiexec -n 2 python benchmarks/guard.py [BYTES ...]

Both run side by side in every round; the ratio is taken in each round, and its median over all rounds is what counts. (The
smallest and largest of the middle half tell how steady it was.) "bare I + Wait" is mpi4py's own non-blocking call with its
Wait: what a revocable wait stands on, so what is between that and the blocking call no guard in Python can save. The script
ends with an error where the guard counts a bare call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from plain_mpi import comm_world, library, nothing_counted
from timing import least, print_table, words

from adjointlab.worlds.mpi.world import MPIWorld
from adjointlab.worlds.world import RankContext

SIZES = least({8: 300, 1 << 10: 300, 1 << 14: 100, 1 << 17: 30, 1 << 20: 10})  # bytes: calls in a round
ROUNDS = least(101)

Calls = dict[str, Callable[[], object]]


def of(comm: Any, nbytes: int) -> Calls:
    """The calls that are compared, on one communicator."""
    count, rank, size = nbytes // 8, comm.Get_rank(), comm.Get_size()
    x, y = np.ones(count), np.empty(count)
    after, before = (rank + 1) % size, (rank - 1) % size
    return {
        "Allreduce": lambda: comm.Allreduce(x, y),
        "Bcast": lambda: comm.Bcast(x),
        "Sendrecv": lambda: comm.Sendrecv(x, after, 0, y, before, 0),
        "Irecv, Send, Wait": lambda: _exchange(comm, x, y, after, before),
    }


def _exchange(comm: Any, x: object, y: object, after: int, before: int) -> None:
    request = comm.Irecv(y, before)
    comm.Send(x, after)
    request.Wait()


def in_halves(comm: Any, nbytes: int) -> Calls:
    """mpi4py's non-blocking forms, each with its wait."""
    x, y = np.ones(nbytes // 8), np.empty(nbytes // 8)
    return {"Allreduce": lambda: comm.Iallreduce(x, y).Wait(), "Bcast": lambda: comm.Ibcast(x).Wait()}


def timed(comm: Any, call: Callable[[], object], repeats: int) -> float:
    """Seconds for one call, which the ranks start together."""
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def compare(context: RankContext, _: Any) -> list[list[str]]:
    """The rows of the table."""
    comm, rows = comm_world(), []
    for nbytes, repeats in SIZES.items():
        bare, guarded, halves = of(comm, nbytes), of(context.comm, nbytes), in_halves(comm, nbytes)
        for name, call in bare.items():
            floor, guard, wait = [], [], []
            for _round in range(ROUNDS):
                with nothing_counted(context.comm):
                    floor.append(timed(comm, call, repeats))
                guard.append(timed(comm, guarded[name], repeats))
                with nothing_counted(context.comm):
                    wait.append(timed(comm, halves[name], repeats) if name in halves else float("nan"))
            ratios = sorted(one / other for one, other in zip(guard, floor, strict=True))
            waits = statistics.median(one / other for one, other in zip(wait, floor, strict=True))
            rows.append(
                [
                    name,
                    f"{nbytes:,}",
                    f"{statistics.median(floor) * 1e6:.2f}",
                    f"{min(floor) * 1e6:.2f}",
                    f"{statistics.median(ratios):.2f}",
                    f"{ratios[ROUNDS // 4]:.2f} to {ratios[3 * ROUNDS // 4]:.2f}",
                    "" if name not in halves else f"{waits:.2f}",
                ]
            )
    return rows


def main() -> None:
    wanted = words(__doc__, [str(nbytes) for nbytes in SIZES])
    for name in [nbytes for nbytes in SIZES if wanted and str(nbytes) not in wanted]:
        del SIZES[name]
    world = MPIWorld(patience=60.0)
    run = world.run(compare)
    if not run.completed:
        raise SystemExit(f"the measurement failed: {run.outcomes}")
    if world.is_leader:
        print_table(
            f"guarded beside unguarded, {world.ranks} ranks, {library()}",
            ["call", "bytes", "bare µs", "at best", "guarded / bare", "middle half", "bare I + Wait / bare"],
            run.values[0],
        )
    world.close()


if __name__ == "__main__":
    main()
