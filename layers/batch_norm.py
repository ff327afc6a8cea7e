"""Distributed batch normalisation: y = (x - μ) (σ² + ε)^(-1/2) w + b over a partition P = P_b x P_c x P_spatial.

    forward    ŵ = B_{P_c→P} w    b̂ = B_{P_c→P} b
               μ = 𝒜 Σ x / n                                         n elements in each channel of the global tensor
               d = x - μ
               (s, q) = 𝒜 (Σ d, Σ d²)
               σ² = q / n - (s / n)²
               y = d (σ² + ε)^(-1/2) ŵ + b̂
    adjoint    that of each step in the reverse order, with 𝒜* = 𝒜 and B* = R

Σ sums over what a worker holds of a channel, and 𝒜 over the workers that hold the channel, that is, along all dimensions of
P but P_c. What is summed are sums, not means, and n is known: so uneven parts, empty ones too, weigh what they hold. The
second pass measures deviations from the global mean, and s, which without rounding is 0, takes away what the rounding
of μ has brought in (the corrected two-pass algorithm of [Chan83]).

P_c has P's side along the channels and 1 elsewhere. μ and σ² are the same on all workers along the others, and so are
the running statistics, which each worker keeps of its channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import carried
from adjointlab.layers.distributed import DistributedModule, dtype_name, face
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormalisation"]

_SUMS = torch.float64
"""Statistics are accumulated in double precision, as torch's are."""


class BatchNormalisation(DistributedModule):
    """`torch.nn.BatchNorm1d`, `2d` or `3d` over `partition`, of the order of the input, cut in any dimension.

    Weight and bias lie on the workers whose index is 0 in all dimensions but the channels'; the running statistics, on
    every worker that holds their channels. The other arguments are torch's.

    Raises `ValueError`, with torch's words where torch has some, for an input of an order that the layer does not
    take or without `num_features` channels, and for a partition of another order; in a call, on every rank, for a local
    tensor that is not what `domain` says on some, and for statistics of one value per channel, counted globally.
    """

    orders: ClassVar[tuple[int, ...]]
    module: ClassVar[Any]
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(comm, partition)
        self.shape = tuple(input_shape)
        order = len(self.shape)
        if order not in self.orders:
            raise ValueError(
                f"expected {' or '.join(f'{each}D' for each in self.orders)} input (got {order}D input)"
            )
        if self.shape[1] != num_features:
            raise ValueError(f"input_shape: {self.shape} has not num_features = {num_features} channels")
        self.check_order(self.shape)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats, self.has_bias = affine, track_running_stats, bias
        self.element = dtype or torch.get_default_dtype()
        self.count = self.shape[0] * math.prod(self.shape[2:])
        self.others = (0, *range(2, order))
        name = dtype_name(self.element)
        # Normwise: some hundred terms of the size of the data, each rounded, in another order than torch's. Terms cancel:
        # of two values per channel the input's gradient is of the size of ε, and torch's outputs are x α + (b - μ α),
        # where α is up to ε^(-1/2) in a channel of equal values.
        self.rounding = 2.0**-42 if name == "float64" else 2.0**-18
        self.reach = max(1.0, max(eps, 2.0**-20) ** -0.5)
        x = Layout(self.shape, partition)
        channels = x.windows[1]
        held = Layout((num_features,), partition, [channels], (1,))
        pair = Layout((2, num_features), partition, [((0, 2),), channels], (None, 1))
        learnt = Layout((num_features,), face(partition, *self.others), [channels], (1,))
        sums = dtype_name(_SUMS)
        self.sum_values = AllSumReduce(comm, held, self.others, dtype=sums)
        self.sum_deviations = AllSumReduce(comm, pair, self.others, dtype=sums)
        self.spread = Broadcast(comm, learnt, partition, dtype=name, preserve_batch=False)
        self.domain, self.codomain = Space(x, dtype=name), Space(x, dtype=name, name="y")
        self.own(
            self.sequential(),
            {
                "weight": learnt,
                "bias": learnt,
                "running_mean": held,
                "running_var": held,
                "num_batches_tracked": Layout((), partition, [], ()),
            },
        )

    @classmethod
    def from_sequential(
        cls,
        module: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        dtype: torch.dtype | None = None,
    ) -> Self:
        """The distributed layer with the arguments and values of `module`, which every rank has, and in its mode.

        A module that has neither parameters nor buffers has no element type; `dtype` says which. Raises `ValueError` for a
        module of another class.
        """
        cls.check_sequential(module, cls.module)
        if dtype is None:
            known = (module.weight, module.running_mean)
            dtype = next((tensor.dtype for tensor in known if tensor is not None), None)
        layer = cls(
            comm,
            partition,
            input_shape,
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
            dtype,
            bias=not module.affine or module.bias is not None,
        )
        layer.load_sequential(module)
        return layer

    def sequential(self) -> nn.Module:
        """The sequential module with the same arguments."""
        without = {} if self.has_bias else {"bias": False}  # torch has not always had the argument
        module: nn.Module = self.module(
            self.num_features,
            self.eps,
            self.momentum,
            self.affine,
            self.track_running_stats,
            dtype=self.element,
            **without,
        )
        return module

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
        """Weight and bias of this worker's channels: both in one message."""
        if self.weight is None:
            return None, None
        if self.bias is None:
            return carried(self.spread, self.weight), None
        weight, bias = carried(self.spread, torch.stack((self.weight, self.bias), -1)).unbind(-1)
        return weight, bias

    def _measured(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The deviations from the mean over the global tensor, and the variance; they enter the running statistics."""
        if self.count == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {torch.Size(self.shape)}"
            )
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.count == 0:
            return x, x.new_ones(x.shape[1])  # no rank has anything: there are no statistics
        mean = carried(self.sum_values, x.sum(self.others, dtype=_SUMS)) / self.count
        deviation = x - self._along(mean.to(x.dtype))
        local = (deviation.sum(self.others, dtype=_SUMS), (deviation**2).sum(self.others, dtype=_SUMS))
        rest, squares = carried(self.sum_deviations, torch.stack(local)) / self.count
        variance = squares - rest**2
        if self.training and self.partition.is_active(self.rank):
            self._track(mean.detach(), variance.detach())
        return deviation, variance

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Let a batch into the running statistics; the variance of a sample is an unbiased one."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        new = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (self.count / (self.count - 1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.mul_(1 - new).add_(value.to(running.dtype), alpha=new)

    def _along(self, channels: torch.Tensor) -> torch.Tensor:
        """One value for each channel, as it is multiplied with the input."""
        return channels.reshape(1, channels.shape[0], *(1,) * (len(self.shape) - 2))


class BatchNorm1d(BatchNormalisation):
    """`torch.nn.BatchNorm1d` over P_b x P_c or P_b x P_c x P_0; see :class:`BatchNormalisation`."""

    orders, module = (2, 3), nn.BatchNorm1d


class BatchNorm2d(BatchNormalisation):
    """`torch.nn.BatchNorm2d` over P_b x P_c x P_1 x P_0; see :class:`BatchNormalisation`."""

    orders, module = (4,), nn.BatchNorm2d


class BatchNorm3d(BatchNormalisation):
    """`torch.nn.BatchNorm3d` over P_b x P_c x P_2 x P_1 x P_0; see :class:`BatchNormalisation`."""

    orders, module = (5,), nn.BatchNorm3d
