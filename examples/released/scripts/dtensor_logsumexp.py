"""DTensor: logsumexp(0, keepdim=True) of sharded columns claims that its rows are sharded, as if the dimension were not kept."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(8.0).reshape(2, 4), mesh, [Shard(1)])
    y = torch.logsumexp(x, 0, keepdim=True)
    print(
        f"rank {rank}: {tuple(y.shape)} with {y.placements} holds {tuple(y.to_local().shape)}, should be Shard(1)"
    )
    print(f"rank {rank}: sum with {x.sum(0, keepdim=True).placements}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
