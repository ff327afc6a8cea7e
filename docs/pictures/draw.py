"""Draws the pictures of docs/pictures.md and docs/primitives.md: ``python docs/pictures/draw.py`` writes them beside itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import adjointlab as al
from adjointlab.core.operator import LinearOperator
from adjointlab.engine.discovery import find
from adjointlab.engine.search_result import Budget
from adjointlab.pictures.model import Drawing, Event, Lanes, Waiting, Waits
from adjointlab.pictures.svg import as_svg
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.discard import Discard
from adjointlab.primitives.gather import Gather
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.redistribute import Redistribute
from adjointlab.primitives.reduce_scatter import ReduceScatter
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.scatter import Scatter
from adjointlab.primitives.send_receive import SendReceive
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.session import run_check
from adjointlab.worlds.world import RankContext

HERE = Path(__file__).parent

THREE = al.Partition((3,))
CUT = al.Layout((6,), THREE)
HALOS = al.Layout((6,), THREE, [[(-1, 3), (1, 5), (3, 7)]])
COPIES = al.Layout((2,), THREE, axes=[None])
ONE = al.Layout((2,), al.Partition((1,)))

LAYOUTS = {
    "cut": al.Layout.cut((10,), THREE, [(0, 5, 5, 10)]),
    "halos": al.Layout((10,), THREE, [[(-1, 5), (3, 8), (6, 11)]]),
    "grid": al.Layout((4, 6), al.Partition((2, 3), (4, 5, 6, 0, 1, 2))),
    "overlapping": al.Layout((4, 6), al.Partition((2, 2)), [[(0, 3), (1, 4)], [(0, 4), (2, 6)]]),
    "long": al.Layout((1_000_000,), al.Partition((4,)), [[(0, 3), (3, 500_000), (500_000, 999_999), (999_999, 1_000_000)]]),
}  # fmt: skip

PRIMITIVES: dict[str, Callable[[Any], LinearOperator]] = {
    "SendReceive": lambda comm: SendReceive(comm, ONE, 2),
    "Broadcast": lambda comm: Broadcast(comm, ONE, THREE),
    "SumReduce": lambda comm: SumReduce(comm, COPIES, al.Partition((1,))),
    "AllSumReduce": lambda comm: AllSumReduce(comm, COPIES, [0]),
    "Scatter": lambda comm: Scatter(comm, CUT),
    "Gather": lambda comm: Gather(comm, CUT),
    "AllGather": lambda comm: AllGather(comm, CUT, 0),
    "ReduceScatter": lambda comm: ReduceScatter(comm, al.Layout((6,), THREE, axes=[None]), 0, 0),
    "Discard": lambda comm: Discard(comm, al.Layout((6,), THREE, axes=[None]), 0, 0),
    "Repartition": lambda comm: Repartition(comm, CUT, al.Layout.cut((6,), THREE, [(0, 1, 5, 6)])),
    "HaloExchange": lambda comm: HaloExchange(comm, CUT, HALOS),
    "Redistribute": lambda comm: Redistribute(comm, THREE, [3, 3], [[0], []], [[], [0]]),
}

HANG = Waits(
    tuple(
        Waiting(rank, f"Recv(source={left}, tag=0)", "ring.py:12", "comm.Recv(result, source=left)", (left,))
        for rank, left in ((0, 3), (1, 0), (2, 1), (3, 2))
    ),
    cycle=(0, 3, 2, 1),
)

SCHEDULES = tuple(
    Lanes(
        f"messages under {name}",
        (0, 1, 2),
        tuple(
            Event(0, f"Recv(source=ANY) at sums.py:8 receives from rank {sender}", sender, number == 0)
            for number, sender in enumerate(order)
        ),
    )
    for name, order in (("one schedule", (1, 2)), ("another", (2, 1)))
)


def drawings() -> Iterator[tuple[str, Drawing]]:
    """Every picture with the name of its file."""
    for name, layout in LAYOUTS.items():
        yield f"layout-{name}", layout.drawing()
    world = al.SimulatedWorld(3)
    try:
        for name, make in PRIMITIVES.items():
            yield f"primitive-{name}", _drawn(world, make)
        yield "failure-adjoint", _failure(world)
    finally:
        world.close()
    yield "failure-deadlock", Drawing("", (HANG,))
    yield "failure-schedules", Drawing("", SCHEDULES)


def _drawn(world: al.SimulatedWorld, make: Callable[[Any], LinearOperator]) -> Drawing:
    def body(context: RankContext, payload: None) -> Drawing | None:
        operator = make(context.comm)
        return operator.drawing() if context.rank == 0 else None

    run = world.run(body, None, 3)
    assert run.completed, run
    drawing: Drawing = run.values[0]
    return drawing


def _failure(world: al.SimulatedWorld) -> Drawing:
    with TemporaryDirectory() as folder:
        (found,) = find(["adjointlab.demonstration:wrong"])
        return run_check(world, found, "adjoint", Budget(30, 3, seed=1), Path(folder)).drawing()


if __name__ == "__main__":
    for file_name, picture in drawings():
        (HERE / f"{file_name}.svg").write_text(as_svg(picture) + "\n", encoding="utf-8")
