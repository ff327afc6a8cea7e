"""stable-pretraining 0.1.8: gathers, statistics and losses over the batch of all ranks.

adjointlab check examples/released/released_stable_pretraining.py --check adjoint --check gradients

What a rank returns is the loss of its rows, of which DistributedDataParallel takes the mean, as it does of the gradients.
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

without_init("stable_pretraining", *(f"stable_pretraining.{part}" for part in ("utils", "losses", "methods")))
import stable_pretraining.utils.distributed as functions  # noqa: E402

# What modules take from their packages, and for their models.
vars(sys.modules["stable_pretraining.utils"]).update(vars(functions))
sys.modules["stable_pretraining"].Module = nn.Module
of_models = {
    "stable_pretraining.backbone": SimpleNamespace(MLP=nn.Module),
    "timm": SimpleNamespace(),
    "transformers": SimpleNamespace(),
    "transformers.utils": SimpleNamespace(ModelOutput=object),
}
with with_modules(of_models):
    from stable_pretraining.methods.lejepa import SlicedEppsPulley

from stable_pretraining.losses.joint_embedding import NTXEntLoss, VICRegLoss  # noqa: E402
from stable_pretraining.losses.multimodal import CLIPLoss  # noqa: E402
from stable_pretraining.utils.stats import mean_var  # noqa: E402


def check_gather(name, function, shape, **options):
    def cases(draw, ranks):
        rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        return dict(
            gain=ranks,
            domain=al.Space.of_dtensor((ranks,), [Shard(0)], (ranks * rows, columns)),
            codomain=al.Space.of_dtensor((ranks,), ["replicated"], shape(ranks, rows, columns)),
        )

    return al.subject.autograd(
        function, process_group=True, orders=("row-major",), name=f"stable_pretraining.{name}", **options
    )(cases)


gathers = check_gather(
    "gather",
    lambda x: torch.cat(functions.all_gather(x)),
    lambda ranks, rows, columns: (ranks * rows, columns),
)
layers = check_gather("gather_layer", functions.FullGatherLayer.apply, lambda *sides: sides, ranks=(2,))


class Normalized(nn.Module):
    """Rows less their mean, divided by the root of their variance."""

    def __init__(self, is_even):
        super().__init__()
        self.is_even = is_even

    def forward(self, x):
        mean, variance, _ = mean_var(x, same_shape_across_devices=self.is_even)
        return (x - mean) / (variance + 1).sqrt()


def check_statistics(name, is_even):
    def cases(draw, ranks):
        rows = ranks * draw(st.integers(2, 3)) + (0 if is_even else draw(st.integers(0, ranks - 1)))
        return dict(
            inputs=(rows, draw(st.integers(1, 3))),
            is_even=is_even,
            dtype="float32",
            input_placements=[[Shard(0)]],
            output_placements=[[Shard(0)]],
        )

    return al.subject.parallel(
        Normalized,
        lambda module, mesh: module,
        prepare=torch.sin,
        name=f"stable_pretraining.{name}",
    )(cases)


statistics = check_statistics("statistics", True)
uneven_statistics = check_statistics("statistics.uneven", False)


class Loss(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make, self.loss = make, make()

    def forward(self, *views):
        return self.loss(*views)


class LossOfAllRanks(Loss):
    def __init__(self, module):
        super().__init__(module.make)

    def forward(self, *views):
        return super().forward(*(x.contiguous() for x in views)) / dist.get_world_size()


def check(name, make, views=2, **options):
    def cases(draw, ranks):
        return dict(
            inputs=[(ranks * draw(st.integers(2, 3)), 3)] * views,
            input_placements=[[Shard(0)]] * views,
            output_placements=[[Partial()]],
            dtype="float32",
        )

    return al.subject.parallel(
        lambda: Loss(make),
        lambda module, mesh: LossOfAllRanks(module),
        prepare=lambda *views: [x.sin() for x in views],
        name=f"stable_pretraining.{name}",
        **options,
    )(cases)


contrasts = check("ntxent", NTXEntLoss)
pairs = check("clip", CLIPLoss)
covariances = check("vicreg", VICRegLoss)
normality = check("lejepa", lambda: SlicedEppsPulley(num_slices=3), views=1, ranks=(2,))
