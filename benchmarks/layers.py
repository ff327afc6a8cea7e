"""Times distributed convolutions beside the sequential layer on one core and a floor, and measures the activations that they save.

    mpiexec -n 2 python benchmarks/layers.py
    mpiexec -n 4 python benchmarks/layers.py
    mpiexec -n 2 python benchmarks/layers.py --sides 64     a quick look
    mpiexec -n 4 python benchmarks/layers.py --stationary   channels and filters cut, by each stationary algorithm

Forward and backward of a convolution with kernel 3 and padding 1, 16 channels in and out, 16 images, float32, one thread of
torch on each rank. The sides are cut: rows on two workers, rows and columns on four. The sequential layer runs on rank 0 while
the others sleep. The floor is what somebody would write who needs nothing else: torch's convolution of a padded local tensor, an
exchange of packed faces with preallocated buffers, and a sum of the gradients of weight and bias. "overlap" is the layer with
`overlap=True`. All contestants run in every round; the ratio of the medians is what counts.

Activations are the bytes that autograd saves for backward, counted as they are packed, each storage once, on the worker with most of
them; the last column holds them beside those of the sequential layer, divided by the number of workers.

The stationary algorithms cut channels among all workers, 2 x 2 for stationary-w on four. Their convolutions are the three of a block
of ResNet-50, of 8 images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from ranks import meet_asleep
from timing import interleaved, least, print_table
from torch import nn
from torch.nn import functional

from adjointlab import Partition
from adjointlab.layers.convolution import Conv2d
from adjointlab.layers.stationary_convolution import StationaryConv2d
from adjointlab.layers.windows import local_window

SIDES, BATCH, CHANNELS, KERNEL = least((64, 128, 256, 512)), 16, 16, 3
BLOCK = least(((256, 64, 1), (64, 64, 3), (64, 256, 1)))
"""Channels, filters and kernel of the convolutions of a block."""
IMAGES, IMAGE_SIDE = 8, 28
COMM = MPI.COMM_WORLD
Call = Callable[[], object]


class FloorConvolution:
    """A convolution of kernel 3 over a grid of workers, its halo exchange and its backward written by hand.

    `padded` has a border of one cell all around, which stays zero where there is no neighbour.
    """

    def __init__(self, grid: Sequence[int], bulk: Sequence[int]) -> None:
        self.cart = COMM.Create_cart(list(grid))
        self.padded = torch.zeros((BATCH, CHANNELS, bulk[0] + 2, bulk[1] + 2))
        self.weight = torch.randn(CHANNELS, CHANNELS, KERNEL, KERNEL, requires_grad=True)
        self.bias = torch.randn(CHANNELS, requires_grad=True)
        # For both dimensions and sides: the neighbour, where the halo is, and the edge of the bulk beside it.
        self.faces: list[list[tuple[int, Any, Any, torch.Tensor, torch.Tensor]]] = []
        for dim in range(2):
            before, after = self.cart.Shift(dim, 1)
            # The second exchange takes the corners along, which the first has brought.
            rest = slice(1, -1) if dim == 0 else slice(None)
            sides = []
            for neighbour, halo, edge in (
                (before, slice(0, 1), slice(1, 2)),
                (after, slice(-1, None), slice(-2, -1)),
            ):
                if neighbour == MPI.PROC_NULL:
                    continue
                at = [
                    (slice(None), slice(None), *((place, rest) if dim == 0 else (rest, place)))
                    for place in (halo, edge)
                ]
                shape = self.padded[at[0]].shape
                sides.append((neighbour, at[0], at[1], torch.empty(shape), torch.empty(shape)))
            self.faces.append(sides)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local output; its graph begins at the padded tensor."""
        u = self.padded
        u[:, :, 1:-1, 1:-1] = x
        for sides in self.faces:
            requests = [self.cart.Irecv(into.numpy(), peer) for peer, _, _, _, into in sides]
            for peer, _, edge, out, _ in sides:
                out.copy_(u[edge])
                requests.append(self.cart.Isend(out.numpy(), peer))
            MPI.Request.Waitall(requests)
            for _, halo, _, _, into in sides:
                u[halo] = into
        self.leaf = u.detach().requires_grad_()
        return functional.conv2d(self.leaf, self.weight, self.bias)

    def backward(self, y: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        """The gradient of x; those of weight and bias are summed on all ranks."""
        self.weight.grad = self.bias.grad = None
        torch.autograd.backward(y, cotangent)
        g = self.leaf.grad
        assert g is not None
        for sides in reversed(self.faces):
            requests = [self.cart.Irecv(into.numpy(), peer) for peer, _, _, _, into in sides]
            for peer, halo, _, out, _ in sides:
                out.copy_(g[halo])
                requests.append(self.cart.Isend(out.numpy(), peer))
            MPI.Request.Waitall(requests)
            for _, _, edge, _, into in sides:
                g[edge] += into
        for parameter in (self.weight, self.bias):
            assert parameter.grad is not None
            self.cart.Allreduce(MPI.IN_PLACE, parameter.grad.numpy(), MPI.SUM)
        return g[:, :, 1:-1, 1:-1]


def passes(module: nn.Module, x: torch.Tensor, cotangent: torch.Tensor) -> Call:
    """A forward and a backward pass of a layer."""

    def both() -> None:
        module.zero_grad()
        x.grad = None
        torch.autograd.backward(module(x), cotangent)

    return both


def saved_bytes(call: Callable[[], torch.Tensor]) -> int:
    """The bytes that autograd saves in `call`, parameters included: each storage once."""
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = call()  # alive until all is counted, so that no address comes twice
    del kept
    return sum(seen.values())


def grid() -> tuple[int, int]:
    """Rows on two workers, rows and columns on four; on other numbers rows."""
    size = COMM.Get_size()
    return (size // 2, 2) if size % 4 == 0 else (size, 1)


def measured(side: int, rounds: int) -> list[str]:
    """A row of the table."""
    rank, size, workers = COMM.Get_rank(), COMM.Get_size(), grid()
    shape = (BATCH, CHANNELS, side, side)
    if any(side % parts for parts in workers):
        raise SystemExit(f"sides: {side} is not divided by the grid {workers}, which the floor asks for")
    torch.manual_seed(0)
    whole = nn.Conv2d(CHANNELS, CHANNELS, KERNEL, padding=1)
    partition = Partition((1, 1, 1, *workers))
    layer = Conv2d.from_sequential(whole, COMM, partition, shape)
    overlapped = Conv2d.from_sequential(whole, COMM, partition, shape, overlap=True)
    (layout,) = (tensor.layout for tensor in layer.domain.tensors)
    values = torch.Generator().manual_seed(1)
    images, cotangents = (torch.randint(-4, 5, shape, generator=values).float() for _ in range(2))
    x, w = local_window(images, layout, rank).requires_grad_(), local_window(cotangents, layout, rank)
    floor = FloorConvolution(workers, layout.local_shape(rank)[2:])
    with torch.no_grad():
        floor.weight.copy_(whole.weight)
        floor.bias.copy_(whole.bias)

    def by_hand() -> torch.Tensor:
        return floor.backward(floor.forward(x.detach()), w)

    distributed = passes(layer, x, w)
    distributed()
    assert x.grad is not None
    np.testing.assert_allclose(by_hand().numpy(), x.grad.numpy(), rtol=1e-3, atol=1e-3)

    if rank == 0:
        images.requires_grad_()
        alone = passes(whole, images, cotangents)
    else:
        del images, cotangents  # the memory is rank 0's

        def alone() -> None:
            return None

    calls: dict[str, Call] = {
        "sequential": alone,
        "floor": by_hand,
        "layer": distributed,
        "overlap": passes(overlapped, x, w),
    }
    # The sequential layer runs alone: the others sleep in the barrier that comes before the next contestant.
    taken = interleaved(calls, repeats=1, rounds=rounds, meet=partial(meet_asleep, COMM))
    slowest = {name: COMM.allreduce(seconds, MPI.MAX) for name, seconds in taken.items()}
    held = COMM.allreduce(saved_bytes(lambda: layer(x)), MPI.MAX)
    share = COMM.bcast(saved_bytes(lambda: whole(images)) / size if rank == 0 else None)
    return [
        f"{BATCH}x{CHANNELS}x{side}x{side}",
        f"{slowest['sequential'] * 1e3:.1f}",
        f"{slowest['floor'] * 1e3:.1f}",
        f"{slowest['layer'] * 1e3:.1f}",
        f"{slowest['sequential'] / slowest['layer']:.2f}",
        f"{slowest['layer'] / slowest['floor']:.2f}",
        f"{slowest['overlap'] / slowest['layer']:.2f}",
        f"{held / 2**20:.1f}",
        f"{held / share:.2f}",
    ]


def stationary(channels: int, filters: int, kernel: int, rounds: int) -> list[list[str]]:
    """A row of the table for each algorithm."""
    rank, size, shape = COMM.Get_rank(), COMM.Get_size(), (IMAGES, channels, IMAGE_SIDE, IMAGE_SIDE)
    torch.manual_seed(0)
    whole = nn.Conv2d(channels, filters, kernel, padding=kernel // 2, bias=False)
    partitions = {
        "stationary-x": Partition((1, size, 1, 1)),
        "stationary-y": Partition((1, size, 1, 1)),
        "stationary-w": Partition((1, max(1, size // 2), min(2, size), 1, 1)),
    }
    images = torch.rand(shape)
    cotangents = torch.rand(IMAGES, filters, IMAGE_SIDE, IMAGE_SIDE)
    layers, inputs, calls = {}, {}, dict[str, Call]()
    for name, partition in partitions.items():
        layers[name] = layer = StationaryConv2d(COMM, partition, shape, whole, algorithm=name)
        (x,), (y,) = layer.domain.tensors, layer.codomain.tensors
        inputs[name] = local_window(images, x.layout, rank).requires_grad_()
        calls[name] = passes(layer, inputs[name], local_window(cotangents, y.layout, rank))
    alone = passes(whole, images.requires_grad_(), cotangents) if rank == 0 else lambda: None
    taken = interleaved(
        {"sequential": alone, **calls}, repeats=1, rounds=rounds, meet=partial(meet_asleep, COMM)
    )
    slowest = {name: COMM.allreduce(seconds, MPI.MAX) for name, seconds in taken.items()}
    share = COMM.bcast(saved_bytes(lambda: whole(images)) / size if rank == 0 else None)
    rows = []
    for name, layer in layers.items():
        held = COMM.allreduce(saved_bytes(lambda: layer(inputs[name])), MPI.MAX)  # noqa: B023
        rows.append(
            [
                f"{channels} to {filters}, kernel {kernel}: {name}",
                f"{slowest['sequential'] * 1e3:.1f}",
                f"{slowest[name] * 1e3:.1f}",
                f"{slowest['sequential'] / slowest[name]:.2f}",
                f"{held / 2**20:.1f}",
                f"{held / share:.2f}",
            ]
        )
    return rows


def print_stationary(rounds: int) -> None:
    """The table of the stationary algorithms."""
    rows = [row for arguments in BLOCK for row in stationary(*arguments, rounds)]
    if COMM.Get_rank() == 0:
        print_table(
            f"Convolutions of {IMAGES} images of {IMAGE_SIDE}x{IMAGE_SIDE}, forward and backward, {COMM.Get_size()} workers: milliseconds",
            ("layer", "sequential", "distributed", "speed-up", "MiB saved", "of sequential/P"),
            rows,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--stationary", action="store_true", help="the stationary algorithms instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.stationary:
        print_stationary(options.rounds)
        return
    rows = [measured(side, options.rounds) for side in options.sides]
    if COMM.Get_rank() == 0:
        print_table(
            f"Convolution, kernel {KERNEL}, forward and backward, {'x'.join(map(str, grid()))} workers: milliseconds",
            (
                "input",
                "sequential",
                "floor",
                "layer",
                "speed-up",
                "layer/floor",
                "overlap/layer",
                "MiB saved",
                "of sequential/P",
            ),
            rows,
        )


if __name__ == "__main__":
    main()
