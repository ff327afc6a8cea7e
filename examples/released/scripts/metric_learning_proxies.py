"""pytorch-metric-learning 2.9.0: in DistributedDataParallel, the weights of a loss get gradients that are N times too large on N ranks.

`DistributedLossWrapper` multiplies the loss by the number of ranks, for each has gradients for its own embeddings only. But the gradient of the
loss's own weights is whole on each.
"""

import copy
import tempfile

import torch
import torch.distributed as dist
from pytorch_metric_learning.losses import ArcFaceLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch.nn.parallel import DistributedDataParallel


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    rows, labels = torch.randn(4 * ranks, 3), torch.arange(4 * ranks) % 2
    model, loss = torch.nn.Linear(3, 3), ArcFaceLoss(2, 3)
    parallel_model = DistributedDataParallel(copy.deepcopy(model))
    own_loss = copy.deepcopy(loss)
    parallel_loss = DistributedDataParallel(DistributedLossWrapper(own_loss))

    loss(model(rows), labels).backward()
    parallel_loss(parallel_model(rows.chunk(ranks)[rank]), labels.chunk(ranks)[rank]).backward()
    of_model = (parallel_model.module.weight.grad / model.weight.grad).mean().item()
    of_loss = (own_loss.W.grad / loss.W.grad).mean().item()
    print(
        f"rank {rank}: {of_model:.3f} and {of_loss:.3f} of the gradients of the model and of the loss, should be 1 and 1"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
