"""SequenceParallel makes new parameters, and forgets that the old ones required no gradient."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=1)
    norm = nn.LayerNorm(3).requires_grad_(False)
    parallelize_module(norm, init_device_mesh("cpu", (1,)), SequenceParallel())
    print("frozen before; after SequenceParallel requires_grad is", norm.weight.requires_grad)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=1)
