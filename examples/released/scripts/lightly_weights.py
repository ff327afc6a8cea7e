"""lightly 1.6.0: with `gather_distributed`, `DCLWLoss` takes negatives from all ranks, but the mean by which it divides weights over the rows of one.

The weight of a pair is 2 - exp(s / sigma) / mean(exp(s / sigma)), where s are the similarities of the pairs of the batch.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("lightly", "lightly.utils", "lightly.loss", "lightly.models")


def main(rank, store, ranks=2):
    from lightly.loss.dcl_loss import DCLWLoss

    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    views = torch.randn(2, 2 * ranks, 3)
    loss = DCLWLoss(gather_distributed=True)(*(x.chunk(ranks)[rank].contiguous() for x in views))
    dist.all_reduce(loss)
    should = DCLWLoss()(*views).item()
    print(
        f"rank {rank}: the mean over the ranks is {loss.item() / ranks:.4f}, of the whole batch {should:.4f}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
