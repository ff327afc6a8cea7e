"""Primitives and a convolution through torch, beside DistDL's, in one process.

    mpiexec -n 2 python benchmarks/against_distdl.py
    mpiexec -n 4 python benchmarks/against_distdl.py
    mpiexec -n 2 python benchmarks/against_distdl.py --rows halo,broadcast     a quick look

DistDL is the library of [Hewett21]; this script fetches nothing. Install it (``pip install
git+https://github.com/distdl/distdl``, which compiles its interpolation), or build that in a clone with ``python setup.py build_ext
--inplace`` and put the clone's ``src`` on PYTHONPATH.
Its last release is older than NumPy 1.24, which it needs an alias of (``np.int``); that is made here.

A call is a forward and a backward pass, float32, one thread of torch on each rank. Sizes are those of the global tensor. Halo
exchanges and convolutions cut it into rows on two workers, rows and columns on four; a repartition is from rows to columns. "floor" is hand-written mpi4py with preallocated
buffers, the halo in place, so that no bulk is copied; of a convolution it is torch's of a padded local tensor, and the exchange of
its halo by hand, of one tensor that is kept for good. "out=" is our operator on NumPy arrays, into given memory. DistDL pads a tensor and refreshes the halo in place, as its
own layers do. All take turns in every round, and must agree before they are timed; a time is the median over the rounds, on the
slowest rank.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from floors import HaloFloor, repartition_floor
from mpi4py import MPI
from plain_mpi import library
from timing import interleaved, least, print_table
from torch import nn
from torch.nn import functional

from adjointlab import Layout, Partition
from adjointlab.core.operator import LinearOperator
from adjointlab.layers.convolution import Conv2d
from adjointlab.layers.differentiable import apply
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_geometry import HaloGeometry
from adjointlab.primitives.repartition import Repartition

try:
    vars(np).setdefault("int", int)
    from distdl.backends.mpi.partition import MPIPartition
    from distdl.nn.broadcast import Broadcast as DistDLBroadcast
    from distdl.nn.conv_feature import DistributedFeatureConv2d
    from distdl.nn.halo_exchange import HaloExchange as DistDLHaloExchange
    from distdl.nn.mixins.conv_mixin import ConvMixin
    from distdl.nn.mixins.halo_mixin import HaloMixin
    from distdl.nn.repartition import Repartition as DistDLRepartition
    from distdl.utilities.torch import distdl_padding_to_torch_padding, zero_volume_tensor
except ImportError as error:
    raise SystemExit(
        f"DistDL cannot be imported ({error}), so there is nothing to compare with; install it with "
        "'pip install git+https://github.com/distdl/distdl', or run 'python setup.py build_ext --inplace' in a clone "
        "and put its src folder on PYTHONPATH"
    ) from None

COMM = MPI.COMM_WORLD
RANK, RANKS = COMM.Get_rank(), COMM.Get_size()
GRID = {2: (2, 1), 4: (2, 2)}
CHANNELS = 8
Call = Callable[[], object]
Function = Callable[[torch.Tensor], torch.Tensor]
Summary = Callable[[list[float]], float]


def distdl_partition(shape: Sequence[int]) -> Any:
    """The first ranks as a grid."""
    workers = MPIPartition(COMM).create_partition_inclusive(np.arange(prod(shape)))
    return workers.create_cartesian_topology_partition(list(shape))


class _Geometry(HaloMixin, ConvMixin):
    """DistDL's halos of a convolution."""


def padded_by_distdl(partition: Any, shape: Sequence[int], kernel: int) -> Function:
    """The bulk padded and its halo refreshed."""
    halo, received, sent, _ = _Geometry()._compute_exchange_info(
        np.array(shape), np.array([kernel, kernel]), np.array([1, 1]), np.array([0, 0]), np.array([1, 1]),
        partition.active, partition.shape, partition.index,
    )  # fmt: skip
    exchange = DistDLHaloExchange(partition, halo, received, sent)
    padding = distdl_padding_to_torch_padding(halo)
    return lambda x: exchange(functional.pad(x, padding))


def through_torch(
    function: Function, x: torch.Tensor, parameters: Sequence[torch.Tensor] = ()
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Run a forward and a backward pass; return the result and the gradient of x."""
    leaf = x.clone().requires_grad_()
    cotangent = torch.ones_like(function(leaf))

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        for tensor in (leaf, *parameters):
            tensor.grad = None
        y = function(leaf)
        y.backward(cotangent)  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return y, leaf.grad

    return both


def into_given_memory(operator: LinearOperator) -> Call:
    """The operator on NumPy arrays, forward and adjoint."""
    caller: Any = operator
    x, y = (
        np.ones(space.tensors[0].layout.local_shape(RANK), np.float32)
        for space in (operator.domain, operator.codomain)
    )
    into_x = {"out": np.empty_like(x)} if operator.domain.tensors[0].layout.partition.is_active(RANK) else {}
    into_y = (
        {"out": np.empty_like(y)} if operator.codomain.tensors[0].layout.partition.is_active(RANK) else {}
    )

    def both() -> None:
        caller.forward(x, **into_y)
        caller.adjoint(y, **into_x)

    return both


def local_tensor(operator: LinearOperator) -> torch.Tensor:
    torch.manual_seed(RANK)
    return torch.randn(operator.domain.tensors[0].layout.local_shape(RANK))


def halo(side: int, kernel: int) -> dict[str, Call]:
    grid, shape = (1, 1, *GRID[RANKS]), (1, CHANNELS, side, side)
    bulk = Layout(shape, Partition(grid))
    widths = [
        [(min(worker, 1) * reach, min(parts - 1 - worker, 1) * reach) for worker in range(parts)]
        for parts, reach in zip(grid, (0, 0, kernel // 2, kernel // 2), strict=True)
    ]
    operator = HaloExchange(COMM, bulk, HaloGeometry.from_widths(bulk, widths).window, dtype="float32")
    x = local_tensor(operator)
    floor = HaloFloor(COMM, grid[1:], bulk.local_shape(RANK)[1:], kernel // 2)
    return {
        "floor": floor.in_place,
        "out=": into_given_memory(operator),
        "ours": through_torch(lambda x: apply(operator, x), x),
        "DistDL": through_torch(padded_by_distdl(distdl_partition(grid), shape, kernel), x),
    }


def broadcast(side: int) -> dict[str, Call]:
    one, every = Partition((1, 1)), Partition((1, RANKS))
    operator = Broadcast(COMM, Layout((side, side), one), every, dtype="float32", preserve_batch=False)
    theirs = DistDLBroadcast(distdl_partition((1, 1)), distdl_partition((1, RANKS)), preserve_batch=False)
    x = local_tensor(operator)
    buffers = [np.ones((side, side), np.float32) for _ in range(2)]

    def floor() -> None:
        COMM.Bcast(buffers[0], 0)
        COMM.Reduce(buffers[0], buffers[1] if RANK == 0 else None, root=0)

    return {
        "floor": floor,
        "out=": into_given_memory(operator),
        "ours": through_torch(lambda x: apply(operator, x), x),
        "DistDL": through_torch(theirs, x if RANK == 0 else zero_volume_tensor()),
    }


def repartition(side: int) -> dict[str, Call]:
    grids = ((RANKS, 1), (1, RANKS))
    operator = Repartition(COMM, *(Layout((side, side), Partition(grid)) for grid in grids), dtype="float32")
    theirs = DistDLRepartition(*map(distdl_partition, grids), preserve_batch=False)
    x = local_tensor(operator)
    return {
        "floor": repartition_floor(COMM, side),
        "out=": into_given_memory(operator),
        "ours": through_torch(lambda x: apply(operator, x), x),
        "DistDL": through_torch(theirs, x),
    }


def convolution(side: int, kernel: int) -> dict[str, Call]:
    grid, shape = (1, 1, *GRID[RANKS]), (1, CHANNELS, side, side)
    named: Any = {"padding": kernel // 2}
    ours = Conv2d(COMM, Partition((1, *grid)), shape, CHANNELS, CHANNELS, kernel, **named)
    theirs = DistributedFeatureConv2d(distdl_partition(grid), CHANNELS, CHANNELS, kernel, **named)
    local = nn.Conv2d(CHANNELS, CHANNELS, kernel)
    for parameter in (*ours.parameters(), *theirs.parameters()):
        nn.init.constant_(parameter, 0.01)
    torch.manual_seed(RANK)
    bulk = Layout(shape, Partition(grid)).local_shape(RANK)
    x, wide = torch.randn(bulk), torch.randn(*bulk[:2], *(length + kernel - 1 for length in bulk[2:]))
    exchange = HaloFloor(COMM, grid[1:], bulk[1:], kernel // 2)
    convolved = through_torch(local, wide, list(local.parameters()))

    def floor() -> None:
        exchange.in_place()
        convolved()

    return {
        "floor": floor,
        "ours": through_torch(ours, x, list(ours.parameters())),
        "DistDL": through_torch(theirs, x, list(theirs.parameters())),
    }


ROWS: dict[str, Callable[[], dict[str, Call]]] = {
    "halo 8×64×64, kernel 3": lambda: halo(64, 3),
    "halo 8×256×256, kernel 3": lambda: halo(256, 3),
    "broadcast + sum 64²": lambda: broadcast(64),
    "broadcast + sum 256²": lambda: broadcast(256),
    "broadcast + sum 1024²": lambda: broadcast(1024),
    "repartition 256²": lambda: repartition(256),
    "repartition 1024²": lambda: repartition(1024),
    "Conv2d 8→8 on 64², kernel 3": lambda: convolution(64, 3),
    "Conv2d 8→8 on 256², kernel 3": lambda: convolution(256, 3),
    "Conv2d 8→8 on 256², kernel 5": lambda: convolution(256, 5),
}


def measured(calls: dict[str, Call], rounds: int, summary: Summary) -> dict[str, float]:
    """Return the seconds on the slowest rank, after checking that both libraries return the same values."""
    ours: Any = calls["ours"]()
    theirs: Any = calls["DistDL"]()
    for mine, other in zip(ours, theirs, strict=True):
        if mine.numel() or other.numel():
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    for call in calls.values():
        for _ in range(3):
            call()
    taken = interleaved(calls, 1, rounds, meet=COMM.Barrier, summary=summary)
    return {name: COMM.allreduce(seconds, MPI.MAX) for name, seconds in taken.items()}


def rows(chosen: Sequence[str], rounds: int, summary: Summary) -> Iterator[list[str]]:
    for name, contestants in least(ROWS).items():
        if not any(each in name for each in chosen):
            continue
        taken = measured(contestants(), rounds, summary)
        yield [
            name,
            *(
                f"{taken[key] * 1e6:,.0f}" if key in taken else "–"
                for key in ("floor", "out=", "ours", "DistDL")
            ),
            f"{taken['ours'] / taken['DistDL']:.2f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The bridge to torch beside DistDL's functions.")
    parser.add_argument("--rows", default="", help="comma-separated parts of the names of rows")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument(
        "--fastest", action="store_true", help="the fastest round, for a busy machine, not the median"
    )
    options = parser.parse_args()
    if RANKS not in GRID:
        raise SystemExit(f"run with mpiexec -n 2 or -n 4, not {RANKS}")
    torch.set_num_threads(1)
    table = list(rows(options.rows.split(","), options.rounds, min if options.fastest else statistics.median))
    if RANK == 0:
        print_table(
            f"forward + backward, float32, {RANKS} ranks, {library()}",
            ["", "floor µs", "out= µs", "ours through torch µs", "DistDL µs", "ours / DistDL"],
            table,
        )


if __name__ == "__main__":
    main()
