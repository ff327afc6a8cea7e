"""diffusers 0.42.1: attention of a sequence that is cut, by a ring, by Ulysses and by both.

adjointlab check examples/released/released_diffusers.py --check sequential --check gradients

A ring multiplies with kernels for GPUs, which it is given as two functions: here with two for any device.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from diffusers.models._modeling_parallel import ContextParallelConfig, ParallelConfig
from diffusers.models.attention_dispatch import _templated_context_parallel_attention, dispatch_attention_fn
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn.functional import scaled_dot_product_attention

import adjointlab as al


class Attention(nn.Module):
    """Attention of queries, keys and values in the order batch, sequence, heads, features."""

    def forward(self, *tensors):
        return scaled_dot_product_attention(*(x.transpose(1, 2) for x in tensors)).transpose(1, 2)


def scores(query, key):
    return torch.einsum("bqhd,bkhd->bqhk", query, key) / query.shape[-1] ** 0.5


def attend(ctx, query, key, value, *options, _save_ctx, _parallel_config):
    if _save_ctx:
        ctx.save_for_backward(query, key, value)
    s = scores(query, key)
    return torch.einsum("bqhk,bkhd->bqhd", s.softmax(-1), value), s.logsumexp(-1)


def gradients_of_attention(ctx, gradient, query, key, value, out, lse):
    weights = (scores(query, key) - lse[..., None]).exp()
    of_weights = torch.einsum("bqhd,bkhd->bqhk", gradient, value)
    of_scores = weights * (of_weights - (gradient * out).sum(-1, keepdim=True)) / query.shape[-1] ** 0.5
    return (
        torch.einsum("bqhk,bkhd->bqhd", of_scores, key),
        torch.einsum("bqhk,bqhd->bkhd", of_scores, query),
        torch.einsum("bqhk,bqhd->bkhd", weights, gradient),
    )


class ParallelAttention(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.is_ring = mesh.shape[0] > 1
        self.config = ParallelConfig(ContextParallelConfig(*mesh.shape, convert_to_fp32=False))
        self.config.setup(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), mesh=mesh)

    def forward(self, *tensors):
        if not self.is_ring:
            return dispatch_attention_fn(*tensors, parallel_config=self.config)
        return _templated_context_parallel_attention(
            *tensors, forward_op=attend, backward_op=gradients_of_attention, _parallel_config=self.config
        )


def finite(*tensors):
    """Parts of an attention are not to be put together where their scores are infinite."""
    return [x.sin() for x in tensors]


def check(name, ranks, ring_of):
    """Attention on these numbers of ranks, a ring of `ring_of(ranks)` of them."""

    def cases(draw, ranks):
        ring = ring_of(ranks)
        batch, heads = draw(st.integers(1, 2)), ranks // ring * draw(st.integers(1, 2))
        cut = [Shard(1), Shard(1)]
        return dict(
            inputs=[(batch, ranks * draw(st.integers(1, 2)), heads, 2)] * 3,
            mesh={"ring": ring, "ulysses": ranks // ring},
            input_placements=[cut] * 3,
            output_placements=[cut],
        )

    return al.subject.parallel(
        Attention,
        lambda module, mesh: ParallelAttention(mesh),
        prepare=finite,
        ranks=ranks,
        name=f"diffusers.{name}",
    )(cases)


rings = check("ring", (2,), lambda ranks: ranks)
rings_of_three = check("ring.three", (3,), lambda ranks: ranks)
ulysses = check("ulysses", (2, 3, 4), lambda ranks: 1)
both = check("ring_and_ulysses", (4,), lambda ranks: 2)
