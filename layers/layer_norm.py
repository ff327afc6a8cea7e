"""Distributed layer and RMS normalisation over the last dimensions, which may be cut as all others may.

    forward    ŵ = B w    b̂ = B b                     over the leading dimensions of the partition
               (d, σ²): deviation and variance over the normalised dimensions (moments.py)
               y = d (σ² + ε)^(-1/2) ŵ + b̂
               y = x (q + ε)^(-1/2) ŵ,   q = 𝒜 Σ x² / n       for the RMS
    adjoint    that of each step in the reverse order

If only leading dimensions are cut, the statistics need no messages, and only the gradients of the weights are summed: the all-reduce
of the norms' weight gradients in sequence parallelism is the adjoint of their broadcast.
"""

from __future__ import annotations

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.moments import Moments
from adjointlab.layers.normalisation import Normalisation

__all__ = ["LayerNorm", "RMSNorm"]


class _OverLastDimensions(Normalisation):
    """Base class of both normalisations, with their layout."""

    normalized_shape: tuple[int, ...]

    def lay_out(self, module: nn.LayerNorm | nn.RMSNorm) -> None:
        shape, normalised = self.input_shape, tuple(module.normalized_shape)
        leading = len(shape) - len(normalised)
        if leading < 0 or shape[leading:] != normalised:
            raise ValueError(
                f"input_shape: {shape} does not end in normalized_shape = {normalised}; expected input with shape "
                f"[*, {', '.join(map(str, normalised))}]"
            )
        self.check_order(shape)
        self.normalized_shape = normalised
        self.elementwise_affine = module.elementwise_affine
        # For RMSNorm, None means the precision of the type that torch computes in.
        self.eps = torch.finfo(accumulation_dtype(self.dtype)).eps if module.eps is None else module.eps
        x = Layout(shape, self.partition)
        dims = range(leading, len(shape))
        lead = with_index_zero(self.partition, *range(leading))
        learnt = Layout(normalised, lead, [x.windows[dim] for dim in dims], tuple(dims))
        self.moments = Moments(self.comm, x, tuple(dims))
        self.make_spaces(x, learnt)
        self.own(module, {"weight": learnt, "bias": learnt})


class LayerNorm(_OverLastDimensions, torch_classes=(nn.LayerNorm,)):
    """`torch.nn.LayerNorm` over `partition`, of the order of the input, cut in any dimension.

    Weight and bias are cut like the normalised dimensions, on the workers whose index is 0 in all others.

    Raises `ValueError` for an input that does not end in `normalized_shape`, and for a partition of another order.
    """


class RMSNorm(_OverLastDimensions, torch_classes=(nn.RMSNorm,)):
    """`torch.nn.RMSNorm` over `partition`, of the order of the input, cut in any dimension; see :class:`LayerNorm`."""

    def lay_out(self, module: nn.LayerNorm | nn.RMSNorm) -> None:
        self.register_parameter("bias", None)
        super().lay_out(module)

    def deviation_and_size(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.to(accumulation_dtype(x.dtype))
        return x, self.moments.mean_square(x)
