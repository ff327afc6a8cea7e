"""DTensor: the backward pass of group_norm fails where the rows are sharded: it is called with the local numbers of rows and channels."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(8.0).reshape(2, 2, 2), mesh, [Shard(0)]).requires_grad_()
    weight, bias = (distribute_tensor(torch.ones(2), mesh, [Replicate()]) for _ in range(2))
    y = F.group_norm(x, 1, weight, bias)
    try:
        y.sum().backward()
        print(f"rank {rank}: backward passes")
    except RuntimeError as error:
        print(f"rank {rank}: forward passes, backward raises {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
