"""Cuts of channels, for convolutions and transposed convolutions over P_n x P_co x P_ci x P_spatial, with groups or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch

from adjointlab.core.layout import Layout, Window, balanced_windows
from adjointlab.core.partition import Partition
from adjointlab.layers.affine import AffineModule
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.rearrangement import in_elements

__all__ = ["ChannelCuts", "ChannelModule", "Windows", "windows_of"]

Windows: TypeAlias = tuple[Window, ...]


@dataclass(frozen=True)
class ChannelCuts:
    """Cuts of the channels of x and y, and of the first two dimensions of the weight, with the latter's axes."""

    inputs: Windows
    outputs: Windows
    weight_rows: Windows
    weight_columns: Windows
    weight_axes: tuple[int, int | None]


class ChannelModule(AffineModule):
    """An affine layer with output channels cut over dimension 1 of its partition, and input channels over dimension 2."""

    in_channels: int
    out_channels: int
    groups: int
    local_groups: Windows

    def own_groups(self, x: torch.Tensor) -> tuple[torch.Tensor, int, tuple[int, int]]:
        """Return the channels of x in this worker's groups, the number of these, and the numbers of outputs before and after theirs."""
        if self.groups == 1:
            return x, 1, (0, 0)
        index = self.partition.index(self.rank)
        if self.partition.shape[2] > 1:
            first, last = self.local_groups[index[2]]
            outputs = self.out_channels // self.groups
            return x, last - first, (first * outputs, (self.groups - last) * outputs)
        first, last = self.local_groups[index[1]]
        inputs = self.in_channels // self.groups
        return x[:, first * inputs : last * inputs], last - first, (0, 0)

    def check_grid(self, kind: str, dims: int) -> None:
        """Raise `ValueError` unless the partition is one for that `kind` of convolution."""
        partition = self.partition
        if partition.order != dims + 3:
            raise ValueError(
                f"partition: of order {partition.order} ({partition}), but a {dims}-d {kind} needs {dims + 3}: batch, "
                f"output channels, input channels, and {dims} spatial dimensions"
            )

    def cut_channels(self, partition: Partition, *, transposed: bool = False) -> ChannelCuts:
        """Return the cuts of channels and groups: over P_ci and P_co without groups, over the one that is above 1 with groups.

        The rows of the weight are output channels, and its columns inputs; for a `transposed` convolution the other way round.
        With groups a worker's part of the weight is that of its groups, with all of their columns:

                       P_co cuts                            P_ci cuts
              x whole, y in groups of outputs      x in groups of inputs, y whole: a sum whose
                                                   summands are zero in others' groups
        """
        inputs, outputs, groups = self.in_channels, self.out_channels, self.groups
        co, ci = partition.shape[1:3]
        whole_inputs, whole_outputs = ((0, inputs),), ((0, outputs),)
        self.local_groups = ((0, 1),)
        if groups == 1:
            of_outputs, of_inputs = (balanced_windows(outputs, co), balanced_windows(inputs, ci))
            if transposed:
                return ChannelCuts(of_inputs, of_outputs, of_inputs, of_outputs, (2, 1))
            return ChannelCuts(of_inputs, of_outputs, of_outputs, of_inputs, (1, 2))
        if co > 1 and ci > 1:
            raise ValueError(
                f"groups: {groups} groups over {co} workers for output channels and {ci} for input channels; one of "
                "both must be 1"
            )
        self.local_groups = balanced_windows(groups, max(co, ci))
        of_inputs, of_outputs = (
            in_elements(self.local_groups, per_group) for per_group in (inputs // groups, outputs // groups)
        )
        rows = of_inputs if transposed else of_outputs
        columns = ((0, (outputs if transposed else inputs) // groups),)
        if ci > 1:
            return ChannelCuts(of_inputs, whole_outputs, rows, columns, (2, None))
        return ChannelCuts(whole_inputs, of_outputs, rows, columns, (1, None))

    def learnt_layouts(self, channels: ChannelCuts, weight_shape: tuple[int, ...]) -> tuple[Layout, Layout]:
        """Return the layouts of weight and bias without copies: a part lies where the indices along dimensions that share it are 0."""
        kernel, spatial = weight_shape[2:], range(3, self.partition.order)
        weight = Layout(
            weight_shape,
            with_index_zero(self.partition, 0, *spatial),
            [channels.weight_rows, channels.weight_columns, *(((0, side),) for side in kernel)],
            (*channels.weight_axes, *(None,) * len(kernel)),
        )
        on_bias = with_index_zero(self.partition, 0, 2, *spatial)
        return weight, Layout((self.out_channels,), on_bias, [channels.outputs], (1,))


def windows_of(ends: Sequence[int]) -> Windows:
    """Return the windows between the boundaries of a cut."""
    return tuple(pairwise(ends))
