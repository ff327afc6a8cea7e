"""DeepSpeed 0.19: attention by Ulysses, with even and uneven heads, and the loss of a vocabulary that is cut.

adjointlab check examples/released/released_deepspeed.py --check sequential --check gradients
"""

from __future__ import annotations

import sys

import deepspeed.comm
import torch.distributed as dist
from cut_vocabulary import logits_and_targets
from deepspeed.sequence.cross_entropy import vocab_parallel_cross_entropy
from deepspeed.sequence.layer import DistributedAttention
from deepspeed.utils import groups
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import adjointlab as al

# It compiles code for CPUs when groups are opened, which takes longer than a rank may.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def initialize():
    deepspeed.comm.init_distributed("gloo", verbose=False)
    names = ("data_parallel", "sequence_parallel")
    groups.mesh_device = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=names)


class Attention(nn.Module):
    """Causal attention; the sequence is dimension 0 or 1, the batch the other one, and heads and features follow."""

    def __init__(self, sequence):
        super().__init__()
        self.sequence = sequence

    def forward(self, *tensors):
        q, k, v = (x.movedim(self.sequence, 1).transpose(1, 2) for x in tensors)
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).movedim(1, self.sequence)


class Ulysses(nn.Module):
    def __init__(self, attention):
        super().__init__()
        initialize()
        self.sequence = attention.sequence
        self.inner = DistributedAttention(attention, dist.group.WORLD, 2, self.sequence)

    def forward(self, *tensors):
        return self.inner(*tensors, 1 - self.sequence)


def check_attention(name, heads_of_keys):
    def cases(draw, ranks):
        sequence, batch = draw(st.integers(0, 1)), draw(st.integers(1, 2))
        sides = [batch, batch]
        sides[sequence] = ranks * draw(st.integers(1, 2))
        keys, groups_of_heads = heads_of_keys(draw, ranks)
        cut = [Shard(sequence)]
        return dict(
            inputs=[(*sides, heads, 2) for heads in (keys * groups_of_heads, keys, keys)],
            sequence=sequence,
            input_placements=[cut] * 3,
            output_placements=[cut],
        )

    return al.subject.parallel(
        Attention, lambda module, mesh: Ulysses(module), rank_local=("deepspeed",), name=f"deepspeed.{name}"
    )(cases)


attentions = check_attention(
    "attention", lambda draw, ranks: (ranks * draw(st.integers(1, 2)), draw(st.integers(1, 2)))
)
uneven_attentions = check_attention(
    "attention.uneven", lambda draw, ranks: (ranks + draw(st.integers(0, 3)), 1)
)


class Loss(nn.Module):
    def forward(self, logits, target):
        losses = cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
        return losses.reshape(target.shape)


class ParallelLoss(nn.Module):
    def forward(self, logits, target):
        return vocab_parallel_cross_entropy(logits, target, tp_group=dist.group.WORLD, reduction="none")


def parallel_loss(module, mesh):
    initialize()
    return ParallelLoss()


losses = al.subject.parallel(
    Loss,
    parallel_loss,
    prepare=lambda logits, target: (logits, target.abs() % 2),
    rank_local=("deepspeed",),
    name="deepspeed.loss",
)(logits_and_targets)
