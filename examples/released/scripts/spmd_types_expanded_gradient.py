"""spmd_types 0.3.1: functions whose backward pass is an all-reduce refuse the gradient of sum(), which is not contiguous."""

import tempfile

import spmd_types as spmd
import torch
import torch.distributed as dist


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    group = dist.group.WORLD
    for name, apply in (
        ("convert(I, R)", lambda x: spmd.convert(x, group, src=spmd.I, dst=spmd.R)),
        ("all_reduce(P, R)", lambda x: spmd.all_reduce(x, group, src=spmd.P, dst=spmd.R)),
    ):
        for loss in (torch.sum, lambda y: y.square().sum()):
            x = torch.ones(3, requires_grad=True)
            try:
                loss(apply(x)).backward()
                print(f"rank {rank}: {name}: x.grad = {x.grad}")
            except AssertionError as error:
                print(f"rank {rank}: {name}: AssertionError: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
