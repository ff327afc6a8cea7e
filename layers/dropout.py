"""Dropout whose mask depends only on a seed and the global index of each element: the same on any partition.

    y_i = x_i / (1 - p) where u(seed, i) ≥ p, else 0

u is uniform on [0, 1): the upper 53 bits of a hash of index and seed [Steele14]. Like a counter-based generator it has no state, so a
worker computes only the numbers of its own elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from adjointlab.core.agreement import check_alike
from adjointlab.core.layout import Layout, Window
from adjointlab.core.space import Space
from adjointlab.core.splitmix import hashed, mixed
from adjointlab.layers.differentiable import in_graph, of_nothing
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.torch_modules import dtype_name

__all__ = ["Dropout", "SeededDropout", "uniform"]


class Dropout(TorchLayer, torch_classes=(nn.Dropout,)):
    """`torch.nn.Dropout` over `partition`, of the order of the input, cut in any dimension; only a seed is sent.

    With a `seed`, an integer that is the same on all ranks, every call has the same mask, until the attribute is changed. Without
    one each call in training draws a seed from torch's generator, and all ranks use that of rank 0: so a checkpoint, which
    restores the generator's state before it recomputes, has the same mask.

    The mask is that of :class:`SeededDropout`, not of torch's module, whose numbers depend on how many were drawn before.
    """

    options = ("seed",)

    def lay_out(self, module: nn.Dropout, seed: int | None = None) -> None:
        self.check_order(self.input_shape)
        check_alike(self.comm, {"seed": seed})
        if seed is not None and not isinstance(seed, int):
            raise ValueError(f"seed: {seed!r} is not an integer")
        self.p, self.inplace, self.seed = module.p, module.inplace, seed
        self.overwrites_inputs = module.inplace
        layout = Layout(self.input_shape, self.partition)
        window = layout.window(self.rank)
        self.window = ((0, 0),) * layout.order if window is None else window
        name = dtype_name(self.dtype)
        self.rounding = None
        self.domain, self.codomain = Space(layout, dtype=name), Space(layout, dtype=name, name="y")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        if not self.training or self.p == 0:
            return in_graph(x)
        seed = self.seed
        if seed is None:
            # Drawn on every rank, so that generators in the same state stay in the same state.
            seed = self.comm.bcast(int(torch.randint(2**62, ())), root=0)
        within = in_graph(x)
        if not self.partition.is_active(self.rank):
            # The mask saves a tensor, so that a checkpoint recomputes here as on the other workers.
            ones = (1,) * x.ndim
            return of_nothing(
                x.shape, lambda one: _dropped(one, self.p, seed, ones, [(0, 1)] * x.ndim), within
            )
        y = _dropped(within, self.p, seed, self.input_shape, self.window)
        if not self.inplace:
            return y
        if within is x:
            return x.copy_(y)
        # The caller's tensor requires no gradient, and must not get into a graph.
        x.copy_(y.detach())
        return y


class SeededDropout(nn.Module):
    """The sequential function of :class:`Dropout` with a seed."""

    def __init__(self, p: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        self.p, self.seed = nn.Dropout(p).p, seed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return y, from x."""
        if not self.training or self.p == 0:
            return x
        return _dropped(x, self.p, self.seed, x.shape, tuple((0, side) for side in x.shape))


def _dropped(
    x: torch.Tensor, p: float, seed: int, shape: Sequence[int], window: Sequence[Window]
) -> torch.Tensor:
    # The numbers are made on the host, and the mask has an eighth of their bytes to copy to a device.
    kept = (uniform(seed, shape, window) >= p).to(x.device)
    # `where`, not a product: an infinite element that is dropped is 0.
    scaled = x / (1 - p) if p < 1 else x
    return torch.where(kept, scaled, x.new_zeros(()))


def uniform(seed: int, shape: Sequence[int], window: Sequence[Window]) -> torch.Tensor:
    """Return numbers in [0, 1), float64, for the elements in a window of a tensor of global `shape`."""
    index = np.zeros((), np.uint64)
    for dim, (start, stop) in enumerate(window):
        stride = math.prod(shape[dim + 1 :])
        index = index[..., None] + np.arange(start, stop, dtype=np.uint64) * np.uint64(stride)
    bits = hashed(index, mixed(seed % 2**64))
    return torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53)
