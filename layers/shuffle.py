"""Pixel and channel shuffles of a tensor that is cut in any dimensions: blocks of channels or pixels stay together.

    forward    x ← T x               so that no block that is shuffled together is cut
               y = shuffle(x)        on each worker
               y ← T y               to the wanted layout, if that is another one
    adjoint    that of each step in the reverse order

For an upscaling by r = 2 the r² channels of an output channel must lie on one worker: with twelve channels of x over two workers,
the cut moves from 6 to 8, and that of the three channels of y is at 2. Cuts of pixels are scaled. For a downscaling, r x r pixels
must lie on one worker, and channels are not moved. If they do so already, nothing is sent.

The channels of a channel shuffle are a matrix, with a row for each group, that is transposed: it is first cut along its columns.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from adjointlab.core.layout import Layout, balanced_windows
from adjointlab.core.partition import Partition
from adjointlab.layers.rearrangement import Rearrangement, in_elements, in_units
from adjointlab.layers.reshape import add_reshaping, groups_of_one_split
from adjointlab.layers.torch_modules import result_of

__all__ = ["ChannelShuffle", "PixelShuffle", "PixelUnshuffle"]


class _PixelLayer(Rearrangement):
    """A shuffle between the last three dimensions, for inputs (..., channels, height, width)."""

    def output_shape(self, module: nn.Module) -> tuple[int, ...]:
        shape = self.input_shape
        # Only for its errors: on the device "meta" torch (2.13) has other messages, and without elements another shape.
        result_of(module, torch.empty(0, *shape[-3:]) if len(shape) >= 3 else torch.empty(shape))
        return super().output_shape(module)


class PixelShuffle(_PixelLayer, torch_classes=(nn.PixelShuffle,)):
    """`torch.nn.PixelShuffle`; see :class:`Rearrangement`.

    The cuts of the output are those of the input, times the factor; its channels are cut like those of the input if possible, else
    balanced.
    """

    def plan(self, module: nn.Module, y_shape: tuple[int, ...]) -> None:
        r, x = cast(nn.PixelShuffle, module).upscale_factor, self.steps.layout
        *lead, in_channels, height, width = x.windows
        channels = in_units(in_channels, r * r, y_shape[-3])
        self.steps.move(Layout(x.shape, x.partition, [*lead, in_elements(channels, r * r), height, width]))
        y = Layout(y_shape, x.partition, [*lead, channels, in_elements(height, r), in_elements(width, r)])
        *batch, c, h, w = y.local_shape(self.rank)

        def shuffle(local: torch.Tensor) -> torch.Tensor:
            blocks = local.reshape(*batch, c, r, r, h // r, w // r)
            return blocks.movedim((-2, -4, -1, -3), (-4, -3, -2, -1)).reshape(*batch, c, h, w)

        self.steps.apply(shuffle, y)


class PixelUnshuffle(_PixelLayer, torch_classes=(nn.PixelUnshuffle,)):
    """`torch.nn.PixelUnshuffle`; see :class:`Rearrangement`.

    The cuts of the output are those of the input, divided by the factor, if possible, else balanced; its channels are cut like those of
    the input.
    """

    def plan(self, module: nn.Module, y_shape: tuple[int, ...]) -> None:
        r, x = cast(nn.PixelUnshuffle, module).downscale_factor, self.steps.layout
        *lead, channels, in_height, in_width = x.windows
        height, width = in_units(in_height, r, y_shape[-2]), in_units(in_width, r, y_shape[-1])
        self.steps.move(
            Layout(x.shape, x.partition, [*lead, channels, in_elements(height, r), in_elements(width, r)])
        )
        y = Layout(y_shape, x.partition, [*lead, in_elements(channels, r * r), height, width])
        *batch, c, h, w = y.local_shape(self.rank)

        def unshuffle(local: torch.Tensor) -> torch.Tensor:
            blocks = local.reshape(*batch, c // (r * r), h, r, w, r)
            return blocks.movedim((-3, -1, -4, -2), (-4, -3, -2, -1)).reshape(*batch, c, h, w)

        self.steps.apply(unshuffle, y)


class ChannelShuffle(Rearrangement, torch_classes=(nn.ChannelShuffle,)):
    """`torch.nn.ChannelShuffle`, for inputs (n, channels, ...); see :class:`Rearrangement`.

    The output is cut like the input, except for the channels, which are cut at multiples of the number of groups.
    """

    def plan(self, module: nn.Module, y_shape: tuple[int, ...]) -> None:
        groups, (n, channels, *sides) = cast(nn.ChannelShuffle, module).groups, y_shape
        per_group, workers = channels // groups, self.steps.layout.partition
        matrix = (n, groups, per_group, *sides)
        add_reshaping(self.steps, matrix, groups_of_one_split(len(y_shape), 1, 2))
        of_batch, _, _, *of_sides = self.steps.layout.windows
        columns = balanced_windows(per_group, workers.shape[1])
        over = Partition((workers.shape[0], 1, *workers.shape[1:]), workers.ranks)
        self.steps.move(Layout(matrix, over, [of_batch, ((0, groups),), columns, *of_sides]))
        y = Layout(y_shape, workers, [of_batch, in_elements(columns, groups), *of_sides])
        own_n, own_channels, *own_sides = y.local_shape(self.rank)

        def shuffle(local: torch.Tensor) -> torch.Tensor:
            own = local.reshape(own_n, groups, own_channels // groups, *own_sides)
            return own.transpose(1, 2).reshape(own_n, own_channels, *own_sides)

        self.steps.apply(shuffle, y)
