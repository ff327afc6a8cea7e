"""ring-attention-pytorch 0.5.20: the gradients of keys and of values by `ring_flash_attn` are both the sum of the two."""

import tempfile

import torch
import torch.distributed as dist
from ring_attention_pytorch.ring_flash_attention import ring_flash_attn
from torch.nn.functional import scaled_dot_product_attention


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    whole = [torch.randn(1, 2 * ranks, 1, 2).requires_grad_() for _ in range(3)]
    q, k, v = (x.transpose(1, 2) for x in whole)
    scaled_dot_product_attention(q, k, v).square().sum().backward()

    local = [x.detach()[:, 2 * rank : 2 * rank + 2].clone().requires_grad_() for x in whole]
    ring_flash_attn(*local, ring_reduce_col=True, bucket_size=2).square().sum().backward()
    for name, got, want in zip("qkv", local, whole, strict=True):
        should = want.grad[0, 2 * rank, 0].tolist()
        print(f"rank {rank}: {name}.grad[0, 0, 0] = {got.grad[0, 0, 0].tolist()}, should be {should}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
