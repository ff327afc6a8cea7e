"""Stationary-x, -y and -w convolutions [Dryden19, sections 3.2-3.4]: x, y or w is not moved, over a grid N x C x F x H x W.

◦_C is a dimension that is cut over the grid's dimension C, ◦ one cut over its own grid dimension, * one that every worker has whole;
◦_{F×C} is cut over both C and F, the first of them running fastest. Stationary-w is the general case:

    forward    (1) x[◦, ◦_C, ◦, ◦] ← x[◦, ◦_{F×C}, ◦, ◦]                      all-gather over F
               (2) T_1[◦, ◦_F, ◦, ◦] ← ConvForward(x[◦, ◦_C, ◦, ◦], w[◦, ◦])
               (3) y[◦, ◦_{C×F}, ◦, ◦] ← Σ̃_C T_1[◦, ◦_F, ◦, ◦]                reduce-scatter over C
    adjoint    (4) δy[◦, ◦_F, ◦, ◦] ← δy[◦, ◦_{C×F}, ◦, ◦]                    all-gather over C
               (5) T_2[◦, ◦_C, ◦, ◦] ← ConvBackData(δy[◦, ◦_F, ◦, ◦], w[◦, ◦])
               (6) δx[◦, ◦_{F×C}, ◦, ◦] ← Σ̃_F T_2[◦, ◦_C, ◦, ◦]               reduce-scatter over F
               (7) T_3[◦, ◦] ← ConvBackFilt(δy[◦, ◦_F, ◦, ◦], x[◦, ◦_C, ◦, ◦])
               (8) δw[◦, ◦] ← Σ̃_{N,H,W} T_3[◦, ◦]

Stationary-x is the case F = 1, without (1) and (6), and stationary-y the case C = 1, without (3) and (4). Halos are exchanged
between (1) and (2), and added up between (5) and (6). Parameters have no copies: (8) is a sum to the worker with indices 0 along
N, H and W, and the next forward pass broadcasts from there; together these send as much as an all-reduce.

For a grid with C = F = 2, the channels (quarters) of x, then of y, and the block of w that each worker has:

                 x                      y                  w[filters, channels]
              f=0  f=1               f=0  f=1             f=0        f=1
           +----+----+            +----+----+         +----------+----------+
       c=0 |  0 |  1 |        c=0 |  0 |  2 |     c=0 | w[01,01] | w[23,01] |     (1) gathers along a row,
           +----+----+            +----+----+         +----------+----------+     (3) sums and scatters along
       c=1 |  2 |  3 |        c=1 |  1 |  3 |     c=1 | w[01,23] | w[23,23] |     a column
           +----+----+            +----+----+         +----------+----------+

So y lies on the transposed grid. The next layer needs no repartition if its grid is this one with C and F exchanged.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import nn

from adjointlab.core.layout import Layout, balanced_cut, balanced_windows
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.channel_grid import ChannelGrid, united
from adjointlab.layers.channels import Windows, windows_of
from adjointlab.layers.convolution_module import ConvolutionModule
from adjointlab.layers.differentiable import carried, of_nothing
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.reduce_scatter import ReduceScatter
from adjointlab.primitives.segments import wide_layout

__all__ = [
    "ALGORITHMS", "StationaryConv1d", "StationaryConv2d", "StationaryConv3d", "StationaryConvolution",
]  # fmt: skip

ALGORITHMS: Final = ("auto", "stationary-x", "stationary-y", "stationary-w")


class StationaryConvolution(ConvolutionModule, torch_classes=(nn.Conv1d, nn.Conv2d, nn.Conv3d)):
    """`torch.nn.Conv1d`, `2d` or `3d` that does not move x, y or w, for inputs of `input_shape`.

    Made from a torch module, like :class:`~adjointlab.layers.convolution.Convolution`; :class:`StationaryConv1d` to
    :class:`StationaryConv3d` also from torch's arguments. `algorithm` is one of

    - "stationary-x" and "stationary-y", over `partition` = P_n x P_c x P_spatial: x and y are cut over all of it, as in
      normalisations and pools;
    - "stationary-w", over `partition` = P_n x P_c x P_f x P_spatial: the channels of x and y are cut over P_c and P_f, those of y
      in the order of :attr:`next_partition`;
    - "auto" (default): "stationary-w" for a partition with P_f, else the algorithm that does not move the larger of x and y, or x
      if they are equal. :attr:`algorithm` has the choice.

    Every worker has a part of x, y and bias, and all cuts are balanced. With `groups` above 1 the channels are cut between
    groups, and only halos and parameters are sent; P_c or P_f must then be 1.

    Raises `ValueError`, with torch's message for arguments that torch rejects, and for a padding mode other than "zeros" and
    "circular", another algorithm, a partition of another order, and groups over both P_c and P_f.
    """

    options = ("algorithm",)
    weight: nn.Parameter
    bias: nn.Parameter | None
    algorithm: str
    """"stationary-x", "stationary-y" or "stationary-w"."""
    grid: Partition
    """P_n x P_c x P_f x P_spatial."""

    def lay_out(self, module: nn.Module, algorithm: str = "auto") -> None:
        self.read(module)
        self.algorithm, self.grid = self._chosen(algorithm)
        over, grid, shape = ChannelGrid(self.grid), self.grid, self.input_shape
        n, c, f, *sides = grid.shape
        spatial = tuple(range(3, grid.order))
        x_channels, y_channels = self._channel_cuts(c * f)
        batch = balanced_windows(shape[0], n)
        bulk = [balanced_windows(side, parts) for side, parts in zip(shape[2:], sides, strict=True)]
        x = Layout(shape, over.of_x, [batch, x_channels, *bulk])
        gathered = Layout(shape, grid, [batch, united(x_channels, f), *bulk], (0, 1, *spatial))
        geometry = self.windows(gathered)
        assert geometry.output is not None
        y_shape, outputs = (shape[0], self.out_channels, *self.output_sides), geometry.output.windows[2:]
        y = Layout(y_shape, over.of_y, [batch, y_channels, *outputs])
        # The filters of a worker. With groups, which P_c cuts, they are those of its own channels.
        filters, filter_dim = (united(y_channels, c), 2) if self.groups == 1 else (y_channels, 1)
        summands = Layout(y_shape, grid, [batch, filters, *outputs], (0, filter_dim, *spatial))
        self.local_output_shape = summands.local_shape(self.rank)

        self.gather_x: AllGather | None = None
        self.scatter_y: ReduceScatter | None = None
        dtype = dtype_name(self.dtype)
        if f > 1:
            self.gather_x = AllGather(self.comm, over.along_filters(x, self.rank), 1, dtype=dtype)
        self.exchange = self.exchange_of(geometry)
        if c > 1 and self.groups == 1:
            part = over.along_channels(y, self.rank)
            self.scatter_y = ReduceScatter(
                self.comm, wide_layout(part, 1), 1, 1, cut=part.ends(1), dtype=dtype
            )
        self.domain, self.codomain = Space(x, dtype=dtype), Space(y, dtype=dtype, name="y")
        self._own(module, gathered, summands, y)

    def _own(self, module: nn.Module, x: Layout, summands: Layout, y: Layout) -> None:
        """Register the parameters without copies: a part lies where the indices along grid dimensions that share it are 0."""
        grid, dtype = self.grid, dtype_name(self.dtype)
        columns, column_dim = (x.windows[1], x.axes[1]) if self.groups == 1 else (None, None)
        weight = Layout(
            (self.out_channels, self.in_channels // self.groups, *self.kernel),
            with_index_zero(grid, 0, *range(3, grid.order)),
            [
                summands.windows[1],
                columns or ((0, self.in_channels // self.groups),),
                *(((0, side),) for side in self.kernel),
            ],
            (summands.axes[1], column_dim, *(None,) * len(self.kernel)),
        )
        layouts = {"weight": weight}
        self.spread_weight = Broadcast(self.comm, weight, grid, dtype=dtype, preserve_batch=False)
        self.spread_bias: Broadcast | None = None
        if module.bias is not None:
            on_bias = with_index_zero(y.partition, 0, *range(2, y.order))
            layouts["bias"] = bias = Layout((self.out_channels,), on_bias, [y.windows[1]], (1,))
            self.spread_bias = Broadcast(self.comm, bias, y.partition, dtype=dtype, preserve_batch=False)
        self.own(module, layouts)

    @property
    def next_partition(self) -> Partition:
        """The partition over which a next layer of the same algorithm takes the output without moving it: P_c and P_f are exchanged."""
        return ChannelGrid(self.grid).exchanged if self.algorithm == "stationary-w" else self.partition

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the local tensor of y, from that of x. Under autocast only the local products have the lower precision."""
        (x,) = self.check_inputs(x)
        if self.gather_x is not None:
            x = carried(self.gather_x, x)
        x = carried(self.exchange, x)
        weight = carried(self.spread_weight, self.weight)
        y = self.summand(x, weight).to(x.dtype)
        if self.scatter_y is not None:
            y = carried(self.scatter_y, y)
        if self.spread_bias is None or self.bias is None:
            return y
        return y + carried(self.spread_bias, self.bias).reshape(-1, *(1,) * len(self.stride))

    def summand(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return T_1 without the bias: this worker's filters, applied to its own channels."""
        if 0 in (x.numel(), weight.numel(), *self.local_output_shape):
            return of_nothing(self.local_output_shape, self.convolve, x, weight)
        return self.convolve(x, weight, groups=weight.shape[0] * self.groups // self.out_channels or 1)

    def _chosen(self, algorithm: str) -> tuple[str, Partition]:
        """The algorithm, and its grid P_n x P_c x P_f x P_spatial."""
        given, dims = self.partition, len(self.kernel)
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm: {algorithm!r} is not one of {', '.join(ALGORITHMS)}")
        if algorithm == "auto":
            x_size, y_size = (
                channels * math.prod(sides)
                for channels, sides in (
                    (self.in_channels, self.input_shape[2:]),
                    (self.out_channels, self.output_sides),
                )
            )
            narrow = "stationary-x" if x_size >= y_size or self.groups > 1 else "stationary-y"
            algorithm = "stationary-w" if given.order == dims + 3 else narrow
        order, channels = (dims + 3, "P_c, P_f") if algorithm == "stationary-w" else (dims + 2, "P_c")
        if given.order != order:
            raise ValueError(
                f"partition: of order {given.order} ({given}), but the {algorithm} algorithm of a {dims}-d convolution needs "
                f"{order}: batch, {channels}, and {dims} spatial dimensions"
            )
        if algorithm == "stationary-w":
            n, c, f, *sides = given.shape
        else:
            n, parts, *sides = given.shape
            c, f = (1, parts) if algorithm == "stationary-y" else (parts, 1)
        if self.groups > 1:
            if c > 1 and f > 1:
                raise ValueError(
                    f"groups: {self.groups} groups over a grid with P_c = {c} and P_f = {f}; one of both must be 1"
                )
            c, f = c * f, 1  # nothing is gathered or summed: one side of the grid will do
        return algorithm, Partition((n, c, f, *sides), given.ranks)

    def _channel_cuts(self, parts: int) -> tuple[Windows, Windows]:
        """Return the windows of the channels of x and of y: balanced, and with groups such that no group is cut."""
        cut = balanced_cut(self.groups if self.groups > 1 else self.in_channels, parts)
        if self.groups == 1:
            return windows_of(cut), balanced_windows(self.out_channels, parts)
        inputs, outputs = self.in_channels // self.groups, self.out_channels // self.groups
        return windows_of([end * inputs for end in cut]), windows_of([end * outputs for end in cut])


class StationaryConv1d(StationaryConvolution, torch_classes=(nn.Conv1d,)):
    """`torch.nn.Conv1d` by a stationary algorithm; see :class:`StationaryConvolution`."""


class StationaryConv2d(StationaryConvolution, torch_classes=(nn.Conv2d,)):
    """`torch.nn.Conv2d` by a stationary algorithm; see :class:`StationaryConvolution`."""


class StationaryConv3d(StationaryConvolution, torch_classes=(nn.Conv3d,)):
    """`torch.nn.Conv3d` by a stationary algorithm; see :class:`StationaryConvolution`."""
