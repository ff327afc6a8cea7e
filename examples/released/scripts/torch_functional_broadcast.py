"""`_functional_collectives.broadcast` is what torch 2.13 recommends for the deprecated differentiable one; its gradient is lost."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as F


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    for name, broadcast in (
        ("nn.functional", F.broadcast),
        ("_functional_collectives", functional.broadcast),
    ):
        x = torch.ones(1, dtype=torch.float64, requires_grad=True)
        y = broadcast(x, 0, dist.group.WORLD)
        print(f"rank {rank}: {name}.broadcast: requires_grad={y.requires_grad}, {y.grad_fn}")
        if y.requires_grad:
            y.sum().backward()
            print(f"rank {rank}: {name}.broadcast: x.grad = {x.grad}, should be {2 if rank == 0 else 0}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
