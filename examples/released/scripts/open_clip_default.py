"""open_clip 3.3.0: by default, `ClipLoss` gives features gradients that are N times too small on N ranks, and its scale the right one.

DistributedDataParallel takes the mean of the gradients of the ranks. Each has the whole loss, and so the whole gradient of the scale; but of the
features it has the gradient of its own rows only, and the mean of these is their sum divided by N.
"""

import tempfile

import torch
import torch.distributed as dist
from open_clip.loss import ClipLoss


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    rows = torch.randn(2 * ranks, 3)

    def gradients(rows, **options):
        """The gradients of a weight that makes the features of images, and of the scale."""
        weight, scale = torch.eye(3).requires_grad_(), torch.ones(()).requires_grad_()
        ClipLoss(**options)(rows @ weight, rows.flip(1), scale).backward()
        return weight.grad, scale.grad

    mean = gradients(rows.chunk(ranks)[rank], rank=rank, world_size=ranks)
    for gradient, should in zip(mean, gradients(rows), strict=True):
        dist.all_reduce(gradient)
        ratio = (gradient / ranks / should).flatten()[0].item()
        print(f"rank {rank}: {ratio:.3f} of the gradient of the whole batch, should be 1")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
