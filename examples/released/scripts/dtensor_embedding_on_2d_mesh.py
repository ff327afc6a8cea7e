"""DTensor: an embedding whose rows are sharded by both dimensions of a mesh."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2))
    for rows in (4, 5, 8):
        table = torch.arange(float(rows)).reshape(rows, 1) + 1
        weight = distribute_tensor(table, mesh, [Shard(0), Shard(0)]).requires_grad_()
        indices = distribute_tensor(torch.arange(rows), mesh, [Replicate(), Replicate()])
        try:
            y = F.embedding(indices, weight)
            found = y.full_tensor()
            found.sum().backward()
            gradient = weight.grad.full_tensor().flatten().tolist()
            print(f"rank {rank}: {rows} rows: {found.flatten().tolist()}, gradient {gradient}")
        except Exception as error:
            print(f"rank {rank}: {rows} rows: {type(error).__name__}: {error}")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=4)
