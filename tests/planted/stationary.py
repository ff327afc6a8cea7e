"""Slips in the stationary convolutions: on which workers parts are gathered and summed, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

import adjointlab as al
from adjointlab.core.layout import Layout
from adjointlab.layers.channel_grid import ChannelGrid
from adjointlab.layers.differentiable import carried
from adjointlab.layers.stationary_convolution import StationaryConvolution
from adjointlab.layers.subjects import installed as subjects
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.broadcast import Broadcast
from tests.planted.altered import Altered, averaged, layers_of

GRIDS = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 3, 1), (2, 2, 1), (1, 2, 2), (2, 3, 1), (2, 2, 2))
"""P_c x P_f x P_0."""


@layers_of(subjects.stationary_convolutions, "StationaryConv1d")
def stationary_lines(draw: Any, ranks: int) -> dict[str, Any]:
    """Stationary-w convolutions in one dimension: all that the bugs need, and small enough to be shrunk in a test."""

    grid = draw(st.sampled_from([grid for grid in GRIDS if al.Partition(grid).size <= ranks]))
    left = list(range(ranks))
    workers = [left.pop(draw(st.integers(0, len(left) - 1))) for _ in range(al.Partition(grid).size)]
    kernel = draw(st.integers(1, 2))
    channels = [draw(st.integers(1, 4)) for _ in range(2)]
    return {
        "dims": 1,
        "partition": al.Partition((1, *grid), workers),
        "input_shape": (draw(st.integers(1, 2)), channels[0], draw(st.integers(kernel, 4))),
        "in_channels": channels[0],
        "out_channels": channels[1],
        "kernel_size": (kernel,),
        "stride": (1,),
        "padding": ((0, 0),),
        "dilation": (1,),
        "groups": 1,
        "bias": draw(st.booleans()),
        "padding_mode": "zeros",
        "dtype": "float64",
        "algorithm": "stationary-w",
    }


class WeightOnTheExchangedGrid(StationaryConvolution):
    """The weight's blocks lie as on a grid whose dimensions P_c and P_f are exchanged."""

    def own(self, whole: nn.Module, layouts: Mapping[str, Layout]) -> None:
        _, c, f, *_ = self.grid.shape
        if c == f:
            right = layouts["weight"]
            wrong = Layout(right.shape, right.partition, right.windows, (1, 2, *right.axes[2:]))
            self.spread_weight = Broadcast(
                self.comm, wrong, self.grid, dtype=dtype_name(self.dtype), preserve_batch=False
            )
            layouts = {**layouts, "weight": wrong}
        super().own(whole, layouts)


class OutputOnTheGridOfTheInput(StationaryConvolution):
    """Says of the output that it lies as the input does, with P_f running fastest."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        (y,) = self.codomain.tensors
        wrong = Layout(y.layout.shape, ChannelGrid(self.grid).of_x, y.layout.windows)
        self.codomain = al.Space(wrong, dtype=y.dtype, name="y")


class GatheredFromTheOtherSubgrid(StationaryConvolution):
    """Gathers the input's channels over P_c, where both sides of the grid are alike."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        _, c, f, *_ = self.grid.shape
        if self.gather_x is not None and c == f:
            (x,) = self.gather_x.domain.tensors
            index = self.grid.index(self.rank)[2] if self.grid.is_active(self.rank) else 0
            others = self.grid.subpartitions([d for d in range(self.grid.order) if d != 2])[index]
            wrong = Layout(x.layout.shape, others, x.layout.windows)
            self.gather_x = AllGather(self.comm, wrong, 1, dtype=x.dtype)


class PartsInTheOrderOfRanks(StationaryConvolution):
    """Puts the gathered channels together in the order of the ranks, not in that of the grid."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.gather_x is None:
            return
        (x,) = self.gather_x.domain.tensors
        subgrid = x.layout.partition
        if not subgrid.is_active(self.rank):
            return
        workers = subgrid.subpartition([1], self.rank).ranks
        parts = [range(*x.layout.windows[1][workers.index(rank)]) for rank in sorted(workers)]
        by_rank = torch.tensor([channel for part in parts for channel in part], dtype=torch.long)
        gather = self.gather_x
        self.gather_x = Altered(
            gather,
            forward=lambda x: gather.forward(x)[:, by_rank],
            adjoint=lambda y: gather.adjoint(y[:, by_rank.argsort()].contiguous()),
        )


class InputGradientNotScattered(StationaryConvolution):
    """Keeps of the gathered input's gradient the own part, without the sum over P_f."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.gather_x is not None:
            (x,) = self.gather_x.domain.tensors
            self.gather_x = AllGather(self.comm, x.layout, 1, dtype=x.dtype, copies="invariant")


class SliceInPlaceOfTheSum(StationaryConvolution):
    """Takes the own part of the own summands, without the sum over P_c."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.scatter_y is not None:
            (y,) = self.scatter_y.codomain.tensors
            own = AllGather(self.comm, y.layout, 1, dtype=y.dtype, copies="invariant")
            self.scatter_y = own.H


class BiasBeforeTheSum(StationaryConvolution):
    """Every worker along P_c adds the bias."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if self.bias is None or self.spread_bias is None:
            return y
        bias = carried(self.spread_bias, self.bias)
        return y + (self.grid.shape[1] - 1) * bias.reshape(-1, 1)


class StationaryWeightGradientAveraged(StationaryConvolution):
    """Takes the mean of the workers' gradients of the weight for their sum."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spread_weight = averaged(self.spread_weight)
