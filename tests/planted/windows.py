"""Planted bugs of layers with windows on their input: resampling, padding and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from adjointlab.layers.padding import Padding
from adjointlab.layers.pooling import AdaptiveAveragePooling, AveragePooling, MaxPooling, MaxUnpooling
from adjointlab.layers.upsampling import Upsample
from tests.planted.altered import Altered


class InterpolatesTheOwnPart(Upsample):
    """Each worker interpolates what it holds, as if it were the whole: corners and centres are those of the part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held, sides = x, self.local_output_shape[2:]
        y = super().forward(x)
        if 0 in held.shape or 0 in y.shape:
            return y
        aligned = None if self.mode == "nearest" else self.align_corners
        return functional.interpolate(held, size=sides, mode=self.mode, align_corners=aligned) + 0 * y

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        given = cast(nn.Upsample, module)
        self.mode, self.align_corners = given.mode, given.align_corners


class AveragesTheOwnPart(AdaptiveAveragePooling):
    """Each worker spreads its outputs over what it holds itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, dims = super().forward(x), len(self.taps)
        if 0 in x.shape or 0 in y.shape:
            return y
        pool = getattr(functional, f"adaptive_avg_pool{dims}d")
        own: torch.Tensor = pool(x, self.local_output_shape[-dims:])
        return own + 0 * y


class ConstantAtEveryBorder(Padding):
    """Each worker sets its own first output to the constant, where only the tensor's border is padded."""

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        if self.value and self.taps and self.padding[0] > 0:
            self.outside = torch.arange(self.local_output_shape[-1]) == 0


class AverageCountsPadding(AveragePooling):
    """Divides by the whole window at the border, asked to or not."""

    def lay_out(self, module: Any) -> None:
        asked, module.count_include_pad = module.count_include_pad, True
        super().lay_out(module)
        self.count_include_pad = module.count_include_pad = asked


class MaximumOfZeros(MaxPooling):
    """Pads with the zeros that a halo exchange leaves beyond the tensor, which are larger than what is negative."""

    holds_padding = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.outside = ((0, 0),) * self.dims


class IndicesInTheLocalTensor(MaxPooling):
    def _globally(self, indices: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
        return indices


class GradientsOfUnpooledElementsStay(MaxUnpooling):
    """Each worker keeps the gradients of its own elements, and drops those of elements that it was given."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        gather, dims = self.gather, self.dims
        (x,) = gather.domain.tensors

        def own(y: torch.Tensor) -> torch.Tensor:
            window = x.layout.window(self.rank)
            if window is None:
                return y.new_zeros(x.layout.local_shape(self.rank))
            return y[(..., *(slice(start, stop) for start, stop in window[-dims:]))].clone()

        self.gather = Altered(gather, adjoint=own)  # type: ignore[assignment]
