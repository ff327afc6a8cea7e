"""The cost of a simulated rank, as the number of ranks grows from 8 to 1,024.

    python benchmarks/simulated_ranks.py [all] [cpu]

Each run makes an operator on every rank and takes it forward and back once; its time is divided by the ranks, so
growth that is linear in them stays at 1. All numbers of ranks take turns in one process, and each round runs as many
ranks of one number as of another. `all` adds what lies below and above: a switch between ranks, a barrier, the layouts
made anew by each rank, and the lab's check of the adjoint. `cpu` counts the processor's time in place of the wall's:
one rank runs at a time, so they are about the same, and other work on the machine disturbs it less.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import adjoint_case
from timing import least, print_table, seconds_per_rank, words

from adjointlab import Layout, Partition
from adjointlab.core.operator import LinearOperator
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import Body, RankContext

RANKS = least((16, 8, 64, 256, 1024))
"""The first is that which the others are compared with."""
SIDE = 4
"""Elements that a worker holds in each dimension."""

Make = Callable[[Any], LinearOperator]


def from_one(ranks: int) -> Make:
    """Broadcast from one worker to all."""
    layout, partition = Layout((SIDE,), Partition((1,))), Partition((ranks,))
    return lambda comm: Broadcast(comm, layout, partition)


def to_others(ranks: int) -> Make:
    """Broadcast from rank 0 to all but itself."""
    layout, partition = Layout((SIDE,), Partition((1,))), Partition((ranks - 1,), range(1, ranks))
    return lambda comm: Broadcast(comm, layout, partition)


def along_rows(ranks: int) -> Make:
    """Broadcast from the first column of a square grid along its rows."""
    side = math.isqrt(ranks)
    layout, partition = Layout((side, SIDE), Partition((side, 1))), Partition((side, side))
    return lambda comm: Broadcast(comm, layout, partition)


def from_one_made_anew(ranks: int) -> Make:
    """The same, but each rank makes its own layouts."""
    return lambda comm: from_one(comm.Get_size())(comm)


def halos(*grid: int) -> Make:
    """An exchange of halos of width 1, corners included, on a grid of workers."""
    bulk = Layout([SIDE * side for side in grid], Partition(grid))
    wider = [
        [(max(0, start - 1), min(length, stop + 1)) for start, stop in windows]
        for windows, length in zip(bulk.windows, bulk.shape, strict=True)
    ]
    window = Layout(bulk.shape, bulk.partition, wider)
    return lambda comm: HaloExchange(comm, bulk, window)


def halos_in_a_line(ranks: int) -> Make:
    return halos(ranks)


def halos_in_a_square(ranks: int) -> Make:
    return halos(math.isqrt(ranks), math.isqrt(ranks))


def a_convolution(comm: Any) -> tuple[Any, tuple[int, ...]]:
    """A layer over a line of workers, and the shape of a worker's input."""
    from adjointlab.layers.convolution import Conv1d

    ranks = comm.Get_size()
    layer = Conv1d(comm, Partition((1, 1, 1, ranks)), (1, 2, SIDE * ranks), 2, 2, 3, padding=1)
    return layer, (1, 2, SIDE)


def a_linear_layer(comm: Any) -> tuple[Any, tuple[int, ...]]:
    """A layer whose batch is cut."""
    from adjointlab.layers.linear import Linear

    ranks = comm.Get_size()
    return Linear(comm, Partition((ranks, 1, 1)), (SIDE * ranks, 4), 4, 4), (SIDE, 4)


def layer_passes(context: RankContext, make: Callable[[Any], tuple[Any, tuple[int, ...]]]) -> None:
    """Make the layer, and run its forward and backward pass."""
    import torch

    layer, shape = make(context.comm)
    layer(torch.zeros(shape, requires_grad=True)).sum().backward()


def both_passes(context: RankContext, make: Make) -> None:
    """Make the operator, and apply it and its adjoint."""
    operator = make(context.comm)
    (x,), (y,) = operator.domain.tensors, operator.codomain.tensors
    operator.forward(np.zeros(x.layout.local_shape(context.rank)))
    operator.adjoint(np.zeros(y.layout.local_shape(context.rank)))


def yield_processor(context: RankContext, _payload: Any) -> None:
    """Twenty fruitless polls, each of which lets the other ranks run."""
    for _ in range(20):
        context.comm.Iprobe()


def barrier(context: RankContext, _payload: Any) -> None:
    """One barrier, and the run around it."""
    context.comm.Barrier()


def runs(body: Body, payloads: Callable[[int], Any]) -> dict[int, Callable[[], object]]:
    """For each number of ranks, a run of `body`."""

    def run(world: SimulatedWorld, payload: Any) -> None:
        outcome = world.run(body, payload)
        assert outcome.completed, outcome.findings

    return {ranks: partial(run, SimulatedWorld(ranks), payloads(ranks)) for ranks in RANKS}


def measured(name: str, runs: dict[int, Callable[[], object]], clock: Callable[[], float]) -> list[str]:
    """A row of the table."""
    first, *others = seconds_per_rank(runs, rounds=3, clock=clock).values()
    return [name, f"{first * 1e6:.0f}", *(f"{other / first:.2f}" for other in others)]


def main() -> None:
    wanted = words(__doc__, ("all", "cpu"))
    clock = time.process_time if "cpu" in wanted else time.perf_counter
    operators = {
        "Broadcast, 1 to P": from_one,
        "Broadcast, 1 to P - 1 others": to_others,
        "Broadcast, √P to √P × √P": along_rows,
        "HaloExchange, P": halos_in_a_line,
        "HaloExchange, √P × √P": halos_in_a_square,
    }
    more: dict[str, dict[int, Callable[[], object]]] = {}
    if "all" in wanted:
        operators["Broadcast, 1 to P, layouts made by each rank"] = from_one_made_anew
        nothing = dict.fromkeys(RANKS).get
        more = {
            "20 polls": runs(yield_processor, nothing),
            "a barrier": runs(barrier, nothing),
            "an adjoint case of Broadcast, 1 to P": {ranks: adjoint_case(ranks) for ranks in RANKS},
        }
        for name, layer in (("Conv1d, P", a_convolution), ("Linear, batch over P", a_linear_layer)):
            more[name] = runs(layer_passes, dict.fromkeys(RANKS, layer).get)
    rows = [measured(name, runs(both_passes, make), clock) for name, make in operators.items()]
    rows += [measured(name, each, clock) for name, each in more.items()]
    print_table(
        "time per simulated rank",
        ["", *(f"{ranks}{' ranks, µs' if ranks == RANKS[0] else ' / 16'}" for ranks in RANKS)],
        rows,
    )


if __name__ == "__main__":
    main()
