"""torch.distributed.nn.functional: the gradients of `reduce` and `reduce_scatter` with ReduceOp.AVG lack the factor 1/N."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F


def main(rank, store, size=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)

    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    y = F.reduce(x, 0, dist.ReduceOp.AVG)
    (y if rank == 0 else 0 * y).sum().backward()
    print(f"rank {rank}: reduce(AVG):         dy/dx is 1/{size}, and x.grad = {x.grad.item()}")

    x = torch.ones(size, dtype=torch.float64, requires_grad=True)
    y = F.reduce_scatter(torch.empty(1, dtype=torch.float64), list(x.chunk(size)), dist.ReduceOp.AVG)
    y.sum().backward()
    print(f"rank {rank}: reduce_scatter(AVG): dy/dx is 1/{size}, and x.grad = {x.grad.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
