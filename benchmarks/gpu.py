"""Faces of halos packed on a device, exchanges of device memory, and each primitive on a device beside the host.

    python benchmarks/gpu.py                    faces and primitives of memory, on one device
    mpiexec -n 2 python benchmarks/gpu.py       exchanges and primitives that communicate; also -n 4, sharing the device
    python benchmarks/gpu.py --host             NumPy in place of the device: shows that the script runs, figures mean nothing

Without CuPy and a device it says what is missing. Faces: the share of the device's own copy bandwidth, which is measured in the
same rounds by a copy of as many bytes; a copy moves two bytes for each byte of a face, unpack-add three. Times are the device's, so
launches are not in them. Exchanges: forward and adjoint with pinned staging, beside a hand-written exchange through pinned buffers
(`pinned_floors.py`), whose results are compared first. The targets stand in docs/gpu.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from devices import CudaDevice, Device, Host, lacking, on_device
from timing import interleaved, is_smoke, least, print_table

from adjointlab import Layout, Partition
from adjointlab.core import arrays
from adjointlab.devices.transport import OVERRIDE
from adjointlab.worlds.launch import is_launched

Call = Callable[[], object]
MIB = 1 << 20
FACES = least((1 * MIB, 8 * MIB, 32 * MIB, 128 * MIB))
WIDTH = 2
SIDES = least((1024, 4096, 8192))
BYTES = 64 * 1024 if is_smoke() else 16 * MIB


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", action="store_true", help="NumPy in place of the device")
    options = parser.parse_args()
    comm: Any = Alone()
    if is_launched():
        # Before the operators choose: the comparison is one of staging.
        os.environ.setdefault(OVERRIDE, "staging")
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    rank, ranks = comm.Get_rank(), comm.Get_size()
    transport = os.environ.get(OVERRIDE)
    show = print_table if rank == 0 else lambda title, columns, rows: None
    if not options.host and (missing := lacking()):
        if rank == 0:
            print(f"left out: {missing}")
        return
    device: Device = Host() if options.host else CudaDevice(rank)
    if ranks == 1:
        show(f"faces of {WIDTH} cells, float32, {device.title}", FACE_COLUMNS, face_rows(device))
    else:
        title = f"forward + adjoint of device memory by {transport}, {ranks} ranks, {device.title}"
        show(title, ["exchange", "sent", "by hand µs", "adjointlab / by hand"], exchange_rows(comm, device))
    memories = memories_of(device)
    title = f"forward + adjoint, {BYTES >> 10} KiB a rank, {ranks} ranks, {device.title}"
    columns = ["primitive", "numpy µs", *(f"{memory} / numpy" for memory in memories[1:])]
    show(title, columns, primitive_rows(comm, device, memories))


class Alone:
    """The communicator of a process that is alone."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Barrier(self) -> None:
        pass

    def allreduce(self, value: float, operation: object = None) -> float:
        return value


def timed(comm: Any, calls: Mapping[str, Call], repeats: int = 10) -> dict[str, float]:
    """Seconds of the slowest rank for each, by the clock of the host."""
    for call in calls.values():
        call()  # makes the buffers, compiles the kernels
    taken = interleaved(calls, repeats, meet=comm.Barrier)
    return {name: max(each) for name, each in gathered(comm, taken).items()}


def gathered(comm: Any, taken: dict[str, float]) -> dict[str, list[float]]:
    everybody = [taken] if isinstance(comm, Alone) else comm.allgather(taken)
    return {name: [each[name] for each in everybody] for name in taken}


# Faces

FACE_COLUMNS = (
    "face", "size", "copy GB/s", "pack / copy", "by slices", "unpack-add / copy", "by slices",
)  # fmt: skip


def face_rows(device: Device) -> list[list[str]]:
    """Shares of the device's copy bandwidth: of the functions that operators pack and add with, and of slices of the library."""
    return [face_row(device, *each) for size in FACES for each in faces(size)]


def face_row(device: Device, name: str, shape: tuple[int, ...], face: tuple[slice, ...]) -> list[str]:
    xp = device.xp
    cells = xp.ones(shape, np.float32)[face]
    packed, other = xp.empty(cells.shape, np.float32), xp.zeros(cells.shape, np.float32)
    contestants: dict[str, Call] = {
        "copy": lambda: xp.copyto(packed, other),
        "pack": lambda: arrays.copy_into(packed, cells),
        "pack by slices": lambda: xp.copyto(packed, cells),
        "add": lambda: arrays.add_into(cells, other),
        "add by slices": lambda: xp.add(cells, other, out=cells),
    }
    taken = device.seconds(contestants, least(20), least(15))
    moved = {key: (3 if key.startswith("add") else 2) * packed.nbytes for key in taken}
    rate = {key: moved[key] / taken[key] for key in taken}
    shares = [f"{rate[key] / rate['copy']:.2f}" for key in list(contestants)[1:]]
    return [name, f"{packed.nbytes / MIB:.0f} MiB", f"{rate['copy'] / 1e9:.0f}", *shares]


def faces(size: int) -> list[tuple[str, tuple[int, ...], tuple[slice, ...]]]:
    """Tensors with a face of `size` bytes along the outer and along the innermost dimension, and where it is."""
    cells = size // 4 // WIDTH
    every = slice(None)
    return [
        ("outer dimension", (4 * WIDTH, cells // 1024, 1024), (slice(WIDTH),)),
        ("innermost dimension", (cells // 1024, 1024, 64), (every, every, slice(WIDTH))),
    ]


# Exchanges


def exchange_rows(comm: Any, device: Device) -> list[list[str]]:
    rows = []
    for side in SIDES:
        rows += [halo_row(comm, device, side), repartition_row(comm, device, side)]
    return rows


def halo_row(comm: Any, device: Device, side: int) -> list[str]:
    from pinned_floors import PinnedHalo

    from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
    from adjointlab.primitives.halo_geometry import HaloGeometry

    rank, ranks, last = comm.Get_rank(), comm.Get_size(), comm.Get_size() - 1
    name = f"HaloExchange of {side}², {WIDTH} rows"
    bulk = Layout((side, side), Partition((ranks, 1)))
    rows = [(WIDTH if worker else 0, WIDTH if worker < last else 0) for worker in range(ranks)]
    window = HaloGeometry.from_widths(bulk, [rows, [(0, 0)]]).window
    ours: Any = HaloExchangeInPlace(comm, bulk, window, dtype="float32")
    floor = PinnedHalo(comm, device, side // ranks, (side,), WIDTH)
    u = some_integers(device, rank, window.local_shape(rank))
    floor.u[...] = u
    for by_operator, by_hand in ((ours.forward_, floor.forward), (ours.adjoint_, floor.adjoint)):
        by_operator(u)
        by_hand()
        compare(name, u, floor.u)
    u[...], floor.u[...] = 0, 0  # in place, every adjoint adds to what the passes before have left

    def apply_ours() -> None:
        ours.forward_(u)
        ours.adjoint_(u)
        device.synchronize()

    def apply_floor() -> None:
        floor.forward()
        floor.adjoint()

    return exchange_row(comm, name, floor.bytes_sent, apply_floor, apply_ours)


def repartition_row(comm: Any, device: Device, side: int) -> list[str]:
    from pinned_floors import PinnedRepartition

    from adjointlab.primitives.repartition import Repartition

    rank, ranks = comm.Get_rank(), comm.Get_size()
    name = f"Repartition of {side}², rows to columns"
    rows, columns = (Layout((side, side), Partition(grid)) for grid in ((ranks, 1), (1, ranks)))
    ours: Any = Repartition(comm, rows, columns, dtype="float32")
    floor = PinnedRepartition(comm, device, side)
    x = some_integers(device, rank, floor.x.shape)
    floor.x[...] = x
    y, gx = device.xp.empty_like(floor.y), device.xp.empty_like(x)
    ours.forward(x, out=y)
    floor.forward()
    compare(name, y, floor.y)
    floor.x[...] = 0
    ours.adjoint(y, out=gx)
    floor.adjoint()
    compare(name, gx, floor.x)
    compare(name, gx, x)

    def apply_ours() -> None:
        ours.forward(x, out=y)
        ours.adjoint(y, out=gx)
        device.synchronize()

    def apply_floor() -> None:
        floor.forward()
        floor.adjoint()

    return exchange_row(comm, name, floor.bytes_sent, apply_floor, apply_ours)


def some_integers(device: Device, rank: int, shape: tuple[int, ...]) -> Any:
    return device.xp.asarray(np.random.default_rng(rank).integers(-4, 5, shape).astype(np.float32))


def exchange_row(comm: Any, name: str, sent: int, by_hand: Call, ours: Call) -> list[str]:
    taken = timed(comm, {"by hand": by_hand, "ours": ours})
    ratio = taken["ours"] / taken["by hand"]
    return [name, f"{sent >> 10} KiB", f"{taken['by hand'] * 1e6:.0f}", f"{ratio:.2f}"]


def compare(name: str, ours: Any, by_hand: Any) -> None:
    """End the script where a contestant computes something else."""
    if not bool((ours == by_hand).all()):
        raise SystemExit(f"{name}: the operator and the hand-written exchange give different results")


# Primitives


def memories_of(device: Device) -> list[str]:
    memories = ["numpy", *(["torch"] if find_spec("torch") else [])]
    if isinstance(device, Host):
        return memories
    memories.append("cupy")
    if find_spec("torch"):
        import torch

        memories += ["torch-cuda"] if torch.cuda.is_available() else []
    return memories


def primitive_rows(comm: Any, device: Device, memories: list[str]) -> list[list[str]]:
    """Each primitive in each memory: the time of NumPy's, and the ratios of the others' to it."""
    rows = []
    for name, operator in primitives(comm).items():
        calls = {memory: passes(operator, comm.Get_rank(), memory, device) for memory in memories}
        taken = timed(comm, calls, repeats=5)
        ratios = (f"{taken[memory] / taken['numpy']:.2f}" for memory in memories[1:])
        rows.append([name, f"{taken['numpy'] * 1e6:.0f}", *ratios])
    return rows


def passes(operator: Any, rank: int, memory: str, device: Device) -> Call:
    """A forward and an adjoint pass into fresh arrays; on a device to their end."""
    x, y = (
        [on_device(np.ones(each.layout.local_shape(rank), np.float32), memory) for each in space.tensors]
        for space in (operator.domain, operator.codomain)
    )
    wait: Call = lambda: None  # noqa: E731
    if memory == "cupy":
        wait = device.synchronize
    elif memory == "torch-cuda":
        import torch

        wait = torch.cuda.current_stream().synchronize

    def both() -> None:
        operator.forward(*x)
        operator.adjoint(*y)
        wait()

    return both


def primitives(comm: Any) -> dict[str, Any]:
    """The primitives by their names, of float32; of one rank those of its memory alone."""
    from adjointlab.primitives import memory

    ranks = comm.Get_size()
    count = BYTES // 4 * ranks // 1024 * 1024
    line, one = Partition((ranks,)), Partition((1,))
    cut = Layout((count,), line)
    kinds = (memory.Allocate, memory.Deallocate, memory.Clear, memory.Add, memory.Copy, memory.Move)
    found: dict[str, Any] = {kind.__name__: kind(comm, cut, dtype="float32") for kind in kinds}
    if ranks == 1:
        return found
    from adjointlab.primitives.all_gather import AllGather
    from adjointlab.primitives.all_sum_reduce import AllSumReduce
    from adjointlab.primitives.broadcast import Broadcast
    from adjointlab.primitives.discard import Discard
    from adjointlab.primitives.gather import Gather
    from adjointlab.primitives.halo_exchange import HaloExchange
    from adjointlab.primitives.halo_geometry import HaloGeometry
    from adjointlab.primitives.reduce_scatter import ReduceScatter
    from adjointlab.primitives.repartition import Repartition
    from adjointlab.primitives.scatter import Scatter
    from adjointlab.primitives.send_receive import SendReceive
    from adjointlab.primitives.sum_reduce import SumReduce

    part = count // ranks
    whole, copies = Layout((part,), one), Layout((part,), line, axes=(None,))
    square = Layout((1024, count // 1024), Partition((ranks, 1)))
    turned = Layout((1024, count // 1024), Partition((1, ranks)))
    rows = [(2 if worker else 0, 2 if worker < ranks - 1 else 0) for worker in range(ranks)]
    window = HaloGeometry.from_widths(square, [rows, [(0, 0)]]).window
    options = {"dtype": "float32"}
    return found | {
        "SendReceive": SendReceive(comm, whole, 1, form="move", **options),
        "Broadcast": Broadcast(comm, whole, line, **options),
        "SumReduce": SumReduce(comm, copies, one, **options),
        "AllSumReduce": AllSumReduce(comm, copies, (0,), **options),
        "Scatter": Scatter(comm, cut, **options),
        "Gather": Gather(comm, cut, **options),
        "AllGather": AllGather(comm, cut, 0, **options),
        "ReduceScatter": ReduceScatter(comm, copies, 0, 0, **options),
        "Discard": Discard(comm, copies, 0, 0, **options),
        "Repartition": Repartition(comm, square, turned, **options),
        "HaloExchange": HaloExchange(comm, square, window, **options),
    }


if __name__ == "__main__":
    main()
