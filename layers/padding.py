"""Distributed padding layers: zeros, a constant, reflection, replication, and circular padding (resampling.py).

If the padding reaches beyond the neighbour's part, the exchange does so too: nothing is padded twice, and nothing locally. The output is
balanced, so its cut differs from the input's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from adjointlab.layers.resampling import AlongDim, Resampling

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Padding",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]

_MODES = {
    "constant": (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
    "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    "replicate": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    "circular": (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
}


class Padding(Resampling, torch_classes=tuple(each for classes in _MODES.values() for each in classes)):
    """A torch padding module over `partition`, of the order of the input, whose last dimensions are padded.

    Padding may be wider than a worker's part, and negative.

    Raises the errors of :class:`Resampling`.
    """

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        self.rounding = 0.0  # values are only moved
        self.value: float = getattr(module, "value", 0.0)
        self.padding = cast(nn.ConstantPad1d, module).padding
        self.outside: torch.Tensor | None = None
        """For padding with a constant, the outputs that depend on no element."""
        if self.value and self.taps:
            inside = torch.ones((1,) * len(self.input_shape), dtype=torch.bool)
            for dim, taps in self.taps:
                of_dim = taps.used.any(1)
                inside = inside & of_dim.reshape([-1 if dim == other else 1 for other in range(inside.ndim)])
            self.outside = ~inside

    def along_dims(self, module: nn.Module, order: int) -> Sequence[AlongDim]:
        mode = next(mode for mode, classes in _MODES.items() if isinstance(module, classes))
        # Torch lists the last dimension's padding first.
        padding = cast(nn.ConstantPad1d, module).padding
        pairs = [tuple(padding[start : start + 2]) for start in reversed(range(0, len(padding), 2))]
        return [partial(functional.pad, pad=pair, mode=mode) for pair in pairs]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        y = super().forward(x)
        return y if self.outside is None else torch.where(self.outside.to(y.device), self.value, y)


class ConstantPad1d(Padding, torch_classes=(nn.ConstantPad1d,)):
    """`torch.nn.ConstantPad1d`; see :class:`Padding`."""


class ConstantPad2d(Padding, torch_classes=(nn.ConstantPad2d,)):
    """`torch.nn.ConstantPad2d`; see :class:`Padding`."""


class ConstantPad3d(Padding, torch_classes=(nn.ConstantPad3d,)):
    """`torch.nn.ConstantPad3d`; see :class:`Padding`."""


class ZeroPad1d(Padding, torch_classes=(nn.ZeroPad1d,)):
    """`torch.nn.ZeroPad1d`; see :class:`Padding`."""


class ZeroPad2d(Padding, torch_classes=(nn.ZeroPad2d,)):
    """`torch.nn.ZeroPad2d`; see :class:`Padding`."""


class ZeroPad3d(Padding, torch_classes=(nn.ZeroPad3d,)):
    """`torch.nn.ZeroPad3d`; see :class:`Padding`."""


class ReflectionPad1d(Padding, torch_classes=(nn.ReflectionPad1d,)):
    """`torch.nn.ReflectionPad1d`; see :class:`Padding`."""


class ReflectionPad2d(Padding, torch_classes=(nn.ReflectionPad2d,)):
    """`torch.nn.ReflectionPad2d`; see :class:`Padding`."""


class ReflectionPad3d(Padding, torch_classes=(nn.ReflectionPad3d,)):
    """`torch.nn.ReflectionPad3d`; see :class:`Padding`."""


class ReplicationPad1d(Padding, torch_classes=(nn.ReplicationPad1d,)):
    """`torch.nn.ReplicationPad1d`; see :class:`Padding`."""


class ReplicationPad2d(Padding, torch_classes=(nn.ReplicationPad2d,)):
    """`torch.nn.ReplicationPad2d`; see :class:`Padding`."""


class ReplicationPad3d(Padding, torch_classes=(nn.ReplicationPad3d,)):
    """`torch.nn.ReplicationPad3d`; see :class:`Padding`."""


class CircularPad1d(Padding, torch_classes=(nn.CircularPad1d,)):
    """`torch.nn.CircularPad1d`; see :class:`Padding`."""


class CircularPad2d(Padding, torch_classes=(nn.CircularPad2d,)):
    """`torch.nn.CircularPad2d`; see :class:`Padding`."""


class CircularPad3d(Padding, torch_classes=(nn.CircularPad3d,)):
    """`torch.nn.CircularPad3d`; see :class:`Padding`."""
