"""Column- and row-parallel linear layers over a line of workers, as in Megatron [Megatron26].

    column      W and b cut by rows:      x whole ── f ──► x Wₛᵀ + bₛ ──► yₛ cut along its last dimension
    row         W cut by columns:         xₛ cut along its last dimension ──► xₛ Wₛᵀ ── g ──► y whole

    f           sends nothing, and the adjoint all-reduces                      invariant → replicated
    g = f*      all-reduces, and the adjoint sends nothing                      partial → invariant

A row-parallel layer takes the output of a column-parallel one directly: one all-reduce in each direction for the pair. With sequence
parallelism x and y are cut along their first dimension in between: f becomes an all-gather and g a reduce-scatter, each the
adjoint of the other. They send as many bytes as the all-reduces, and no worker holds the whole x or y outside the pair of layers.

The bias of the row-parallel layer lies on the first worker, which adds it to its summand: so the sum contains it once, and its
gradient is complete under sequence parallelism, too, without another reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space
from adjointlab.layers.differentiable import apply, carried
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.linear import affine_summand
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.validation import arguments_renamed
from adjointlab.typing import Array, Communicator

__all__ = ["ColumnParallelLinear", "CopyToWorkers", "RowParallelLinear"]

_WHOLE, _INPUT = LocalType.INVARIANT, LocalType.REPLICATED


class CopyToWorkers(LinearOperator):
    """Megatron's f: a tensor that is the same on all workers of a line, which then use it differently; the adjoint sums."""

    symbol = "f"
    batched = True

    def __init__(self, comm: Communicator, layout: Layout, *, dtype: str = "float64") -> None:
        self.comm = comm
        self.sum = AllSumReduce(comm, layout, (0,), dtype=dtype)
        self.domain = Space(layout, dtype=dtype, types=(_WHOLE,), name="x")
        self.codomain = Space(layout, dtype=dtype, types=(_INPUT,), name="y")
        self.gain, self.fan_in = self.sum.gain, self.sum.fan_in
        self.is_identity = layout.partition.size == 1

    def forward(self, x: Array) -> Array:
        """Return a copy of x."""
        return arrays.copy(x)

    def adjoint(self, y: Array) -> Array:
        """Return the sum of all workers' y."""
        return self.sum.forward(y)


class _TensorParallel(TorchLayer, torch_classes=(nn.Linear,)):
    """Base of both layers: a line of workers, and tensors that are whole or cut along one dimension."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    skip_bias_add: bool

    def check_line(self, module: nn.Linear, sequence_parallel: bool) -> None:
        """Raise `ValueError` unless the partition is a line, and the input has its features last and a sequence to cut."""
        shape = self.input_shape
        if self.partition.order != 1:
            raise ValueError(
                f"partition: of order {self.partition.order} ({self.partition}), but tensor-parallel layers need a line of workers"
            )
        if not shape or shape[-1] != module.in_features:
            raise ValueError(f"input_shape: {shape} does not end in in_features = {module.in_features}")
        if sequence_parallel and len(shape) < 2:
            raise ValueError(f"sequence_parallel: an input {shape} has no dimension but that of the features")

    def whole(self, shape: Sequence[int]) -> Layout:
        """Return the layout of a tensor that all workers hold."""
        return Layout(shape, self.partition, axes=(None,) * len(shape))

    def parts(self, shape: Sequence[int], dim: int, cut: Sequence[int] | None = None) -> Layout:
        """Return the layout of a tensor that is cut along dimension `dim`, at `cut` or in balanced parts."""
        dim %= len(shape)
        dims = range(len(shape))
        with arguments_renamed(cuts="cut"):
            return Layout.cut(
                shape,
                self.partition,
                [cut if d == dim else None for d in dims],
                [0 if d == dim else None for d in dims],
            )

    def copy(self, shape: Sequence[int]) -> CopyToWorkers:
        """Return f for tensors of this shape."""
        return CopyToWorkers(self.comm, self.whole(shape), dtype=dtype_name(self.dtype))

    def gather(self, layout: Layout, dim: int, *, invariant: bool) -> AllGather:
        """Return the all-gather of dimension `dim`, for workers that then all use it in the same way (`invariant`) or differently."""
        return AllGather(
            self.comm,
            layout,
            dim % layout.order,
            dtype=dtype_name(self.dtype),
            copies="invariant" if invariant else "replicated",
        )

    def separate_bias(self, layout: Layout, target: Layout, target_type: LocalType | None) -> None:
        """Make the bias a second output instead of adding it: from its layout to `target`, with copies of `target_type`."""
        self.spread_bias = Repartition(
            self.comm,
            layout,
            target,
            dtype=dtype_name(self.dtype),
            target_types=() if target_type is None else (target_type,),
        )
        y, (bias,) = self.codomain.tensors[0], self.spread_bias.codomain.tensors
        self.codomain = Space(y, replace(bias, name="bias"))

    def local_product(self, x: torch.Tensor) -> torch.Tensor:
        """Return x Wₛᵀ, with the bias unless that is an output."""
        return affine_summand(x, self.weight, None if self.skip_bias_add else self.bias).to(x.dtype)

    def results(self, y: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """Return y; with `skip_bias_add` y and the bias, or `None` without one."""
        if not self.skip_bias_add:
            return y
        return y, None if self.bias is None else apply(self.spread_bias, self.bias)


class ColumnParallelLinear(_TensorParallel):
    """`torch.nn.Linear` whose output features are cut over `partition`, a line of workers.

    x, of global shape `input_shape`, is whole on every worker, the same tensor with the same gradient (invariant); with
    `sequence_parallel` it is cut along its first dimension, and gathered. y is cut along its last dimension; with
    `gather_output` it is whole on every worker. With `skip_bias_add` the bias is not added, but returned as a second result,
    in the parts of y's features. `cut` has the boundaries of the output features (default: balanced).

    Raises `ValueError` for an input that does not end in `in_features`, a partition that is not a line, and, as Megatron does,
    for `gather_output` together with `sequence_parallel`.
    """

    options = ("gather_output", "sequence_parallel", "skip_bias_add", "cut")

    def lay_out(
        self,
        module: nn.Linear,
        *,
        gather_output: bool = False,
        sequence_parallel: bool = False,
        skip_bias_add: bool = False,
        cut: Sequence[int] | None = None,
    ) -> None:
        self.check_line(module, sequence_parallel)
        if gather_output and sequence_parallel:
            raise ValueError("gather_output: not together with sequence_parallel, which cuts what follows")
        self.gather_output, self.sequence_parallel = gather_output, sequence_parallel
        self.skip_bias_add = skip_bias_add
        shape, outputs = self.input_shape, module.out_features
        self.enter: LinearOperator = (
            self.gather(self.parts(shape, 0), 0, invariant=False) if sequence_parallel else self.copy(shape)
        )
        y = self.parts((*shape[:-1], outputs), -1, cut)
        weight, bias = self.parts((outputs, module.in_features), 0, cut), self.parts((outputs,), 0, cut)
        self.leave = self.gather(y, -1, invariant=True) if gather_output else None
        self.domain = self.enter.domain
        self.codomain = (
            Space(y, dtype=dtype_name(self.dtype), name="y") if self.leave is None else self.leave.codomain
        )
        self.own(module, {"weight": weight, "bias": bias})
        if skip_bias_add and module.bias is not None:
            self.separate_bias(
                bias, self.whole((outputs,)) if gather_output else bias, _WHOLE if gather_output else None
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """The local tensor of y, from that of x; with `skip_bias_add` that and the bias, or `None` without one."""
        (x,) = self.check_inputs(x)
        x = carried(self.enter, x)
        y = self.local_product(x)
        if self.leave is not None:
            y = apply(self.leave, y)
        return self.results(y)


class RowParallelLinear(_TensorParallel):
    """`torch.nn.Linear` whose input features are cut over `partition`, a line of workers.

    x, of global shape `input_shape`, is cut along its last dimension, as a column-parallel layer returns it; with
    `input_is_parallel=False` it is whole on every worker, which takes its part. y is whole on every worker, the same tensor with
    the same gradient (invariant); with `sequence_parallel` it is cut along its first dimension. With `skip_bias_add` the bias is
    not added, but returned as a second result, on every worker. `cut` has the boundaries of the input features (default: balanced).

    Raises `ValueError` for an input that does not end in `in_features`, a partition that is not a line, and, as Megatron does,
    for `sequence_parallel` with an input that is not parallel.
    """

    options = ("input_is_parallel", "sequence_parallel", "skip_bias_add", "cut")

    def lay_out(
        self,
        module: nn.Linear,
        *,
        input_is_parallel: bool = True,
        sequence_parallel: bool = False,
        skip_bias_add: bool = False,
        cut: Sequence[int] | None = None,
    ) -> None:
        self.check_line(module, sequence_parallel)
        if sequence_parallel and not input_is_parallel:
            raise ValueError("input_is_parallel: to enable sequence_parallel, it must be True")
        self.input_is_parallel, self.sequence_parallel = input_is_parallel, sequence_parallel
        self.skip_bias_add = skip_bias_add
        shape, outputs = self.input_shape, module.out_features
        x, y_shape = self.parts(shape, -1, cut), (*shape[:-1], outputs)
        self.enter = None if input_is_parallel else self.gather(x, -1, invariant=True).H
        self.leave: LinearOperator = (
            self.gather(self.parts(y_shape, 0), 0, invariant=False).H
            if sequence_parallel
            else self.copy(y_shape).H
        )
        self.domain = Space(x, dtype=dtype_name(self.dtype)) if self.enter is None else self.enter.domain
        self.codomain = self.leave.codomain
        bias = Layout((outputs,), Partition((1,), self.partition.ranks[:1]), axes=(None,))
        self.own(module, {"weight": self.parts((outputs, module.in_features), 1, cut), "bias": bias})
        if skip_bias_add and module.bias is not None:
            # If y is cut, each worker adds the bias to another part, and its gradient is the sum over the parts.
            self.separate_bias(bias, self.whole((outputs,)), _INPUT if sequence_parallel else _WHOLE)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """The local tensor of y, from that of x; with `skip_bias_add` that and the bias, or `None` without one."""
        (x,) = self.check_inputs(x)
        if self.enter is not None:
            x = apply(self.enter, x)
        return self.results(apply(self.leave, self.local_product(x)))
