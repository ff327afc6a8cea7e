"""open_clip 3.3.0: losses over the batch of all ranks.

adjointlab check examples/released/released_open_clip.py --check gradients

What a rank returns is the loss of its rows, of which DistributedDataParallel takes the mean, as it does of the gradients: a summand here, and
N times too large.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from open_clip.loss import ClipLoss, SigLipLoss
from torch import nn
from torch.distributed.tensor import Partial, Shard

import adjointlab as al


class Loss(nn.Module):
    """The loss of images and texts, with the scale that it learns."""

    def __init__(self, make):
        super().__init__()
        self.scale, self.make = nn.Parameter(torch.ones(())), make

    def forward(self, images, texts):
        return self.make()(images, texts, self.scale, None)


class LossOfAllRanks(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.scale = loss.scale
        self.loss = loss.make(rank=dist.get_rank(), world_size=dist.get_world_size())

    def forward(self, images, texts):
        # Messages take contiguous features only, as models return them.
        return self.loss(images, texts.contiguous(), self.scale, None) / dist.get_world_size()


def sum_gradients(module):
    if module.scale.grad is not None:
        dist.all_reduce(module.scale.grad)


def features(*tensors):
    """Features of moderate size."""
    return [x.sin() for x in tensors]


def check(name, loss, **arguments):
    def make(**ranks):
        return loss(**arguments, **ranks)

    def cases(draw, ranks):
        rows = [Shard(0)]
        return dict(
            inputs=[(ranks * draw(st.integers(1, 3)), 3)] * 2,
            input_placements=[rows, rows],
            output_placements=[[Partial()]],
            frozen=0,
        )

    return al.subject.parallel(
        lambda: Loss(make),
        lambda module, mesh: LossOfAllRanks(module),
        prepare=features,
        after_backward=sum_gradients,
        name=f"open_clip.{name}",
    )(cases)


local = check("clip.local", ClipLoss, local_loss=True, gather_with_grad=True)
whole = check("clip.whole", ClipLoss, gather_with_grad=True)
by_default = check("clip.default", ClipLoss)
sigmoids_reduced = check("siglip.reduce", SigLipLoss, dist_impl="reduce")
sigmoids_gathered = check("siglip.gather", SigLipLoss, dist_impl="gather")
sigmoids_shifted = check("siglip.shift", SigLipLoss, dist_impl="shift")
sigmoids_both_ways = check("siglip.bidir", SigLipLoss, dist_impl="bidir")
