"""Distributed instance normalisation: y = d (σ² + ε)^(-1/2) ŵ + b̂ with statistics of each sample's channels.

    forward    ŵ = B w    b̂ = B b                     over all dimensions of the partition but the channels'
               (d, σ²): deviation and variance over the spatial dimensions (moments.py)
    adjoint    that of each step in the reverse order

Running statistics are means over the batch, 𝒜 Σ μ / N and 𝒜 Σ σ² n / (n - 1) / N, the same on all workers that hold the channels.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.layers.differentiable import carried
from adjointlab.layers.moments import SUMS, Moments
from adjointlab.layers.normalisation import ChannelNormalisation
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.all_sum_reduce import AllSumReduce

__all__ = ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "InstanceNormalisation"]

_TorchInstanceNorm: TypeAlias = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


class InstanceNormalisation(
    ChannelNormalisation, torch_classes=(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
):
    """`torch.nn.InstanceNorm1d`, `2d` or `3d` over `partition`, of the order of the input, with or without a batch, cut in any dimension.

    Weight and bias lie on the workers whose index is 0 in all dimensions but the channels'; the running statistics, on every worker
    that holds their channels.

    Raises `ValueError`, with torch's message if there is one, for an input of an order that the layer does not take or
    without `num_features` channels, and for a partition of another order; in a call, for statistics of one element.
    """

    def lay_out(self, module: _TorchInstanceNorm) -> None:
        partition, shape = self.partition, self.input_shape
        # Private to torch (2.13), but it raises the same error as a call of the class, and computes nothing.
        module._check_input_dim(torch.empty(()).expand(shape))
        without_batch: int = module._get_no_batch_dim()
        self.channel_dim = len(shape) - without_batch
        self.check_order(shape)
        x = Layout(shape, partition)
        spatial = tuple(range(self.channel_dim + 1, len(shape)))
        self.batch, self.spatial_size = (shape[0] if self.channel_dim else 1), math.prod(shape[spatial[0] :])
        self.moments = Moments(self.comm, x, spatial)
        per_channel = self.take_channels(module, x, self.channel_dim)
        pairs = Layout(
            (2, self.num_features), partition, [((0, 2),), *per_channel.windows], (None, self.channel_dim)
        )
        along_batch = (0,) if self.channel_dim else ()
        self.sum_batch = AllSumReduce(self.comm, pairs, along_batch, dtype=dtype_name(SUMS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        weight, bias = self.learnt()
        uses_own = self.training or not self.track_running_stats
        if uses_own or self.running_mean is None or self.running_var is None:
            deviation, variance = self._measured(x)
            scale = self.moments.along(torch.rsqrt(variance + self.eps).to(deviation.dtype))
        else:
            deviation, variance = self.from_running(x, self.running_mean, self.running_var)
            scale = self._along(torch.rsqrt(variance + self.eps))
        return self.times(deviation, scale, weight, bias)

    def _measured(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.spatial_size == 1:
            raise ValueError(
                "Expected more than 1 spatial element when training, got input size "
                f"{torch.Size(self.input_shape)}"
            )
        deviation, mean, variance = self.moments.deviation(x)
        if self.running_mean is not None and self.running_var is not None and self.batch:
            self._track(mean.detach(), variance.detach())
        return deviation, variance

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update the running statistics with the means over the batch, with unbiased variances."""
        unbiased = variance * (self.spatial_size / (self.spatial_size - 1))
        pair = torch.stack((mean, unbiased))
        sums = carried(self.sum_batch, pair.sum(1) if self.channel_dim else pair).detach() / self.batch
        if self.partition.is_active(self.rank):
            # Without a momentum torch does not change the statistics.
            self.update_running(sums, 0.0 if self.momentum is None else self.momentum)


class InstanceNorm1d(InstanceNormalisation, torch_classes=(nn.InstanceNorm1d,)):
    """`torch.nn.InstanceNorm1d` over P_n x P_c x P_0, or without P_n; see :class:`InstanceNormalisation`."""


class InstanceNorm2d(InstanceNormalisation, torch_classes=(nn.InstanceNorm2d,)):
    """`torch.nn.InstanceNorm2d` over P_n x P_c x P_1 x P_0, or without P_n; see :class:`InstanceNormalisation`."""


class InstanceNorm3d(InstanceNormalisation, torch_classes=(nn.InstanceNorm3d,)):
    """`torch.nn.InstanceNorm3d` over P_n x P_c x P_2 x P_1 x P_0, or without P_n; see :class:`InstanceNormalisation`."""
