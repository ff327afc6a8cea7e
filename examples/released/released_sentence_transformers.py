"""sentence-transformers 6.2.0: contrastive losses over the batch of all ranks, at once and in small batches whose gradients are kept.

adjointlab check examples/released/released_sentence_transformers.py --check gradients

What a rank returns is the loss of its rows, of which DistributedDataParallel takes the mean, as it does of the gradients.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer import losses
from torch import nn
from torch.distributed.tensor import Partial, Shard

import adjointlab as al

WORDS = 7


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.project = nn.Embedding(WORDS, 4), nn.Linear(4, 3)

    def forward(self, features):
        return {"sentence_embedding": self.project(self.embed(features["input_ids"]).sin().mean(1))}


class Loss(nn.Module):
    def __init__(self, kind, options):
        super().__init__()
        self.model, self.kind, self.options = nn.Sequential(Embedding()), kind, options

    def forward(self, *texts):
        features = [dict(input_ids=x, attention_mask=torch.ones_like(x)) for x in texts]
        return getattr(losses, self.kind)(self.model, scale=2.0, **self.options)(features, None)


class LossOfAllRanks(Loss):
    def __init__(self, module, kind, options):
        super().__init__(kind, options | dict(gather_across_devices=True))
        self.model = module.model

    def forward(self, *texts):
        return super().forward(*(x.contiguous() for x in texts)) / dist.get_world_size()


def sum_gradients(module):
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


KIND = "MultipleNegativesRankingLoss"
DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


def check(name, kind, **small):
    def cases(draw, ranks):
        rows, documents = ranks * draw(st.integers(2, 4)), draw(st.integers(1, 2))
        also = draw(st.sets(st.sampled_from(DIRECTIONS[1:])))
        options = dict(
            directions=DIRECTIONS[:1] + tuple(sorted(also)),
            hardness_mode=draw(
                st.sampled_from([None, "in_batch_negatives", "hard_negatives", "all_negatives"])
            ),
            hardness_strength=0.5,
        )
        return dict(
            inputs=[(rows, 2), *[(rows, 3)] * documents],
            input_dtypes=["int64"] * (1 + documents),
            dtype="float32",
            kind=KIND,
            options=options,
            frozen=0,
            input_placements=[[Shard(0)]] * (1 + documents),
            output_placements=[[Partial()]],
        )

    return al.subject.parallel(
        Loss,
        lambda module, mesh: LossOfAllRanks(module, kind, module.options | small),
        prepare=lambda *texts: [x.abs() % WORDS for x in texts],
        after_backward=sum_gradients,
        name=f"sentence_transformers.{name}",
    )(cases)


at_once = check("ranking", KIND)
small_batches = check("ranking.cached", f"Cached{KIND}", mini_batch_size=2)
