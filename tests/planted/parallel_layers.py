"""Planted bugs of tensor-parallel layers and multi-head attention: each one slip in a layer of the library."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

import adjointlab as al
from adjointlab.core.layout import Layout
from adjointlab.engine.subject import Subject
from adjointlab.layers.differentiable import carried
from adjointlab.layers.linear import affine_summand
from adjointlab.layers.multihead_attention import MultiheadAttention
from adjointlab.layers.subjects import installed as subjects
from adjointlab.layers.subjects.multihead_attention import multihead_attention, sequential_multihead_attention
from adjointlab.layers.subjects.tensor_parallel import parallel_linear, sequential_linear
from adjointlab.layers.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.repartition import Repartition
from tests.planted.bug import PlantedBug
from tests.planted.layers import Altered, not_reduced

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


class QueryGradientOfTheFirstHeads(MultiheadAttention):
    """The gradients of the query from the heads of other workers are forgotten."""

    def lay_out(self, module: nn.MultiheadAttention, **options: Any) -> None:
        super().lay_out(module, **options)
        query, *others = self.spread_inputs
        self.spread_inputs = (not_reduced(query), *others)  # type: ignore[assignment]


def planted(bug: str, kind: type[nn.Module], check: str, least_ranks: int = 2) -> PlantedBug:
    """A bug with the strategy and the sequential twin of the right layer."""
    right, sequential, layer = next(
        (right, sequential, layer)
        for family, right, sequential, layer in FAMILIES
        if issubclass(kind, family)
    )
    made = al.subject(
        layer=partial(layer, kind=kind),
        sequential=sequential,
        twice_differentiable=True,
        name=kind.__name__,
    )(right.draws)
    return PlantedBug(bug, made, check, least_ranks)


FAMILIES: tuple[tuple[type[nn.Module], Subject, Any, Any], ...] = (
    (ColumnParallelLinear, subjects.column_parallel_linears, sequential_linear, parallel_linear),
    (RowParallelLinear, subjects.row_parallel_linears, sequential_linear, parallel_linear),
    (
        MultiheadAttention,
        subjects.multihead_attentions,
        sequential_multihead_attention,
        multihead_attention,
    ),
)
"""A family, and the subject, the sequential twin and the maker that its bugs share."""

PLANTED = (
    planted("row-parallel bias added on every worker", RowBiasOnEveryWorker, "sequential"),
    planted("sequence-parallel gradient not reduced", SequenceGradientNotReduced, "gradients"),
    planted("column-parallel input gradient not reduced", InputGradientOfTheOwnColumns, "gradients"),
    planted("gathered output's gradient summed", GatheredGradientSummed, "gradients"),
    planted("row-parallel gradient reduced twice", GradientReducedTwice, "gradients"),
    planted("scattered input's gradient not gathered", PartOfTheWholeInputNotScattered, "gradients"),
    planted(
        "heads without their part of the output projection", FirstPartOfTheOutputProjection, "sequential"
    ),
    planted("output bias of every head's worker", OutputBiasOfEveryHead, "sequential"),
    planted("attention weights averaged over the own heads", WeightsAveragedOverOwnHeads, "sequential"),
    planted("scores scaled by embed_dim", ScaledByTheEmbedding, "sequential", 1),
    planted("query gradient not reduced over heads", QueryGradientOfTheFirstHeads, "gradients"),
)
