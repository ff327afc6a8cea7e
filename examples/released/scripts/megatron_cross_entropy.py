"""Megatron-core 0.16.1: `vocab_parallel_cross_entropy` smooths labels over a rank's own part of the vocabulary, and writes into logits of float32."""

import tempfile

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from torch.nn.functional import cross_entropy


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    parallel_state.initialize_model_parallel(ranks)
    torch.manual_seed(0)
    whole, target, words = torch.randn(1, 1, 6), torch.tensor([[4]]), 6
    own = whole[:, :, 3 * rank : 3 * rank + 3].clone()
    before = own.clone()
    print(
        f"rank {rank}: loss {vocab_parallel_cross_entropy(own, target).item()}, should be {cross_entropy(whole[0], target[0]).item()}"
    )
    print(f"rank {rank}: logits after the loss {own.tolist()}, and before it {before.tolist()}")
    # Megatron gives the smoothing to all words but the right one, and torch to all words.
    smoothed = cross_entropy(whole[0], target[0], label_smoothing=0.1 * words / (words - 1)).item()
    got = vocab_parallel_cross_entropy(before, target, label_smoothing=0.1).item()
    print(f"rank {rank}: loss with smoothing {got}, should be {smoothed}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
