"""DTensor: a convolution takes weights that are sharded by output channels, and fails in the local kernel."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.ones(2, 1, 3), mesh, [Replicate()])
    weight = distribute_tensor(torch.ones(2, 1, 1), mesh, [Shard(0)])
    bias = distribute_tensor(torch.ones(2), mesh, [Replicate()])
    try:
        F.conv1d(x, weight, bias)
    except Exception as error:
        print(f"rank {rank}: {type(error).__name__}: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
