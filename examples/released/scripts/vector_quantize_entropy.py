"""vector-quantize-pytorch 1.32.0: the entropy of the codes of all ranks, in the loss of LFQ, takes those of one rank, divided by the number of ranks.

`maybe_distributed_mean` drops the result of torch's differentiable all_reduce, which leaves its argument as it is.
"""

import tempfile

import torch
import torch.distributed as dist
from vector_quantize_pytorch import LFQ
from vector_quantize_pytorch.lookup_free_quantization import maybe_distributed_mean


def main(rank, store, loss, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    print(f"rank {rank}: the mean of 1 and 1 is {maybe_distributed_mean(torch.ones(1)).item()}")
    torch.manual_seed(0)
    own = LFQ(dim=3, codebook_size=8)(torch.randn(2 * ranks, 2, 3).chunk(ranks)[rank]).entropy_aux_loss
    dist.all_reduce(total := own.detach().clone())
    print(
        f"rank {rank}: the mean of the losses of the ranks is {total.item() / ranks:.4f}, that of the whole batch {loss:.4f}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    whole = LFQ(dim=3, codebook_size=8)(torch.randn(4, 2, 3)).entropy_aux_loss.item()
    # The package keeps whether there are other ranks.
    torch.multiprocessing.spawn(main, (tempfile.mktemp(), whole), nprocs=2)
