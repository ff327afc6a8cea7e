"""DTensor: `linear` of a batch of sequences whose batch is sharded unevenly fails in a view, on a mesh of two dimensions."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    for shape in ((2,), (1, 2)):
        mesh = init_device_mesh("cpu", shape)
        x = distribute_tensor(torch.ones(3, 2, 1), mesh, [Shard(0)] * len(shape))
        weight, bias = (
            distribute_tensor(torch.ones(s), mesh, [Replicate()] * len(shape)) for s in ((1, 1), (1,))
        )
        try:
            print(f"rank {rank}, mesh {shape}: {tuple(F.linear(x, weight, bias).full_tensor().shape)}")
        except RuntimeError as error:
            print(f"rank {rank}, mesh {shape}: {str(error).splitlines()[0]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
