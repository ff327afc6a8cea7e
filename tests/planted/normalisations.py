"""Planted bugs of normalisations: statistics of parts, of several kinds, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch

from adjointlab.layers.batch_norm import BatchNormalisation
from adjointlab.layers.group_norm import GroupNorm
from adjointlab.layers.instance_norm import InstanceNormalisation
from adjointlab.layers.layer_norm import LayerNorm, RMSNorm
from tests.planted.altered import Altered, not_reduced


class LocalStatistics(BatchNormalisation):
    """Normalises by what the worker itself holds."""

    def _measured(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if not x.numel():
            return x, x.new_ones(x.shape[1])
        others = self.moments.dims
        mean, variance = x.mean(others), x.var(others, unbiased=False)
        if self.training:
            self._track(mean.detach(), variance.detach())
        return x - self._along(mean), variance


def average_parts(layer: BatchNormalisation | GroupNorm) -> None:
    """Have the layer take the mean of the workers' mean squares, as if all of them held as much."""
    (x,), moments = layer.domain.tensors, layer.moments
    summed, shape = moments.sum_pairs, x.layout.local_shape(layer.rank)
    of_each = math.prod(shape[dim] for dim in moments.dims)
    workers = math.prod(layer.partition.shape[dim] for dim in moments.dims)
    share = moments.count / (of_each * workers) if of_each else 0.0
    moments.sum_pairs = Altered(  # type: ignore[assignment]
        summed, forward=lambda s: summed.forward(s * share), adjoint=lambda t: summed.adjoint(t) * share
    )


class VariancesAveraged(BatchNormalisation):
    """Takes the mean of the workers' mean squares, as if all of them held as much."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        average_parts(self)


class RunningVarianceBiased(BatchNormalisation):
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        super()._track(mean, variance * ((self.moments.count - 1) / self.moments.count))


class RunningStatisticsUpdatedInEvaluation(BatchNormalisation):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and self.track_running_stats and self.moments.count > 1:
            self.training = True
            with torch.no_grad():
                self._measured(x)
            self.training = False
        return super().forward(x)


class StatisticsGradientNotReduced(BatchNormalisation):
    """All-reduces whose backward pass is the identity."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        moments = self.moments
        moments.sum = Altered(moments.sum, adjoint=torch.clone)  # type: ignore[assignment]
        moments.sum_pairs = Altered(moments.sum_pairs, adjoint=torch.clone)  # type: ignore[assignment]


class GroupVariancesAveraged(GroupNorm):
    """As :class:`VariancesAveraged`, over the spatial parts of a group."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        average_parts(self)


class GroupsCountedLocally(GroupNorm):
    """Takes the first channel that the worker holds for the first of the tensor."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        groups = self.moments._group_of
        if groups is not None and groups.numel():
            self.moments._group_of = groups - groups[0]


class NormWeightGradientNotReduced(LayerNorm):
    """Each worker along the sequence keeps the gradient of its own part, as without Megatron's all-reduction of such weights."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spread = not_reduced(self.spread)  # type: ignore[assignment]


class RootMeanSquareOfTheOwnPart(RMSNorm):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        parts = math.prod(self.partition.shape[dim] for dim in self.moments.dims)
        summed = self.moments.sum
        self.moments.sum = Altered(summed, forward=lambda s: s * parts, adjoint=lambda t: t * parts)  # type: ignore[assignment]


class RunningStatisticsOfTheLocalBatch(InstanceNormalisation):
    """Updates the running statistics with the samples of this worker alone."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        summed, batch = self.sum_batch, self.domain.tensors[0].layout.local_shape(self.rank)[0]
        if self.channel_dim:
            share = self.batch / batch if batch else 0.0
            self.sum_batch = Altered(summed, forward=lambda s: s * share)  # type: ignore[assignment]
