"""lightly 1.6.0: losses over the batch of all ranks.

adjointlab check examples/released/released_lightly.py --check gradients

What a rank returns is the loss of its rows, of which DistributedDataParallel takes the mean, as it does of the gradients.
"""

from __future__ import annotations

import torch.distributed as dist
from hypothesis import strategies as st
from parts_of_packages import without_init
from torch import nn
from torch.distributed.tensor import Partial, Shard

import adjointlab as al

# It imports models, and so torchvision.
without_init("lightly", "lightly.utils", "lightly.loss", "lightly.models", "lightly.models.modules")
from lightly.loss.dcl_loss import DCLLoss, DCLWLoss  # noqa: E402
from lightly.loss.tico_loss import TiCoLoss  # noqa: E402
from lightly.loss.vicreg_loss import VICRegLoss  # noqa: E402


class Loss(nn.Module):
    def __init__(self, make, gathers=False):
        super().__init__()
        self.make, self.loss = make, make(gather_distributed=gathers)

    def forward(self, *views):
        return self.loss(*views)


class LossOfAllRanks(Loss):
    def __init__(self, loss):
        super().__init__(loss.make, gathers=True)

    def forward(self, *views):
        return super().forward(*views) / dist.get_world_size()


def check(name, make, **options):
    def cases(draw, ranks):
        return dict(
            inputs=[(ranks * draw(st.integers(2, 3)), 3)] * 2,
            input_placements=[[Shard(0)]] * 2,
            output_placements=[[Partial()]],
        )

    return al.subject.parallel(
        lambda: Loss(make),
        lambda module, mesh: LossOfAllRanks(module),
        prepare=lambda *views: [x.sin() for x in views],
        name=f"lightly.{name}",
        **options,
    )(cases)


decoupled = check("dcl", DCLLoss)
covariances = check("vicreg", VICRegLoss)
invariant = check("tico", TiCoLoss)
weighted = check("dclw", DCLWLoss, ranks=(2,))
