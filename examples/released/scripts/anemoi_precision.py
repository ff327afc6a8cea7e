"""anemoi-models 0.19.0: tensors of float64 are summed over ranks in float32, forward and backward, and no caller can say otherwise."""

import tempfile

import torch
import torch.distributed as dist
from anemoi.models.distributed import graph


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    group = dist.group.WORLD

    y = graph.reduce_tensor(torch.tensor([1 + 2**-40], dtype=torch.float64), group)
    print(f"rank {rank}: sum of 1 + 2**-40 twice: 2 + {y.item() - 2}, should be 2 + {2**-39}")

    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    graph.sync_tensor(x, 0, [1, 1], group).backward(torch.tensor([1 + 2**-40] * 2, dtype=torch.float64))
    print(f"rank {rank}: gradient of a gather: 2 + {x.grad.item() - 2}, should be 2 + {2**-39}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
