"""transformers 5.24.0: of a norm of queries or keys, as Qwen3 has them, each backward pass sums all of `.grad` over the ranks, and with it earlier gradients.

Two backward passes, as of two microbatches: each rank has 1 of each, so that the gradient is 2 after the first pass, and 4 after the second.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers.distributed.tensor_parallel import ReplicatedWithGradAllReduce


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    norm = torch.nn.RMSNorm(1)
    ReplicatedWithGradAllReduce().install_forward(norm, init_device_mesh("cpu", (2,)))
    for number in (1, 2):
        norm(torch.ones(1, 1)).sum().backward()
        print(f"rank {rank}: weight.grad = {norm.weight.grad.item():.3f}, should be {2 * number}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
