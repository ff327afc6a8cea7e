"""Distributed group normalisation: y = d (σ² + ε)^(-1/2) ŵ + b̂ with statistics of each sample's groups of channels.

    forward    ŵ = B w    b̂ = B b                     over all dimensions of the partition but the channels'
               (d, σ²): deviation and variance over a group's channels and all spatial dimensions (moments.py)
    adjoint    that of each step in the reverse order

A cut may go through a group, into parts of different sizes: every worker has sums for all groups, over its elements, so that a group's
statistics weight its elements equally. If groups are not cut, the sums of other workers' groups are zeros.
"""

from __future__ import annotations

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.moments import Moments
from adjointlab.layers.normalisation import Normalisation
from adjointlab.layers.torch_modules import result_of

__all__ = ["GroupNorm"]


class GroupNorm(Normalisation, torch_classes=(nn.GroupNorm,)):
    """`torch.nn.GroupNorm` over `partition` = P_n x P_c x P_spatial, of the order of the input, cut in any dimension.

    Weight and bias lie on the workers whose index is 0 in all dimensions but the channels'.

    Raises `ValueError`, with torch's message if there is one, for an input without `num_channels` channels or without channels,
    and for a partition of another order.
    """

    def lay_out(self, module: nn.GroupNorm) -> None:
        shape = self.input_shape
        if len(shape) < 2:
            raise ValueError(f"Expected at least 2 dimensions for input tensor but received {len(shape)}")
        if shape[1] != module.num_channels:
            raise ValueError(
                f"input_shape: {shape} has {shape[1]} channels, but num_channels is {module.num_channels}"
            )
        alike = nn.GroupNorm(module.num_groups, module.num_channels, affine=False)
        # Torch rejects groups of one element; with sides of at most 2, the same groups have one element.
        result_of(alike, torch.empty([min(side, 2) if dim != 1 else side for dim, side in enumerate(shape)]))
        self.check_order(shape)
        self.num_groups, self.num_channels = module.num_groups, module.num_channels
        self.eps, self.affine = module.eps, module.affine
        x = Layout(shape, self.partition)
        spatial = tuple(range(2, len(shape)))
        others = with_index_zero(self.partition, 0, *spatial)
        learnt = Layout((self.num_channels,), others, [x.windows[1]], (1,))
        self.moments = Moments(self.comm, x, spatial, self.num_groups)
        self.make_spaces(x, learnt)
        self.own(module, {"weight": learnt, "bias": learnt})

    def learnt(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        after = (1,) * (len(self.input_shape) - 2)
        weight, bias = (
            each if each is None else each.reshape(-1, *after)  # along the channels
            for each in super().learnt()
        )
        return weight, bias
