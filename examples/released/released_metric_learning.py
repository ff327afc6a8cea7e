"""pytorch-metric-learning 2.9.0: `DistributedLossWrapper`, a loss over the embeddings of all ranks.

adjointlab check examples/released/released_metric_learning.py --check gradients

It returns the loss of the whole batch, times the number of ranks: the mean of gradients that DistributedDataParallel takes is then their sum.
"""

from __future__ import annotations

import torch.distributed as dist
from hypothesis import strategies as st
from pytorch_metric_learning import losses
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import nn
from torch.distributed.tensor import Shard

import adjointlab as al

CLASSES, FEATURES = 2, 3


class Loss(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.loss = make()

    def forward(self, embeddings, labels):
        return self.loss(embeddings, labels)


class LossOfAllRanks(Loss):
    def __init__(self, loss):
        super().__init__(lambda: loss.loss)

    def forward(self, embeddings, labels):
        return DistributedLossWrapper(self.loss)(embeddings, labels) / dist.get_world_size()


def sum_gradients(module):
    """The mean that DistributedDataParallel takes of the gradients of N times the loss."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def check(name, make, **options):
    def cases(draw, ranks):
        rows = ranks * draw(st.integers(2, 3))
        return dict(
            inputs=[(rows, FEATURES), (rows,)],
            input_dtypes=["float64", "int64"],
            input_placements=[[Shard(0)]] * 2,
        )

    return al.subject.parallel(
        lambda: Loss(make),
        lambda module, mesh: LossOfAllRanks(module),
        prepare=lambda embeddings, labels: (embeddings.sin(), labels.abs() % CLASSES),
        name=f"metric_learning.{name}",
        **options,
    )(cases)


def proxies():
    return losses.NormalizedSoftmaxLoss(CLASSES, FEATURES)


contrastive = check("contrastive", losses.ContrastiveLoss)
cross_entropy = check("ntxent", losses.NTXentLoss)
similarities = check("multi_similarity", losses.MultiSimilarityLoss)
with_proxies = check("softmax", proxies)
averaged_proxies = check("softmax.averaged", proxies, after_backward=sum_gradients)
