"""PhysicsNeMo 2.2.2: indexed_all_to_all_v(dim=1) sends rows, not columns. Without an error where the parts have the same shape."""

import tempfile

import torch
import torch.distributed as dist
from physicsnemo.distributed.autograd import indexed_all_to_all_v


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    swapped = [torch.tensor([1, 0])] * 2  # the second and the first column, to each rank
    y = indexed_all_to_all_v(x, swapped, [[2, 2]] * 2, dim=1)
    print(f"rank {rank}: dim=1: {y.tolist()}, should be [[2, 1, 2, 1], [4, 3, 4, 3]]")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
