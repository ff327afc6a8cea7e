"""ring-flash-attn 0.1.8: attention whose sequence is cut over the ranks, in four ways, two of them with packed documents.

adjointlab check examples/released/released_ring_flash_attn.py --check sequential --check gradients

The kernel is for float16 and bfloat16, and so tensors of these are given to it; here formulas stand in its place.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import flash_attention
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from parts_of_packages import without_init
from torch import nn
from torch.distributed.tensor import Shard

import adjointlab as al

flash_attention.install()
without_init("ring_flash_attn")
from ring_flash_attn import llama3_flash_attn_varlen, zigzag_ring_flash_attn_varlen  # noqa: E402
from ring_flash_attn.ring_flash_attn import ring_flash_attn_func  # noqa: E402
from ring_flash_attn.stripe_flash_attn import stripe_flash_attn_func  # noqa: E402
from ring_flash_attn.zigzag_ring_flash_attn import zigzag_ring_flash_attn_func  # noqa: E402


class Attention(nn.Module):
    """Attention of a sequence of documents, in the order in which the ranks hold its elements; heads of keys are shared."""

    def __init__(self, causal, ends, order):
        super().__init__()
        self.causal, self.ends, self.order = causal, torch.tensor(ends), torch.tensor(order)

    def forward(self, *tensors):
        document = torch.bucketize(torch.arange(len(self.order)), self.ends[1:], right=True)
        allowed = document[:, None] == document
        if self.causal:
            allowed = allowed.tril()
        in_order = [x[:, self.order.argsort()].transpose(1, 2) for x in tensors]
        result = nn.functional.scaled_dot_product_attention(*in_order, attn_mask=allowed, enable_gqa=True)
        return result.transpose(1, 2)[:, self.order]


class CutAttention(nn.Module):
    def __init__(self, function, module, type):
        super().__init__()
        self.function, self.module, self.type = function, module, type

    def forward(self, *tensors):
        return self.function(*(x.to(self.type) for x in tensors), self.module).to(tensors[0].dtype)


def from_both_ends(ranks, ends):
    """The order where each rank has the chunks of its number, counted from the beginning and the end of each document."""
    order = []
    for rank in range(ranks):
        for start, end in pairwise(ends):
            chunks = torch.arange(start, end).chunk(2 * ranks)
            order += [*chunks[rank], *chunks[-1 - rank]]
    return list(map(int, order))


def in_stripes(ranks, ends):
    return [index for rank in range(ranks) for index in range(rank, ends[-1], ranks)]


def consecutive(ranks, ends):
    return list(range(ends[-1]))


def one_document(draw, ranks):
    return [0, 2 * ranks * draw(st.integers(1, 2))]


def even_documents(draw, ranks):
    lengths = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    return [0, *accumulate(2 * ranks * each for each in lengths)]


def any_documents(draw, ranks):
    length = ranks * draw(st.integers(1, 3))
    return [0, *sorted(draw(st.sets(st.integers(1, length - 1), max_size=3))), length]


def check(
    name,
    function,
    order,
    ends=one_document,
    causal=(True,),
    type=torch.float16,
    rounding="float16",
    ranks=(2, 3, 4),
):
    """On several ranks: with one, gloo sends nothing."""

    def cases(draw, ranks):
        batch = draw(st.integers(1, 2)) if ends is one_document else 1
        heads, number = draw(st.integers(1, 2)), ends(draw, ranks)
        queries = heads * draw(st.integers(1, 2))
        return dict(
            causal=draw(st.sampled_from(causal)),
            ends=number,
            order=order(ranks, number),
            inputs=[(batch, number[-1], each, 4) for each in (queries, heads, heads)],
            rounding=rounding,
            input_placements=[[Shard(1)]] * 3,
            output_placements=[[Shard(1)]],
        )

    return al.subject.parallel(
        Attention,
        lambda module, mesh: CutAttention(function, module, type),
        prepare=lambda *inputs: [x.sin() for x in inputs],
        one_batch_size=True,
        ranks=ranks,
        name=f"ring_flash_attn.{name}",
    )(cases)


def unpacked(function):
    return lambda *x: function(*x[:3], causal=x[3].causal)


def packed_zigzag(q, k, v, module):
    ends = (module.ends // dist.get_world_size()).to(torch.int32)
    longest = int(ends.diff().max())
    return zigzag_ring_flash_attn_varlen.zigzag_ring_flash_attn_varlen_func(
        q[0], k[0], v[0], ends, longest, causal=module.causal
    )[None]


def packed_gathered(q, k, v, module):
    ends = module.ends.to(torch.int32)
    own = llama3_flash_attn_varlen.llama3_flash_attn_prepare_cu_seqlens(
        ends, module.causal, dist.get_rank(), dist.get_world_size()
    )
    return llama3_flash_attn_varlen.llama3_flash_attn_varlen_func(
        q[0], k[0], v[0], *own[:4], heads_k_stride=1, local_k_slice=own[4], causal=module.causal
    )[None]


ring = check("ring", unpacked(ring_flash_attn_func), consecutive, causal=(True, False))
cast_gradients = check(
    "ring.cast",
    unpacked(ring_flash_attn_func),
    consecutive,
    causal=(False,),
    type=torch.float64,
    rounding="float32",
    ranks=(2,),
)
stripes = check("stripes", unpacked(stripe_flash_attn_func), in_stripes)
zigzag = check("zigzag", unpacked(zigzag_ring_flash_attn_func), from_both_ends)
packed_zigzags = check("zigzag.packed", packed_zigzag, from_both_ends, even_documents)
packed_gathers = check(
    "gathered.packed",
    packed_gathered,
    consecutive,
    any_documents,
    causal=(True, False),
    type=torch.float64,
    rounding=None,
)
