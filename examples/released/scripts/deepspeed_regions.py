"""DeepSpeed 0.19.8: the functions of automatic tensor parallelism sum a contiguous copy of a tensor over the ranks, and return the tensor.

So one that is not contiguous is not summed. One that is, such as the gradient of a sum of two tensors, is summed in place. And the layer whose
backward pass sums while it multiplies refuses a gradient of three dimensions that is not contiguous.
"""

import sys
import tempfile

import deepspeed.comm
import torch
import torch.distributed as dist
from deepspeed.module_inject import layers

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    deepspeed.comm.init_distributed("gloo", verbose=False)
    group = dist.group.WORLD
    for name, ones in (("contiguous", torch.ones(2, 2)), ("transposed", torch.ones(2, 2).T)):
        a, b = (torch.ones(2, 2, requires_grad=True) for _ in range(2))
        beside = b * 1
        (layers.ColumnParallel.apply(group, a) + beside).backward(ones.clone())
        print(
            f"rank {rank}, {name}: gradient of a copy {a.grad[0, 0].item()}, of what is added to it {b.grad[0, 0].item()}"
        )
        print(f"rank {rank}, {name}: sum {layers.RowParallel.apply(group, ones, False)[0, 0].item()}")
    weight = torch.ones(4, 2, requires_grad=True)
    y = layers.AsyncColumnParallel.apply(group, torch.ones(2, 3, 2, requires_grad=True), weight, None)
    try:
        y.backward(torch.ones(3, 2, 4).transpose(0, 1))
    except RuntimeError as error:
        print(f"rank {rank}: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
