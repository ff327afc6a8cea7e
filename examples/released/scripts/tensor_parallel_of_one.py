"""Tensor parallelism: the backward pass fails for a hidden layer of one unit, on one rank and on two."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main(rank, store, size):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    module = nn.Sequential(nn.Linear(3, 1), nn.Tanh(), nn.Linear(1, 2))
    module = parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    try:
        module(torch.ones(2, 3)).sum().backward()
        print(f"rank {rank} of {size}: passes")
    except RuntimeError as error:
        print(f"rank {rank} of {size}: {str(error).splitlines()[0]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    for size in (1, 2):
        torch.multiprocessing.spawn(main, (tempfile.mktemp(), size), nprocs=size)
