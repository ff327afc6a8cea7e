"""ring-attention-pytorch 0.5.20: gradients of keys and values by `zig_zag_attn` leave out what the other ranks did with their copies."""

import tempfile

import torch
import torch.distributed as dist
from ring_attention_pytorch.zig_zag_attention import zig_zag_attn, zig_zag_shard
from torch.nn.functional import scaled_dot_product_attention


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    whole = [torch.randn(1, 1, 2 * ranks, 2).requires_grad_() for _ in range(3)]
    scaled_dot_product_attention(*whole, is_causal=True).square().sum().backward()

    (_, queries, keys), _ = zig_zag_shard(whole[0].detach()[:, 0])
    local = [x.detach()[:, :, queries].clone().requires_grad_() for x in whole]
    zig_zag_attn(*local, attn_mask=(queries[:, None] >= keys)[None, None]).square().sum().backward()
    for name, got, want in zip("qkv", local, whole, strict=True):
        should = want.grad[0, 0, queries[0]].tolist()
        print(f"rank {rank}: {name}.grad[0, 0, 0] = {got.grad[0, 0, 0].tolist()}, should be {should}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
