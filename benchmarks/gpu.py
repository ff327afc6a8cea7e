"""Faces of halos packed on a device, exchanges of device memory, and each primitive on a device beside the host.

    python benchmarks/gpu.py                    faces and primitives of memory, on one device
    mpiexec -n 2 python benchmarks/gpu.py       exchanges and primitives that communicate; also -n 4, sharing the device
    python benchmarks/gpu.py --host             NumPy in place of the device: shows that the script runs, figures mean nothing

Without CuPy and a device it says what is missing. Faces: the share of the device's own copy bandwidth, which is measured in the
same rounds by a copy of as many bytes; a copy moves two bytes for each byte of the faces, unpack-add three. Times are the device's, so
launches are not in them. Exchanges: forward and adjoint with pinned staging, beside a hand-written exchange through pinned buffers
(`pinned_floors.py`), whose results are compared first. The targets stand in docs/gpu.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from devices import CudaDevice, Device, Host, lacking
from memories import BYTES, memories_of, primitive_rows
from ranks import Alone, timed
from timing import least, print_table

from adjointlab import Layout, Partition
from adjointlab.core import arrays
from adjointlab.devices.transport import OVERRIDE
from adjointlab.worlds.launch import is_launched

Call = Callable[[], object]
MIB = 1 << 20
FACES = least((1 * MIB, 8 * MIB, 32 * MIB, 128 * MIB))
WIDTH = 2
SECTOR = 32
"""Bytes that a device moves at least, however few of them are asked for."""
SIDES = least((1024, 4096, 8192))


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
        show(f"both faces, float32, {device.title}", FACE_COLUMNS, face_rows(device))
    else:
        title = f"forward + adjoint of device memory by {transport}, {ranks} ranks, {device.title}"
        show(title, ["exchange", "sent", "by hand µs", "adjointlab / by hand"], exchange_rows(comm, device))
    memories = memories_of(device)
    title = f"forward + adjoint, {BYTES >> 10} KiB a rank, {ranks} rank{'s' * (ranks > 1)}, {device.title}"
    columns = ["primitive", "numpy µs", *(f"{memory} / numpy" for memory in memories[1:])]
    show(title, columns, primitive_rows(comm, device, memories))


# Faces

FACE_COLUMNS = (
    "face", "size", "copy GB/s", "pack / copy", "by slices", "unpack-add / copy", "by slices",
)  # fmt: skip


def face_rows(device: Device) -> list[list[str]]:
    """Shares of the device's copy bandwidth reached by the pack and add functions of operators, and by slices of the library."""
    return [face_row(device, *each) for size in FACES for each in faces(size)]


def face_row(device: Device, name: str, shape: tuple[int, ...], both: Sequence[tuple[Any, ...]]) -> list[str]:
    """Both faces of a dimension, packed into one buffer and added back from it."""
    xp = device.xp
    tensor = xp.ones(shape, np.float32)
    cells = [tensor[face] for face in both]
    half = cells[0].size
    buffer, other = xp.zeros(2 * half, np.float32), xp.zeros(2 * half, np.float32)
    packed = [buffer[:half].reshape(cells[0].shape), buffer[half:].reshape(cells[1].shape)]
    pack, unpack = list(zip(packed, cells, strict=True)), list(zip(cells, packed, strict=True))
    contestants: dict[str, Call] = {
        "copy": lambda: xp.copyto(other, buffer),
        "pack": lambda: copy_all(pack),
        "pack by slices": lambda: [xp.copyto(*pair) for pair in pack],
        "add": lambda: add_all(unpack),
        "add by slices": lambda: [xp.add(*pair, out=pair[0]) for pair in unpack],
    }
    taken = device.seconds(contestants, least(20), least(15))
    moved = {key: (3 if key.startswith("add") else 2) * buffer.nbytes for key in taken}
    rate = {key: moved[key] / taken[key] for key in taken}
    shares = [f"{rate[key] / rate['copy']:.2f}" for key in list(contestants)[1:]]
    return [name, f"{buffer.nbytes // 2 // MIB} MiB each", f"{rate['copy'] / 1e9:.0f}", *shares]


def one_by_one(move: Callable[..., object]) -> Callable[[Sequence[Any]], object]:
    return lambda pairs: [move(*pair) for pair in pairs]


# One launch for a list of boxes, where the module of arrays has that.
copy_all = getattr(arrays, "copy_all", one_by_one(arrays.copy_into))
add_all = getattr(arrays, "add_all", one_by_one(arrays.add_into))


def faces(size: int) -> list[tuple[str, tuple[int, ...], list[tuple[Any, ...]]]]:
    """Tensors whose two faces along the outer and the innermost dimension have `size` bytes each, and the faces' positions."""
    rows = size // 4 // WIDTH
    outer = ("outer dimension", (4 * WIDTH, rows // 1024, 1024), [(slice(WIDTH),), (slice(-WIDTH, None),)])
    return [outer, *(innermost_faces(size, width) for width in (WIDTH, SECTOR // 4))]


def innermost_faces(size: int, width: int) -> tuple[str, tuple[int, ...], list[tuple[Any, ...]]]:
    rows = size // 4 // width
    ends = [(..., slice(width)), (..., slice(-width, None))]
    return f"innermost dimension, {width} cells", (rows // 1024, 1024, 64), ends


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
    name = f"HaloExchangeInPlace of {side}², {WIDTH} rows"
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
    """End the script if a contestant computes another result."""
    if not bool((ours == by_hand).all()):
        raise SystemExit(f"{name}: the operator and the hand-written exchange give different results")


if __name__ == "__main__":
    main()
