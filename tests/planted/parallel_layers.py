"""Planted bugs of tensor-parallel layers: each one slip in a layer of the library."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

import adjointlab as al
from adjointlab.engine.subject import Subject
from adjointlab.layers.differentiable import carried
from adjointlab.layers.linear import affine_summand
from adjointlab.layers.subjects import installed as subjects
from adjointlab.layers.subjects.tensor_parallel import parallel_linear, sequential_linear
from adjointlab.layers.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from tests.planted.bug import PlantedBug
from tests.planted.layers import Altered

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


def planted(bug: str, kind: type[nn.Module], check: str) -> PlantedBug:
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
    return PlantedBug(bug, made, check)


FAMILIES: tuple[tuple[type[nn.Module], Subject, Any, Any], ...] = (
    (ColumnParallelLinear, subjects.column_parallel_linears, sequential_linear, parallel_linear),
    (RowParallelLinear, subjects.row_parallel_linears, sequential_linear, parallel_linear),
)
"""A family, and the subject, the sequential twin and the maker that its bugs share."""

PLANTED = (
    planted("row-parallel bias added on every worker", RowBiasOnEveryWorker, "sequential"),
    planted("sequence-parallel gradient not reduced", SequenceGradientNotReduced, "gradients"),
    planted("column-parallel input gradient not reduced", InputGradientOfTheOwnColumns, "gradients"),
    planted("gathered output's gradient summed", GatheredGradientSummed, "gradients"),
    planted("row-parallel gradient reduced twice", GradientReducedTwice, "gradients"),
    planted("scattered input's gradient not gathered", PartOfTheWholeInputNotScattered, "gradients"),
)
