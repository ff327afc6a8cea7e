"""fvcore 0.1.5 and pytorchvideo 0.1.5: the backward pass of `differentiable_all_reduce` sums the gradient that it gets in place, which may not be its own.

And the variance that NaiveSyncBatchNorm keeps for evaluation is not torch's: it is divided by the number of values, not by one less, and
the batches are not counted.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("fvcore", "fvcore.nn", "pytorchvideo", "pytorchvideo.layers")
from fvcore.nn.distributed import differentiable_all_reduce  # noqa: E402
from pytorchvideo.layers.batch_norm import NaiveSyncBatchNorm1d  # noqa: E402


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    a, b = (torch.zeros(2, requires_grad=True) for _ in range(2))
    beside = b * 1
    (differentiable_all_reduce(a) + beside).backward(torch.ones(2))
    print(f"rank {rank}: sum: b.grad = {b.grad.tolist()}, should be 1")
    torch.manual_seed(0)
    batch = torch.randn(4, 1, 2)
    parallel, whole = NaiveSyncBatchNorm1d(1), nn.BatchNorm1d(1)
    parallel(batch.chunk(ranks)[rank])
    whole(batch)
    for name, module in (("pytorchvideo", parallel), ("torch", whole)):
        print(
            f"rank {rank}: {name}: running_var {module.running_var.item():.4f}, num_batches_tracked {module.num_batches_tracked.item()}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
