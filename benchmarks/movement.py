"""Times HaloExchange, Repartition, AllGather and ReduceScatter beside hand-written mpi4py, and counts messages, bytes and memory.

    mpiexec -n 2 python benchmarks/movement.py
    mpiexec -n 4 python benchmarks/movement.py

Forward and adjoint together, float32. The floors (`floors.py`) do the same job with preallocated buffers; the primitives write into
preallocated arrays (`out=`, or in place) as they do. All contestants run side by side in every round; the ratio of the medians
is what counts. The third column holds the floor beside bare `Sendrecv` of the same bytes: where it is far above 1, most of the
time goes into copies that any exchange of such regions has to make.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from floors import HaloFloor, all_gather_floor, bare_exchange, reduce_scatter_floor, repartition_floor
from mpi4py import MPI
from plain_mpi import library
from timing import interleaved, least, print_table, words

from adjointlab import Layout, Partition
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
from adjointlab.primitives.halo_geometry import HaloGeometry
from adjointlab.primitives.reduce_scatter import ReduceScatter
from adjointlab.primitives.repartition import Repartition

HALO_SIDES, KERNELS = least((64, 256, 1024)), least((3, 5))
CHANNELS = 8
COMM = MPI.COMM_WORLD
Call = Callable[[], object]


class Counting:
    """A communicator that counts the messages and bytes that this rank sends through it."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm, self.messages, self.bytes = comm, 0, 0

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> MPI.Request:
        self.messages, self.bytes = self.messages + 1, self.bytes + np.asarray(buffer).nbytes
        return self.comm.Isend(buffer, dest, tag)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)


def halo_geometry(side: int, kernel: int, ranks: int) -> HaloGeometry:
    """Rows on two workers, rows and columns on four; no padding at the border of the tensor, as the floor has none."""
    grid = (1, 2, ranks // 2)
    bulk = Layout((CHANNELS, side, side), Partition(grid))
    width = kernel // 2
    widths = [
        [(0 if worker == 0 else width, 0 if worker == parts - 1 else width) for worker in range(parts)]
        for parts in grid
    ]
    widths[0] = [(0, 0)]
    return HaloGeometry.from_widths(bulk, widths)


def halo_calls(side: int, kernel: int) -> tuple[dict[str, Call], int]:
    geometry = halo_geometry(side, kernel, COMM.Get_size())
    bulk, rank = geometry.bulk, COMM.Get_rank()
    floor = HaloFloor(COMM, bulk.partition.shape, bulk.local_shape(rank), kernel // 2)
    padded = geometry.window.local_shape(rank)
    assert floor.u.shape == padded
    out_of_place = HaloExchange(COMM, bulk, geometry.window, dtype="float32")
    in_place = HaloExchangeInPlace(COMM, bulk, geometry.window, dtype="float32")
    x, gx = np.ones(bulk.local_shape(rank), np.float32), np.empty(bulk.local_shape(rank), np.float32)
    y, gy, u = (np.full(padded, 0, np.float32) for _ in range(3))  # zeros, but written

    def apply_out_of_place() -> None:
        out_of_place.forward(x, out=y)
        out_of_place.adjoint(gy, out=gx)

    def apply_in_place() -> None:
        in_place.forward_(u)
        in_place.adjoint_(u)

    calls = {
        "floor, in place": floor.in_place,
        "in place": apply_in_place,
        "floor": floor.out_of_place,
        "one copy": floor.copied_once,
        "out=": apply_out_of_place,
        "bare": bare_exchange(COMM, floor.bytes_sent),
    }
    return calls, floor.bytes_sent


def halo_rows() -> list[list[str]]:
    rows = []
    for side in HALO_SIDES:
        for kernel in KERNELS:
            calls, sent = halo_calls(side, kernel)
            taken = timed(calls, repeats=max(3, (1 << 20) // side**2 * 4))
            rows.append(
                [
                    f"{CHANNELS}x{side}x{side}, kernel {kernel}",
                    f"{sent >> 10} KiB",
                    f"{taken['floor, in place'] * 1e6:.0f}",
                    f"{taken['in place'] / taken['floor, in place']:.2f}",
                    f"{taken['floor'] * 1e6:.0f}",
                    f"{taken['out='] / taken['floor']:.2f}",
                    f"{taken['out='] / taken['one copy']:.2f}",
                    f"{taken['floor, in place'] / taken['bare']:.2f}",
                ]
            )
    return rows


def other_calls() -> list[tuple[str, int, dict[str, Call]]]:
    """Repartition, AllGather and ReduceScatter: name, bytes that a rank sends in one direction, contestants."""
    rank, ranks = COMM.Get_rank(), COMM.Get_size()
    found: list[tuple[str, int, dict[str, Call]]] = []
    for side in least((1024, 4096)):
        rows = Layout((side, side), Partition((ranks, 1)))
        columns = Layout((side, side), Partition((1, ranks)))
        operator: Any = Repartition(COMM, rows, columns, dtype="float32")
        sent = 4 * (side // ranks) ** 2 * (ranks - 1)
        calls = against(operator, repartition_floor(COMM, side), rank)
        found.append(
            (f"Repartition, rows to columns of {side}²", sent, {**calls, "bare": bare_exchange(COMM, sent)})
        )
    for count in least((1 << 16, 1 << 20, 1 << 22)):
        line = Partition((ranks,))
        cut, copies = Layout((count * ranks,), line), Layout((count * ranks,), line, axes=(None,))
        sent = 4 * count * (ranks - 1)
        for name, operator, floor in (
            ("AllGather", AllGather(COMM, cut, 0, dtype="float32"), all_gather_floor(COMM, count)),
            (
                "ReduceScatter",
                ReduceScatter(COMM, copies, 0, 0, dtype="float32"),
                reduce_scatter_floor(COMM, count),
            ),
        ):
            calls = {**against(operator, floor, rank), "bare": bare_exchange(COMM, sent)}
            found.append((f"{name} of {count >> 10} Ki numbers a rank", sent, calls))
    return found


def against(operator: Any, floor: Call, rank: int) -> dict[str, Call]:
    spaces = operator.domain, operator.codomain
    x, y = (np.ones(space.tensors[0].layout.local_shape(rank), np.float32) for space in spaces)
    gx, gy = np.empty_like(x), np.empty_like(y)

    def with_out() -> None:
        operator.forward(x, out=gy)
        operator.adjoint(y, out=gx)

    def fresh() -> None:
        operator.forward(x)
        operator.adjoint(y)

    return {"floor": floor, "out=": with_out, "fresh": fresh}


def other_rows() -> list[list[str]]:
    rows = []
    for name, sent, calls in other_calls():
        taken = timed(calls, repeats=max(3, min(50, (1 << 26) // (4 * sent))))
        rows.append(
            [
                name,
                f"{sent >> 10} KiB",
                f"{taken['floor'] * 1e6:.0f}",
                f"{taken['out='] / taken['floor']:.2f}",
                f"{taken['fresh'] / taken['floor']:.2f}",
                f"{taken['floor'] / taken['bare']:.2f}",
            ]
        )
    return rows


def sent_rows() -> list[list[str]]:
    """Messages and bytes of a forward pass over all ranks, beside the least that any exchange needs."""
    comm: Any = Counting(COMM)
    rank, ranks = COMM.Get_rank(), COMM.Get_size()
    geometry = halo_geometry(256, 5, ranks)
    bulk, padded = geometry.bulk, geometry.window
    rows, columns = (Layout((1024, 1024), Partition(grid)) for grid in ((ranks, 1), (1, ranks)))
    missing = 4 * (np.prod(padded.local_shape(rank)) - np.prod(bulk.local_shape(rank)))
    neighbours = sum(
        side > 1 and 0 <= place + step < side
        for place, side in zip(bulk.partition.index(rank), bulk.partition.shape, strict=True)
        for step in (-1, 1)
    )
    part = 4 * (1024 // ranks) ** 2 * (ranks - 1)
    cases: list[tuple[str, Any, int, Any]] = [
        ("HaloExchange", HaloExchange(comm, bulk, padded, dtype="float32"), neighbours, missing),
        (
            "HaloExchangeInPlace",
            HaloExchangeInPlace(comm, bulk, padded, dtype="float32"),
            neighbours,
            missing,
        ),
        ("Repartition", Repartition(comm, rows, columns, dtype="float32"), ranks - 1, part),
        ("Repartition onto the same layout", Repartition(comm, rows, rows, dtype="float32"), 0, 0),
    ]
    table = []
    for name, operator, messages, nbytes in cases:
        for direction, space in (("forward", operator.domain), ("adjoint", operator.codomain)):
            comm.messages = comm.bytes = 0
            getattr(operator, direction)(np.ones(space.tensors[0].layout.local_shape(rank), np.float32))
            table.append(
                [
                    f"{name}, {direction}",
                    *(
                        str(COMM.allreduce(int(value)))
                        for value in (comm.messages, messages, comm.bytes, nbytes)
                    ),
                ]
            )
    return table


def memory_rows() -> list[list[str]]:
    """Peak memory beyond that before the first call, in units of the input tensor (for the in-place form, of its faces)."""
    geometry = halo_geometry(1024, 5, COMM.Get_size())
    rank = COMM.Get_rank()
    bulk, padded = geometry.bulk, geometry.window
    shapes = bulk.local_shape(rank), padded.local_shape(rank)
    tensor = 4 * int(np.prod(shapes[0]))
    faces = 4 * int(np.prod(shapes[1])) - tensor
    x, y, u = np.ones(shapes[0], np.float32), np.ones(shapes[1], np.float32), np.ones(shapes[1], np.float32)
    table = []
    for name, kind, method, argument in (
        ("in place, forward", HaloExchangeInPlace, "forward_", u),
        ("in place, adjoint", HaloExchangeInPlace, "adjoint_", u),
        ("out of place, forward", HaloExchange, "forward", x),
        ("out of place, adjoint", HaloExchange, "adjoint", y),
    ):
        # A new one, which has no buffers from the other direction yet.
        call = getattr(kind(COMM, bulk, padded, dtype="float32"), method)
        tracemalloc.start()
        call(argument)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        most = COMM.allreduce(peak, MPI.MAX)
        table.append([name, f"{most / tensor:.3f}", f"{most / faces:.2f}", f"{faces >> 10} KiB"])
    return table


def timed(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    for call in calls.values():
        call()  # makes the buffers
    taken = interleaved(calls, repeats, meet=COMM.Barrier)
    return {name: COMM.allreduce(value, MPI.MAX) for name, value in taken.items()}


def main() -> None:
    ranks = COMM.Get_size()
    if ranks not in (2, 4):
        raise SystemExit(f"run with mpiexec -n 2 or -n 4, not {ranks}")
    tables = [
        (
            f"halo exchange, forward + adjoint, {ranks} ranks, {library()}",
            [
                "tensor",
                "sent",
                "floor in place µs",
                "in place / floor",
                "floor µs",
                "out= / floor",
                "out= / one copy",
                "floor / bare",
            ],
            halo_rows(),
        ),
        (
            f"forward + adjoint, {ranks} ranks",
            ["operator", "sent", "floor µs", "out= / floor", "fresh / floor", "floor / bare"],
            other_rows(),
        ),
        (
            f"what {ranks} ranks send in one pass, beside the least possible",
            ["operator", "messages", "least", "bytes", "least"],
            sent_rows(),
        ),
        (
            f"peak memory of a pass of 8x1024x1024 with kernel 5, beyond its argument, {ranks} ranks",
            ["form", "in input tensors", "in faces", "faces"],
            memory_rows(),
        ),
    ]
    for title, columns, rows in tables:
        if COMM.Get_rank() == 0:
            print_table(title, columns, rows)


if __name__ == "__main__":
    words(__doc__)
    main()
