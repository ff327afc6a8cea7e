"""Times each primitive in each available memory, relative to NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from devices import Device, Host, on_device
from ranks import timed
from timing import is_smoke

from adjointlab import Layout, Partition

__all__ = ["BYTES", "memories_of", "primitive_rows"]

Call = Callable[[], object]
BYTES = 64 * 1024 if is_smoke() else 16 << 20
"""Of the tensors of each rank."""


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
    """Each primitive in each memory: the time with NumPy's, and the others as ratios to it."""
    rows = []
    for name, operator in primitives(comm).items():
        calls = {memory: passes(operator, comm.Get_rank(), memory, device) for memory in memories}
        taken = timed(comm, calls, repeats=2)
        ratios = (f"{taken[memory] / taken['numpy']:.2f}" for memory in memories[1:])
        rows.append([name, f"{taken['numpy'] * 1e6:.0f}", *ratios])
    return rows


def passes(operator: Any, rank: int, memory: str, device: Device) -> Call:
    """A forward and an adjoint pass into fresh arrays; on a device, until they have completed."""
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
    """The float32 primitives by name; on one rank, only those that work in its memory."""
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
