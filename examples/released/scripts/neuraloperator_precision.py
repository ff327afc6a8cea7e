"""neuraloperator 2.0.0: sums over ranks are made in float32, whatever the tensor: complex ones lose their imaginary parts."""

import tempfile

import torch
import torch.distributed as dist
from neuralop.mpu import comm, mappings


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    comm._MODEL_PARALLEL_GROUP = dist.group.WORLD

    y = mappings.reduce_from_model_parallel_region(torch.tensor([1 + 1j]))
    print(f"rank {rank}: reduce of 1 + 1j: {y.item()}, should be 2 + 2j")

    x = torch.zeros(1, dtype=torch.complex64, requires_grad=True)
    mappings.copy_to_model_parallel_region(x).backward(torch.tensor([1 + 1j]))
    print(f"rank {rank}: gradient of copy: {x.grad.item()}, should be 2 + 2j")

    y = mappings.reduce_from_model_parallel_region(torch.tensor([1 + 2**-40], dtype=torch.float64))
    print(f"rank {rank}: reduce of 1 + 2**-40 in float64: 2 + {y.item() - 2}, should be 2 + {2**-39}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
