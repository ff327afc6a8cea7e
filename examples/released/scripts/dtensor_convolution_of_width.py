"""DTensor: a strided convolution of a tensor that is cut along its width claims a shape and placements that its local parts do not have."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x, weight = torch.arange(8.0).reshape(1, 1, 2, 4), torch.ones(1, 1, 2, 2)
    y = F.conv2d(
        distribute_tensor(x, mesh, [Shard(3)]), distribute_tensor(weight, mesh, [Replicate()]), stride=2
    )
    print(
        f"rank {rank}: shape {tuple(y.shape)}, {y.placements}, local shape {tuple(y.to_local().shape)}, "
        f"whole {y.full_tensor().tolist()}, should be {F.conv2d(x, weight, stride=2).tolist()}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
