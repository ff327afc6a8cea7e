"""Distributed batch normalisation: y = (x - μ) (σ² + ε)^(-1/2) w + b over a partition P = P_n x P_c x P_spatial.

    forward    ŵ = B_{P_c→P} w    b̂ = B_{P_c→P} b
               (d, σ²): deviation and variance over all dimensions but the channels' (moments.py)
               y = d (σ² + ε)^(-1/2) ŵ + b̂
    adjoint    that of each step in the reverse order

P_c has P's side along the channels and 1 elsewhere. μ and σ² are the same on all workers along the other dimensions, and so
are the running statistics, which each worker keeps for its channels.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from adjointlab.core.layout import Layout
from adjointlab.layers.moments import Moments
from adjointlab.layers.normalisation import ChannelNormalisation

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormalisation"]

_TorchBatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


class BatchNormalisation(
    ChannelNormalisation, _BatchNorm, torch_classes=(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
):
    """`torch.nn.BatchNorm1d`, `2d` or `3d` over `partition`, of the order of the input, cut in any dimension.

    Weight and bias lie on the workers whose index is 0 in all dimensions but the channels'; the running statistics, on
    every worker that holds their channels.

    It is a subclass of torch's batch normalisation, so that `torch.optim.swa_utils.update_bn` and code that looks for such
    modules finds it. Like torch's it has `num_features`, `eps`, `momentum` and `track_running_stats`, but no `affine`:
    `SyncBatchNorm.convert_sync_batchnorm`, which would take its channels for all of them, therefore raises `AttributeError`.

    Raises `ValueError`, with torch's message if there is one, for an input of an order that the layer does not
    take or without `num_features` channels, and for a partition of another order; in a call, for statistics of one value
    per channel, counted globally.
    """

    weight: nn.Parameter | None  # type: ignore[assignment]
    bias: nn.Parameter | None  # type: ignore[assignment]
    num_batches_tracked: torch.Tensor | None

    def lay_out(self, module: _TorchBatchNorm) -> None:
        comm, partition, shape = self.comm, self.partition, self.input_shape
        # Private to torch (2.13), but it raises the same error as a call of the class, and computes nothing.
        module._check_input_dim(torch.empty(()).expand(shape))
        self.check_order(shape)
        x = Layout(shape, partition)
        self.moments = Moments(comm, x, (0, *range(2, len(shape))))
        self.take_channels(module, x, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        weight, bias = self.learnt()
        if self.training or self.running_mean is None or self.running_var is None:
            deviation, variance = self._measured(x)
        else:
            deviation, variance = self.from_running(x, self.running_mean, self.running_var)
        scale = self._along(torch.rsqrt(variance + self.eps).to(deviation.dtype))
        return self.times(deviation, scale, weight, bias)

    def _measured(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the deviations from the mean over the global tensor, and the variance; update the running statistics.

        A worker without elements takes part: its sums are zeros that depend on x, so that backward is collective, too.
        """
        count = self.moments.count
        if count == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {torch.Size(self.input_shape)}"
            )
        # Read in each call, as in torch: user code sets it to freeze the statistics.
        tracks = self.training and self.track_running_stats
        if tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        deviation, mean, variance = self.moments.deviation(x)
        if tracks and count and self.partition.is_active(self.rank):
            self._track(mean.detach(), variance.detach())
        return deviation, variance

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update the running statistics with those of a batch, with the unbiased variance."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        # Without a momentum torch takes the average over all batches, each with the weight 1 / their number.
        new = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (self.moments.count / (self.moments.count - 1))
        self.update_running((mean, unbiased), new)


class BatchNorm1d(BatchNormalisation, torch_classes=(nn.BatchNorm1d,)):
    """`torch.nn.BatchNorm1d` over P_n x P_c or P_n x P_c x P_0; see :class:`BatchNormalisation`."""


class BatchNorm2d(BatchNormalisation, torch_classes=(nn.BatchNorm2d,)):
    """`torch.nn.BatchNorm2d` over P_n x P_c x P_1 x P_0; see :class:`BatchNormalisation`."""


class BatchNorm3d(BatchNormalisation, torch_classes=(nn.BatchNorm3d,)):
    """`torch.nn.BatchNorm3d` over P_n x P_c x P_2 x P_1 x P_0; see :class:`BatchNormalisation`."""
