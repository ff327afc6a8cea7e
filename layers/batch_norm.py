"""Distributed batch normalisation: y = (x - μ) (σ² + ε)^(-1/2) w + b over a partition P = P_n x P_c x P_spatial.

    forward    ŵ = B_{P_c→P} w    b̂ = B_{P_c→P} b
               μ = 𝒜 Σ x / n                                         n elements in each channel of the global tensor
               d = x - μ
               (s, q) = 𝒜 (Σ d, Σ d²)
               σ² = q / n - (s / n)²
               y = d (σ² + ε)^(-1/2) ŵ + b̂
    adjoint    that of each step in the reverse order, with 𝒜* = 𝒜 and B* = R

Σ sums over a worker's elements of a channel, and 𝒜 over the workers that hold the channel, that is, along all dimensions of
P but P_c. Workers merge sums, not means, and n is known: so uneven parts, empty ones too, weigh what they hold, where a mean
of means would weigh all parts alike. The second pass measures deviations from the global mean: to merge Σ x² instead would
cancel all digits of a variance that is small relative to the mean's square. Without rounding s is 0; it takes away what the
rounding of μ has brought in (the corrected two-pass algorithm of [Chan83]).

P_c has P's side along the channels and 1 elsewhere. μ and σ² are the same on all workers along the others, and so are
the running statistics, which each worker keeps of its channels.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from adjointlab.core.layout import Layout
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import carried
from adjointlab.layers.distributed import TorchLayer, dtype_name, with_index_zero
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormalisation"]

_TorchBatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d

_SUMS = torch.float64
"""Statistics are accumulated in double precision, as torch's are."""


class BatchNormalisation(
    TorchLayer, _BatchNorm, torch_classes=(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
):
    """`torch.nn.BatchNorm1d`, `2d` or `3d` over `partition`, of the order of the input, cut in any dimension.

    Weight and bias lie on the workers whose index is 0 in all dimensions but the channels'; the running statistics, on
    every worker that holds their channels.

    It is one of torch's batch normalisations by class, so that `torch.optim.swa_utils.update_bn` and code that looks for such
    modules finds it. Like torch's it has `num_features`, `eps`, `momentum` and `track_running_stats`, but no `affine`:
    `SyncBatchNorm.convert_sync_batchnorm`, which would take its channels for all of them, ends with an `AttributeError`.

    Raises `ValueError`, with torch's words where torch has some, for an input of an order that the layer does not
    take or without `num_features` channels, and for a partition of another order; in a call, for statistics of one value
    per channel, counted globally.
    """

    weight: nn.Parameter | None  # type: ignore[assignment]
    bias: nn.Parameter | None  # type: ignore[assignment]
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None

    def lay_out(self, module: _TorchBatchNorm) -> None:
        comm, partition, shape = self.comm, self.partition, self.input_shape
        # Private to torch (2.13), but it says in each class's own words what a call would, and computes nothing.
        module._check_input_dim(torch.empty(()).expand(shape))
        if shape[1] != module.num_features:
            raise ValueError(f"input_shape: {shape} has not num_features = {module.num_features} channels")
        self.check_order(shape)
        mean = module.running_mean
        if mean is not None and mean.dtype != self.dtype:
            raise ValueError(
                f"dtype: {self.dtype}, but the running statistics of the module are of {mean.dtype}"
            )
        self.num_features, self.eps, self.momentum = module.num_features, module.eps, module.momentum
        self.track_running_stats = module.track_running_stats
        self.count = shape[0] * math.prod(shape[2:])
        self.others = (0, *range(2, len(shape)))
        name = dtype_name(self.dtype)
        # Normwise: some hundred terms of the size of the data, each rounded, in another order than torch's. Terms cancel:
        # of two values per channel the input's gradient is of the size of ε, and torch's outputs are x α + (b - μ α),
        # where α is up to ε^(-1/2) in a channel of equal values.
        self.rounding = 2.0**-42 if name == "float64" else 2.0**-18
        self.reach = max(1.0, max(self.eps, 2.0**-20) ** -0.5)
        x = Layout(shape, partition)
        channels = x.windows[1]
        per_channel = Layout((self.num_features,), partition, [channels], (1,))
        pairs = Layout((2, self.num_features), partition, [((0, 2),), channels], (None, 1))
        # Once, so that they count once in the sum of what workers hold; the broadcast's adjoint sums their gradients.
        learnt = Layout((self.num_features,), with_index_zero(partition, *self.others), [channels], (1,))
        sums = dtype_name(_SUMS)
        self.sum_values = AllSumReduce(comm, per_channel, self.others, dtype=sums)
        self.sum_deviations = AllSumReduce(comm, pairs, self.others, dtype=sums)
        self.spread = Broadcast(comm, learnt, partition, dtype=name, preserve_batch=False)
        self.domain, self.codomain = Space(x, dtype=name), Space(x, dtype=name, name="y")
        self.own(
            module,
            {
                "weight": learnt,
                "bias": learnt,
                "running_mean": per_channel,
                "running_var": per_channel,
                "num_batches_tracked": Layout((), partition, [], ()),
            },
        )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"track_running_stats={self.track_running_stats}"
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        weight, bias = self._learnt()
        if self.training or self.running_mean is None or self.running_var is None:
            deviation, variance = self._measured(x)
        else:
            deviation, variance = x - self._along(self.running_mean), self.running_var
        scale = torch.rsqrt(variance + self.eps).to(x.dtype)
        if weight is not None:
            scale = scale * weight
        y = deviation * self._along(scale)
        return y if bias is None else y + self._along(bias)

    def _learnt(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Weight and bias of this worker's channels, from one broadcast."""
        if self.weight is None:
            return None, None
        if self.bias is None:
            return carried(self.spread, self.weight), None
        weight, bias = carried(self.spread, torch.stack((self.weight, self.bias), -1)).unbind(-1)
        return weight, bias

    def _measured(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The deviations from the mean over the global tensor, and the variance; update the running statistics.

        A worker without elements takes part: its sums are zeros that depend on x, so that backward too is collective.
        """
        if self.count == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {torch.Size(self.input_shape)}"
            )
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.count == 0:
            # No rank has elements, as every rank knows from the global shape: nobody communicates.
            return x, x.new_ones(x.shape[1])
        # Everything below is in double precision, and only the deviations go back to the element type of x: so the
        # order of the summands, which depends on the cut, does not show in float32.
        mean = carried(self.sum_values, x.sum(self.others, dtype=_SUMS)) / self.count
        deviation = x - self._along(mean.to(x.dtype))
        local = (deviation.sum(self.others, dtype=_SUMS), (deviation**2).sum(self.others, dtype=_SUMS))
        rest, squares = carried(self.sum_deviations, torch.stack(local)) / self.count
        variance = squares - rest**2
        if self.training and self.partition.is_active(self.rank):
            self._track(mean.detach(), variance.detach())
        return deviation, variance

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update the running statistics with those of a batch, whose variance counts as the unbiased one."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        # Without a momentum torch takes the average over all batches, each with the weight 1 / their number.
        new = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (self.count / (self.count - 1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.mul_(1 - new).add_(value.to(running.dtype), alpha=new)

    def _along(self, channels: torch.Tensor) -> torch.Tensor:
        """One value for each channel, in the shape (1, channels, 1, ...) that broadcasts with the input."""
        return channels.reshape(1, channels.shape[0], *(1,) * (len(self.input_shape) - 2))


class BatchNorm1d(BatchNormalisation, torch_classes=(nn.BatchNorm1d,)):
    """`torch.nn.BatchNorm1d` over P_n x P_c or P_n x P_c x P_0; see :class:`BatchNormalisation`."""


class BatchNorm2d(BatchNormalisation, torch_classes=(nn.BatchNorm2d,)):
    """`torch.nn.BatchNorm2d` over P_n x P_c x P_1 x P_0; see :class:`BatchNormalisation`."""


class BatchNorm3d(BatchNormalisation, torch_classes=(nn.BatchNorm3d,)):
    """`torch.nn.BatchNorm3d` over P_n x P_c x P_2 x P_1 x P_0; see :class:`BatchNormalisation`."""
