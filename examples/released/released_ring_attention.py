"""ring-attention-pytorch 0.5.20: attention of a sequence that is cut, by a ring and by gathered keys and values.

adjointlab check examples/released/released_ring_attention.py --check sequential --check gradients

The package asks for its rank once, and keeps it: each simulated rank needs its variables for itself.
"""

from __future__ import annotations

import torch.distributed as dist
from hypothesis import strategies as st
from ring_attention_pytorch.distributed import all_gather
from ring_attention_pytorch.ring_flash_attention import ring_flash_attn
from ring_attention_pytorch.zig_zag_attention import zig_zag_attn, zig_zag_shard
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn.functional import scaled_dot_product_attention

import adjointlab as al
from adjointlab.adapters.regions import region

PACKAGE = ("ring_attention_pytorch",)


class Attention(nn.Module):
    """Attention of queries, keys and values in the order batch, sequence, heads, features."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal

    def forward(self, *tensors):
        q, k, v = (x.transpose(1, 2) for x in tensors)
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat(1, groups, 1, 1) for x in (k, v))  # torch's own attention has another order of heads
        return scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2)


class RingAttention(Attention):
    def forward(self, *tensors):
        return ring_flash_attn(*tensors, causal=self.causal, bucket_size=2, ring_reduce_col=True)


def ring_cases(draw, ranks):
    length = 2 * ranks * draw(st.integers(1, 2))  # of each rank a multiple of the bucket
    batch, heads, groups = (draw(st.integers(1, 2)) for _ in range(3))
    cut = [Shard(1)]
    return dict(
        inputs=[(batch, length, each, 3) for each in (heads * groups, heads, heads)],
        causal=draw(st.booleans()),
        input_placements=[cut] * 3,
        output_placements=[cut],
        dtype="float32",  # in which it sums, whatever the type
    )


rings = al.subject.parallel(
    Attention, lambda module, mesh: RingAttention(module.causal), rank_local=PACKAGE, name="ring.attention"
)(ring_cases)


class SelfAttention(nn.Module):
    """Causal attention with one head, of tensors in the order batch, sequence, features."""

    def __init__(self, features):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(features, features, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = (project(x)[:, None] for project in (self.to_q, self.to_k, self.to_v))
        return scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]


class ZigZagAttention(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.to_q, self.to_k, self.to_v = attention.children()

    def forward(self, x):
        (x, queries, keys), inverse = zig_zag_shard(x)
        q, k, v = (project(x)[:, None] for project in (self.to_q, self.to_k, self.to_v))
        return inverse(zig_zag_attn(q, k, v, attn_mask=(queries[:, None] >= keys)[None, None])[:, 0])


def sum_gradients(module):
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def zig_zag_cases(draw, ranks):
    return dict(inputs=(draw(st.integers(1, 2)), 2 * ranks * draw(st.integers(1, 2)), 3))


zig_zags = al.subject.parallel(
    lambda: SelfAttention(3),
    lambda module, mesh: ZigZagAttention(module),
    after_backward=sum_gradients,
    rank_local=PACKAGE,
    name="ring.zig_zag",
)(zig_zag_cases)


def gathered(x):
    return all_gather(x, 0, None)[0]


@al.subject.autograd(gathered, process_group=True, rank_local=PACKAGE, name="ring.all_gather")
def gathers(draw, ranks):
    sizes = [draw(st.integers(0, 3)) for _ in range(ranks)]
    sizes[0] += 1
    return region("gather sequence, whole gradient", (sum(sizes), 2), ranks, sizes=sizes)
