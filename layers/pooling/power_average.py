"""Distributed power-average pooling: y = (Σ x^p)^(1/p) over each window, with the exchange and the sum of average pooling.

    forward    x ← H x^p                          powers are exchanged, so that zeros beyond the tensor add nothing
               y = (k AVG(x))^(1/p)               on each worker, k the volume of the window

As in torch, a window that reaches beyond the tensor due to `ceil_mode` counts k times the mean of its elements.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from adjointlab.layers.arguments import real_number
from adjointlab.layers.pooling.average import AveragePooling

__all__ = ["LPPool1d", "LPPool2d", "LPPool3d", "LPPooling"]


class LPPooling(AveragePooling, torch_classes=(nn.LPPool1d, nn.LPPool2d, nn.LPPool3d)):
    """`torch.nn.LPPool1d`, `2d` or `3d` over `partition`; see :class:`Pooling`.

    Raises `ValueError` for an infinite `norm_type`, which means maxima.
    """

    def lay_out(self, module: Any) -> None:
        self.norm_type = real_number("norm_type", module.norm_type)
        if math.isinf(self.norm_type):
            raise ValueError(
                f"norm_type: {self.norm_type} is not supported; the largest magnitudes are those of a max pooling of x.abs()"
            )
        super().lay_out(module)
        self.rounding, self.reach = None, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        means = self.averages(x.pow(self.norm_type))
        # Torch's expression, which is NaN for a negative sum, and has torch's gradient at 0.
        sums = (torch.sign(means) * functional.relu(torch.abs(means))).mul(math.prod(self.kernel_size))
        return sums.pow(1.0 / self.norm_type)


class LPPool1d(LPPooling, torch_classes=(nn.LPPool1d,)):
    """`torch.nn.LPPool1d` over P_n x P_c x P_0; see :class:`LPPooling`."""


class LPPool2d(LPPooling, torch_classes=(nn.LPPool2d,)):
    """`torch.nn.LPPool2d` over P_n x P_c x P_1 x P_0; see :class:`LPPooling`."""


class LPPool3d(LPPooling, torch_classes=(nn.LPPool3d,)):
    """`torch.nn.LPPool3d` over P_n x P_c x P_2 x P_1 x P_0; see :class:`LPPooling`."""
