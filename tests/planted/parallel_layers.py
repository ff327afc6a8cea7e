"""Planted bugs of tensor-parallel layers, overlap and multi-head attention: each one slip in a layer of the library."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

import adjointlab as al
from adjointlab.core.layout import Layout
from adjointlab.engine.subject import Subject
from adjointlab.layers.convolution import Conv1d, Convolution
from adjointlab.layers.differentiable import carried
from adjointlab.layers.linear import affine_summand
from adjointlab.layers.multihead_attention import MultiheadAttention
from adjointlab.layers.overlap import OverlappedConvolution
from adjointlab.layers.subjects import installed as subjects
from adjointlab.layers.subjects.common import layer_of
from adjointlab.layers.subjects.convolution import sequential_convolution
from adjointlab.layers.subjects.multihead_attention import multihead_attention, sequential_multihead_attention
from adjointlab.layers.subjects.tensor_parallel import parallel_linear, sequential_linear
from adjointlab.layers.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.repartition import Repartition
from tests.planted.altered import Altered
from tests.planted.bug import PlantedBug

# Column- and row-parallel linear layers.


class RowBiasOnEveryWorker(RowParallelLinear):
    """Every worker has the bias, and adds it to its summand before the all-reduce."""

    def forward(self, x: torch.Tensor) -> Any:
        if self.bias is None or self.skip_bias_add or self.enter is not None:
            return super().forward(x)
        (x,) = self.check_inputs(x)
        (held,) = (tensor for tensor in self.parameter_space.tensors if tensor.name == "bias")
        spread = Broadcast(self.comm, held.layout, self.partition, dtype=held.dtype, preserve_batch=False)
        return carried(self.leave, affine_summand(x, self.weight, carried(spread, self.bias)))


class SequenceGradientNotReduced(ColumnParallelLinear):
    """The backward pass of the all-gather keeps the worker's own part of its own gradient."""

    def lay_out(self, module: nn.Linear, **options: Any) -> None:
        super().lay_out(module, **options)
        if self.sequence_parallel:
            (x,) = self.domain.tensors
            self.enter = AllGather(self.comm, x.layout, 0, dtype=x.dtype, copies="invariant")


class InputGradientOfTheOwnColumns(ColumnParallelLinear):
    """The backward pass of f moves nothing either."""

    def lay_out(self, module: nn.Linear, **options: Any) -> None:
        super().lay_out(module, **options)
        if not self.sequence_parallel:
            self.enter = Altered(self.enter, adjoint=torch.clone)


class GatheredGradientSummed(ColumnParallelLinear):
    """The backward pass of the gathered output sums the copies of one gradient."""

    def lay_out(self, module: nn.Linear, **options: Any) -> None:
        super().lay_out(module, **options)
        if self.leave is not None:
            (y,) = self.leave.domain.tensors
            self.leave = AllGather(self.comm, y.layout, y.layout.order - 1, dtype=y.dtype)


class GradientReducedTwice(RowParallelLinear):
    """The backward pass of g is an all-reduce too, of copies of one gradient."""

    def lay_out(self, module: nn.Linear, **options: Any) -> None:
        super().lay_out(module, **options)
        if not self.sequence_parallel:
            (y,) = self.leave.codomain.tensors
            self.leave = Altered(
                self.leave, adjoint=AllSumReduce(self.comm, y.layout, (0,), dtype=y.dtype).forward
            )


class PartOfTheWholeInputNotScattered(RowParallelLinear):
    """The backward pass of the scatter keeps the own part of the gradient, and zeros elsewhere."""

    def lay_out(self, module: nn.Linear, **options: Any) -> None:
        super().lay_out(module, **options)
        if self.enter is not None:
            (part,) = self.enter.codomain.tensors
            features = self.input_shape[-1]

            def padded(y: torch.Tensor) -> torch.Tensor:
                window = part.layout.window(self.rank)
                if window is None:
                    return y.clone()
                start, stop = window[-1]
                return torch.nn.functional.pad(y, (start, features - stop))

            self.enter = Altered(self.enter, adjoint=padded)


# Multi-head attention.


class FirstPartOfTheOutputProjection(MultiheadAttention):
    """Every worker multiplies its heads by the first columns of the output projection."""

    def lay_out(self, module: nn.MultiheadAttention, **options: Any) -> None:
        super().lay_out(module, **options)
        (held,) = self.spread["out_proj_weight"].domain.tensors
        columns = [(0, stop - start) for start, stop in self.of_heads]
        first = Layout(held.layout.shape, self.partition, [held.layout.windows[0], columns], held.layout.axes)
        self.spread["out_proj_weight"] = Repartition(self.comm, held.layout, first, dtype=held.dtype)


class OutputBiasOfEveryHead(MultiheadAttention):
    """Every worker along P_h adds the bias of the output projection to its summand."""

    def lay_out(self, module: nn.MultiheadAttention, **options: Any) -> None:
        super().lay_out(module, **options)
        if "out_proj_bias" in self.spread:
            (bias,) = self.spread["out_proj_bias"].domain.tensors
            self.spread["out_proj_bias"] = Broadcast(
                self.comm, bias.layout, self.partition, dtype=bias.dtype, preserve_batch=False
            )


class WeightsAveragedOverOwnHeads(MultiheadAttention):
    """Each worker divides the sum of its heads' weights by the number of these."""

    def forward(self, *x: torch.Tensor, **named: Any) -> Any:
        y, weights = super().forward(*x, **named)
        if weights is None or not named["average_attn_weights"]:
            return y, weights
        own = max(1, self.attention.domain.tensors[0].layout.local_shape(self.rank)[1])
        return y, weights * (self.num_heads / own)


class ScaledByTheEmbedding(MultiheadAttention):
    """The scores are divided by the root of `embed_dim`."""

    def lay_out(self, module: nn.MultiheadAttention, **options: Any) -> None:
        super().lay_out(module, **options)
        self.attention.scale = self.embed_dim**-0.5


# Overlap of convolution and exchange.


class OverlapsWrongly(Convolution):
    """A convolution whose overlap is of the class `kind`."""

    kind: type[OverlappedConvolution]

    def lay_out(self, module: nn.Module, **options: Any) -> None:
        super().lay_out(module, **options)
        if self.overlapped is not None:
            self.overlapped.__class__ = self.kind


class AddsTheRimTwice(OverlappedConvolution):
    """The slabs of the rim are added up, and each is whole, so that corners count twice; so does a rim of one dimension."""

    def forward(self, x: Any, weight: Any, bias: Any, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
        y, window = super().forward(x, weight, bias, groups)
        for part in self.rim if self.interior is not None else ():
            again = self.convolve(window[(..., *part.inputs)], weight, None, groups)
            y[(..., *part.outputs)] += again
        return y, window


class RimBeforeTheHaloIsThere(OverlappedConvolution):
    """The rim is convolved while messages travel too."""

    def forward(self, x: Any, weight: Any, bias: Any, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
        early: list[torch.Tensor] = []
        window: Any = self.exchange.forward_while(
            x,
            lambda window: early.append(self.convolve(window, weight, bias, groups)),  # type: ignore[arg-type]
        )
        return early[0], window


class InteriorReadsTheHalo(OverlappedConvolution):
    """The interior is wider by an output on each side."""

    def forward(self, x: Any, weight: Any, bias: Any, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
        wide: list[torch.Tensor] = []
        y, window = super().forward(x, weight, bias, groups)
        if self.interior is None:
            return y, window
        (outputs,) = self.interior.outputs
        first, last = max(0, outputs.start - 1), min(y.shape[-1], outputs.stop + 1)
        own = window.clone()
        bulk, over = (
            space.tensors[0].layout.window(self.exchange.comm.Get_rank())
            for space in (self.exchange.domain, self.exchange.codomain)
        )
        assert bulk is not None
        assert over is not None
        own[..., : max(0, bulk[2][0] - over[2][0])] = 0
        own[..., bulk[2][1] - over[2][0] :] = 0
        wide.append(self.convolve(own, weight, bias, groups))
        y = y.clone()
        y[..., first:last] = wide[0][..., first:last]
        return y, window


class WeightGradientOfOwnCells(OverlappedConvolution):
    """The weight's gradient, computed while the halo's cotangent is sent, takes the halo for zeros."""

    def gradients(self, cotangent: Any, window: torch.Tensor, *others: Any) -> Any:
        bulk, over = (
            space.tensors[0].layout.window(self.exchange.comm.Get_rank())
            for space in (self.exchange.domain, self.exchange.codomain)
        )
        assert bulk is not None
        assert over is not None
        own = window.clone()
        own[..., : max(0, bulk[2][0] - over[2][0])] = 0
        own[..., max(0, bulk[2][1] - over[2][0]) :] = 0
        return super().gradients(cotangent, own, *others)


class DataGradientOfTheInterior(OverlappedConvolution):
    """Sends back the data gradient of the interior's outputs alone."""

    def gradients(
        self, cotangent: Any, window: Any, weight: Any, groups: int, wanted: tuple[bool, bool, bool]
    ) -> Any:
        inner = torch.zeros_like(cotangent)
        if self.interior is not None:
            at = (..., *self.interior.outputs)
            inner[at] = cotangent[at]
        of_x, _, _ = super().gradients(inner, window, weight, groups, (True, False, False))
        return of_x, *super().gradients(cotangent, window, weight, groups, wanted)[1:]


def overlaps_wrongly(kind: type[OverlappedConvolution]) -> type[OverlapsWrongly]:
    """The convolution with an overlap of that class."""
    return type(kind.__name__, (OverlapsWrongly,), {"kind": kind})


def convolution(comm: Any, *, kind: type[Convolution], dims: int, **case: Any) -> nn.Module:
    """The convolution of a case in one dimension."""
    return layer_of(type(kind.__name__, (kind, Conv1d), {}))(comm, **case)


@al.subject(layer=partial(convolution, kind=Convolution), sequential=sequential_convolution, name="lines")
def lines(draw: Any, ranks: int) -> dict[str, Any]:
    """Convolutions of one dimension, all with overlap."""
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    padding = draw(st.integers(0, kernel // 2))
    bias = draw(st.booleans())
    channels = draw(st.integers(1, 2))
    spatial = draw(al.strategies.partitions(ranks, 1, whole=False))
    return {
        "dims": 1,
        "partition": al.Partition((1, 1, 1, *spatial.shape), spatial.ranks),
        "input_shape": (1, channels, draw(st.integers(kernel, 4 * spatial.size + kernel))),
        "in_channels": channels,
        "out_channels": draw(st.integers(1, 2)),
        "kernel_size": (kernel,),
        "stride": (stride,),
        "padding": ((padding, padding),),
        "dilation": (1,),
        "groups": 1,
        "bias": bias,
        "padding_mode": "zeros",
        "dtype": "float64",
        "overlap": True,
    }


def planted(bug: str, kind: type[nn.Module], check: str, least_ranks: int = 2) -> PlantedBug:
    """A bug with the strategy and the sequential twin of the right layer."""
    right, sequential, layer = next(
        (right, sequential, layer)
        for family, right, sequential, layer in FAMILIES
        if issubclass(kind, family)
    )
    made = al.subject(
        layer=partial(layer, kind=kind), sequential=sequential, twice_differentiable=True, name=kind.__name__
    )(right.draws)
    return PlantedBug(bug, made, check, least_ranks)


FAMILIES: tuple[tuple[type[nn.Module], Subject, Any, Any], ...] = (
    (ColumnParallelLinear, subjects.column_parallel_linears, sequential_linear, parallel_linear),
    (RowParallelLinear, subjects.row_parallel_linears, sequential_linear, parallel_linear),
    (Convolution, lines, sequential_convolution, convolution),
    (MultiheadAttention, subjects.multihead_attentions, sequential_multihead_attention, multihead_attention),
)
"""A family, and the subject, the sequential twin and the maker that its bugs share."""

PLANTED = (
    planted("row-parallel bias added on every worker", RowBiasOnEveryWorker, "sequential"),
    planted("sequence-parallel gradient not reduced", SequenceGradientNotReduced, "gradients"),
    planted("column-parallel input gradient not reduced", InputGradientOfTheOwnColumns, "gradients"),
    planted("gathered output's gradient summed", GatheredGradientSummed, "gradients"),
    planted("row-parallel gradient reduced twice", GradientReducedTwice, "gradients"),
    planted("scattered input's gradient not gathered", PartOfTheWholeInputNotScattered, "gradients"),
    planted("overlap adds the rim twice", overlaps_wrongly(AddsTheRimTwice), "sequential"),
    planted(
        "overlap starts before the exchange is complete",
        overlaps_wrongly(RimBeforeTheHaloIsThere),
        "sequential",
    ),
    planted("overlap's interior reads the halo", overlaps_wrongly(InteriorReadsTheHalo), "sequential"),
    planted(
        "overlap's weight gradient of own cells", overlaps_wrongly(WeightGradientOfOwnCells), "gradients"
    ),
    planted(
        "overlap sends the interior's data gradient", overlaps_wrongly(DataGradientOfTheInterior), "gradients"
    ),
    planted(
        "heads without their part of the output projection", FirstPartOfTheOutputProjection, "sequential"
    ),
    planted("output bias of every head's worker", OutputBiasOfEveryHead, "sequential"),
    planted("attention weights averaged over the own heads", WeightsAveragedOverOwnHeads, "sequential"),
    planted("scores scaled by embed_dim", ScaledByTheEmbedding, "sequential", 1),
)
