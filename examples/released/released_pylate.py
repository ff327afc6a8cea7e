"""pylate 1.6.0: contrastive losses over the batch of all ranks, at once and in small batches whose gradients are kept.

adjointlab check examples/released/released_pylate.py --check gradients

With gathers, the loss of a rank is multiplied by the number of ranks: a convention, for a sum over the ranks in place of a mean.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from parts_of_packages import with_modules, without_init
from torch import nn
from torch.distributed.tensor import Partial, Shard

import adjointlab as al

without_init("pylate", "pylate.losses", "pylate.utils")
import pylate.utils.distributed as functions  # noqa: E402

vars(sys.modules["pylate.utils"]).update(vars(functions))


class ColBERT:
    """As far as the losses need it."""

    @staticmethod
    def skiplist_mask(input_ids, skiplist):
        return ~torch.isin(input_ids, torch.tensor(skiplist))


with with_modules({"pylate.models": SimpleNamespace(ColBERT=ColBERT)}):
    from pylate.losses.cached_contrastive import CachedContrastive
    from pylate.losses.contrastive import Contrastive

WORDS = 7


class Model(nn.Module):
    skiplist, do_query_expansion = (0,), False

    def __init__(self):
        super().__init__()
        self.embed, self.project = nn.Embedding(WORDS, 4), nn.Linear(4, 3)

    def forward(self, features):
        return {"token_embeddings": self.project(self.embed(features["input_ids"]).sin())}


class Loss(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.model, self.mean = Model(), mean

    def forward(self, *texts):
        loss = Contrastive(self.model, size_average=self.mean)
        return loss([dict(input_ids=x, attention_mask=torch.ones_like(x)) for x in texts])


class LossOfAllRanks(nn.Module):
    def __init__(self, module, make):
        super().__init__()
        self.model, self.mean, self.make = module.model, module.mean, make

    def forward(self, *texts):
        loss = self.make(self.model, size_average=self.mean, gather_across_devices=True)
        ranks = dist.get_world_size()
        # Of a sum: the ranks' own parts of it, multiplied by their number.
        scale = ranks**2 if self.mean else ranks
        features = [dict(input_ids=x.contiguous(), attention_mask=torch.ones_like(x)) for x in texts]
        return loss(features) / scale


def sum_gradients(module):
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def check(name, make, mean=True, **options):
    def cases(draw, ranks):
        rows, documents = ranks * draw(st.integers(1, 3)), draw(st.integers(1, 2))
        return dict(
            inputs=[(rows, 2), *[(rows, 3)] * documents],
            input_dtypes=["int64"] * (1 + documents),
            dtype="float32",
            mean=mean,
            frozen=0,
            input_placements=[[Shard(0)]] * (1 + documents),
            output_placements=[[Partial()]],
        )

    return al.subject.parallel(
        Loss,
        lambda module, mesh: LossOfAllRanks(module, make),
        prepare=lambda *texts: [x.abs() % WORDS for x in texts],
        after_backward=sum_gradients,
        name=f"pylate.{name}",
        **options,
    )(cases)


def in_small_batches(model, **options):
    return CachedContrastive(model, mini_batch_size=2, **options)


at_once = check("contrastive", Contrastive)
sums_of_small_batches = check("cached.sum", in_small_batches, mean=False)
small_batches = check("cached", in_small_batches)
