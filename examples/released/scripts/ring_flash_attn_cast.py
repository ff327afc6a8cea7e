"""ring-flash-attn 0.1.8: the gradient of queries of float16 is rounded to bfloat16, in the ring alone: it casts to this type by name.

The kernel needs a GPU, and formulas stand in its place.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

import flash_attention
from parts_of_packages import without_init

flash_attention.install()
without_init("ring_flash_attn")
from ring_flash_attn.ring_flash_attn import ring_flash_attn_func  # noqa: E402
from ring_flash_attn.zigzag_ring_flash_attn import zigzag_ring_flash_attn_func  # noqa: E402


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    inputs = [torch.randn(1, 8, 2, 4, dtype=torch.float16) for _ in range(3)]
    for attention in (ring_flash_attn_func, zigzag_ring_flash_attn_func):
        q, k, v = (x.clone().requires_grad_() for x in inputs)
        attention(q, k, v, causal=True).square().sum().backward()
        for name, x in (("queries", q), ("keys", k), ("values", v)):
            kept = (x.grad.bfloat16().half() == x.grad).float().mean().item()
            print(
                f"rank {rank}, {attention.__name__}: bfloat16 holds {kept:.0%} of the gradients of {name} as they are"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
