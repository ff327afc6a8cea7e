"""Base classes of the normalisations: y = d (v + ε)^(-1/2) ŵ + b̂, with weights that are stored once and broadcast.

ŵ = B w    b̂ = B b        the adjoint of the broadcast sums their gradients over the workers that use them
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import carried, in_graph
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.moments import Moments
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.broadcast import Broadcast

_WithStatistics: TypeAlias = (
    nn.BatchNorm1d
    | nn.BatchNorm2d
    | nn.BatchNorm3d
    | nn.InstanceNorm1d
    | nn.InstanceNorm2d
    | nn.InstanceNorm3d
)

__all__ = ["ChannelNormalisation", "Normalisation"]


class Normalisation(TorchLayer):
    """A layer that divides deviations by their size, and multiplies by a weight."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    eps: float
    moments: Moments

    def make_spaces(self, x: Layout, learnt: Layout) -> None:
        """Collective: make the spaces of input and output, and the broadcast of parameters of layout `learnt`, without copies.

        Also sets `rounding`: normwise, some hundred terms of the size of the data, each rounded, in another order than torch's. Terms
        cancel: with two values in a statistic, the input's gradient is of the size of ε; and torch's outputs are x α + (b - μ α), where
        α is up to ε^(-1/2) if all values are equal.
        """
        name = dtype_name(self.dtype)
        self.rounding = 2.0**-42 if name == "float64" else 2.0**-18
        self.reach = max(1.0, max(self.eps, 2.0**-20) ** -0.5)
        self.spread = Broadcast(self.comm, learnt, self.partition, dtype=name, preserve_batch=False)
        self.domain, self.codomain = Space(x, dtype=name), Space(x, dtype=name, name="y")

    def learnt(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return this worker's parts of weight and bias, from one broadcast."""
        if self.weight is None:
            return None, None
        if self.bias is None:
            return carried(self.spread, self.weight), None
        weight, bias = carried(self.spread, torch.stack((self.weight, self.bias), -1)).unbind(-1)
        return weight, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        weight, bias = self.learnt()
        deviation, size = self.deviation_and_size(x)
        y = deviation * self.moments.along(torch.rsqrt(size + self.eps).to(deviation.dtype))
        if weight is not None:
            y = y * weight
        return (y if bias is None else y + bias).to(self.dtype)

    def deviation_and_size(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective: return the numerator d, and the statistics v."""
        deviation, _, variance = self.moments.deviation(x)
        return deviation, variance


class ChannelNormalisation(Normalisation):
    """A normalisation with one weight, and optionally running statistics, for each channel.

    Weight and bias lie on the workers whose index is 0 in all dimensions but the channels'; the running statistics, on every worker
    that holds their channels.
    """

    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None

    def from_running(
        self, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x minus the running means, and the running variances; in float32 for half precision."""
        wide = accumulation_dtype(x.dtype)
        # Nothing is sent here, and without a weight in the whole layer.
        return in_graph(x).to(wide) - self._along(mean.to(wide)), variance.to(wide)

    def _along(self, channels: torch.Tensor) -> torch.Tensor:
        """Return one value for each channel, in a shape that broadcasts with the input."""
        return channels.reshape(-1, *self.after)

    def times(
        self,
        deviation: torch.Tensor,
        scale: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return d (s ŵ) + b̂, for a scale s that broadcasts with d."""
        if weight is not None:
            scale = scale * self._along(weight)
        y = deviation * scale
        return (y if bias is None else y + self._along(bias)).to(self.dtype)

    def update_running(self, statistics: Iterable[torch.Tensor], new: float) -> None:
        """Update the running mean and variance, which must exist, with those of a batch, weighted by `new`."""
        for running, value in zip((self.running_mean, self.running_var), statistics, strict=True):
            assert running is not None
            running.mul_(1 - new).add_(value.to(running.dtype), alpha=new)

    def take_channels(self, module: _WithStatistics, x: Layout, channel_dim: int) -> Layout:
        """Collective: make the spaces, and copy the arguments and values of `module`; return the layout of one value per channel.

        Raises `ValueError` for an input without `num_features` channels or of another order than the partition, and for running
        statistics of another element type.
        """
        if x.shape[channel_dim] != module.num_features:
            raise ValueError(
                f"input_shape: {x.shape} has {x.shape[channel_dim]} channels, but num_features is {module.num_features}"
            )
        mean = module.running_mean
        if mean is not None and mean.dtype != self.dtype:
            raise ValueError(
                f"dtype: {self.dtype}, but the running statistics of the module are of {mean.dtype}"
            )
        self.num_features, self.eps, self.momentum = module.num_features, module.eps, module.momentum
        self.track_running_stats = module.track_running_stats
        self.after = (1,) * (x.order - channel_dim - 1)
        channels, axes = [x.windows[channel_dim]], (channel_dim,)
        others = [dim for dim in range(x.order) if dim != channel_dim]
        per_channel = Layout((self.num_features,), self.partition, channels, axes)
        # Without copies, so that they count once in a sum over the workers; the broadcast's adjoint sums their gradients.
        learnt = Layout((self.num_features,), with_index_zero(self.partition, *others), channels, axes)
        self.make_spaces(x, learnt)
        layouts = dict.fromkeys(("weight", "bias"), learnt) | dict.fromkeys(
            ("running_mean", "running_var"), per_channel
        )
        self.own(module, layouts | {"num_batches_tracked": Layout((), self.partition, [], ())})
        return per_channel
