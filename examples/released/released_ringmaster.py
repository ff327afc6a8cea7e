"""axolotl-ringmaster 0.2.7: attention with the sequence in parts, its gathers, and a recurrence.

adjointlab check examples/released/released_ringmaster.py --check adjoint --check gradients
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from exchanges import exchange, length_and_heads
from hypothesis import strategies as st
from ringmaster.comm import seq_all_to_all
from ringmaster.config import RotateMethod
from ringmaster.cp_collectives import all_gather_cp, seq_gather_cp
from ringmaster.ring.distflash import distflash_attention
from ringmaster.ring.loop import ring_attention, varlen_ring_attention
from ringmaster.ring.p2p_attn import ring_p2p_attention
from ringmaster.strategies.state_passing import cp_linear_scan, local_linear_scan
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import adjointlab as al


def group():
    return dist.group.WORLD


def exchanged(x, scatter, gather):
    return seq_all_to_all(x, scatter, gather, group())


exchanges = exchange("ringmaster.exchange", exchanged, length_and_heads, (1, 2))


@al.subject.autograd(lambda x: all_gather_cp(x, group()), process_group=True, name="ringmaster.gather_states")
def states(draw, ranks):
    rows = draw(st.integers(1, 3))
    domain = al.Space.of_dtensor((ranks,), [Shard(0)], (rows * ranks, 2))
    stacked = al.Space.of_dtensor((ranks,), ["replicated"], (ranks, rows, 2))
    return dict(domain=domain, codomain=stacked, gain=ranks)


@al.subject.autograd(
    lambda x: seq_gather_cp(x, group()),
    process_group=True,
    reference=lambda x: x,
    name="ringmaster.gather_outputs",
)
def outputs(draw, ranks):
    shape = 2, ranks * draw(st.integers(1, 3)), 2
    spaces = [al.Space.of_dtensor((ranks,), [kind], shape) for kind in (Shard(1), Replicate())]
    return dict(domain=spaces[0], codomain=spaces[1], gain=ranks)


class Parallel(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Attention(nn.Module):
    """Documents end where `ends` says; heads of keys are used by several heads of queries."""

    def __init__(self, causal, ends):
        super().__init__()
        self.causal, self.ends = causal, torch.tensor(ends, dtype=torch.int32)

    def forward(self, q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        document = torch.repeat_interleave(torch.arange(len(self.ends) - 1), self.ends.diff())
        allowed = document[:, None] == document
        if self.causal:
            allowed = allowed.tril()
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed).transpose(1, 2)


def check(name, function, packed=False, causal=(True, False), shares_keys=True, **options):
    """With attention ``function(q, k, v, module)``, in the order batch, heads, sequence, features; its sums are in float32."""

    def cases(draw, ranks):
        length = ranks * draw(st.integers(1, 3))
        inner = draw(st.sets(st.integers(1, length - 1), max_size=3)) if packed and length > 1 else ()
        heads, batch = draw(st.integers(1, 2)), 1 if packed else draw(st.integers(1, 2))
        queries = heads * (draw(st.integers(1, 2)) if shares_keys else 1)
        return dict(
            causal=draw(st.sampled_from(causal)),
            ends=[0, *sorted(inner), length],
            inputs=[(batch, each, length, 4) for each in (queries, heads, heads)],
            input_placements=[[Shard(2)]] * 3,
            output_placements=[[Shard(1)]],
            rounding="float32",
        )

    return al.subject.parallel(
        Attention,
        lambda module, mesh: Parallel(lambda *inputs: function(*inputs, module)),
        prepare=lambda *inputs: [x.sin() for x in inputs],
        one_batch_size=packed,
        name=f"ringmaster.{name}",
        **options,
    )(cases)


ring = check(
    "ring",
    lambda *x: ring_p2p_attention(*x[:3], group=group(), causal=x[3].causal, scaling=None),
    ranks=(2, 3, 4),  # its callers leave out a ring of one, in which gloo sends nothing
)
gathered = check(
    "gathered",
    lambda *x: ring_attention(
        *x[:3],
        group=group(),
        causal=x[3].causal,
        scaling=None,
        dropout=0.0,
        provider="math",
        rotate_method=RotateMethod.ALLGATHER,
        attn_implementation="math",
    ),
)
balanced = check(
    "balanced",
    lambda *x: distflash_attention(*x[:3], group=group(), scaling=None),
    causal=[True],
    shares_keys=False,
)
packed_and_gathered = check(
    "gathered.packed",
    lambda *x: varlen_ring_attention(
        *x[:3], group=group(), scaling=None, cu_seqlens=x[3].ends, causal=x[3].causal
    ),
    packed=True,
)
packed_and_balanced = check(
    "balanced.packed",
    lambda *x: distflash_attention(*x[:3], group=group(), scaling=None, cu_seqlens=x[3].ends),
    packed=True,
    causal=[True],
)


class Recurrence(nn.Module):
    def forward(self, factors, summands):
        return local_linear_scan(factors, summands)


@al.subject.parallel(
    Recurrence,
    lambda module, mesh: Parallel(lambda *inputs: cp_linear_scan(*inputs, group())),
    prepare=lambda *inputs: [x.sin() for x in inputs],
    name="ringmaster.recurrence",
)
def recurrences(draw, ranks):
    length = ranks * draw(st.integers(1, 3))
    return dict(
        inputs=[(2, length, 3)] * 2, input_placements=[[Shard(1)]] * 2, output_placements=[[Shard(1)]]
    )
