"""Adam of a complex DTensor with uneven shards: it changes nothing, neither the parameter nor its own state, and says nothing."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for size in (4, 3):
        whole = torch.arange(1, size + 1) * (1 + 1j)
        parameter = torch.nn.Parameter(distribute_tensor(torch.ones_like(whole), mesh, [Shard(0)]))
        parameter.grad = distribute_tensor(whole, mesh, [Shard(0)])
        torch.optim.Adam([parameter], lr=0.1).step()
        found = parameter.full_tensor().tolist()
        if rank == 0:
            print(f"{size} elements on 2 ranks after a step from ones: {found}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
