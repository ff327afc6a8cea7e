"""Megatron-core 0.16.1: the gradient of copy_to_tensor_model_parallel_region is not summed if it is not contiguous."""

import tempfile

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    for name, gradient in (("contiguous", torch.ones(2, 3)), ("transposed", torch.ones(3, 2).T)):
        x = torch.zeros(2, 3, requires_grad=True)
        copy_to_tensor_model_parallel_region(x, dist.group.WORLD).backward(gradient)
        print(f"rank {rank}: {name} gradient: x.grad[0, 0] = {x.grad[0, 0].item()}, should be 2")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
