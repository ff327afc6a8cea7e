"""DTensor: cross_entropy with reduction="mean" over sharded rows does not count the rows that ignore_index leaves out."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x, target = torch.arange(12.0).sin().reshape(4, 3), torch.tensor([1, 0, 2, 1])
    expected = F.cross_entropy(x, target, ignore_index=0)
    loss = F.cross_entropy(
        distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(target, mesh, [Replicate()]), ignore_index=0
    )
    print(f"rank {rank}: {loss.placements} {loss.full_tensor().item():.6f}, should be {expected.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
