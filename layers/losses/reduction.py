"""The reduction of a distributed loss to one value [Hewett21, section 4.3]: point-wise, up to a sum over the partition.

    forward    l̂ = Σ L(x̂, t̂)                   on each worker, over its part of the tensors
               l = R_{P→root} l̂                  the loss, a tensor of order 0, on one worker
    adjoint    δl̂ = R* δl                        the cotangent, on every worker
               (δx̂, δt̂) = [δL]*(δl̂)

The broadcast that an all-reduction would perform in the forward pass comes by itself in the adjoint. A mean divides on the
root by the number or weight of the elements, summed alike: parts of different sizes weigh as much as they hold.

With `all_reduce` every worker of the partition has the loss, and it is one value, not one for each of them: its local type
is invariant. So the adjoint of the all-reduction Σ, of varying summands to one invariant value, moves nothing:

    forward    l = Σ_{P} l̂
    adjoint    δl̂ = δl

(an all-reduction to varying copies would sum their cotangents, and P calls of ``loss.backward()`` would give P times the
gradient; docs/local-types.md has both).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition, whole_number
from adjointlab.core.space import LocalType, Space
from adjointlab.layers.differentiable import apply
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.losses.absent import absent
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.primitives.validation import check_layout
from adjointlab.typing import Array, Communicator

__all__ = ["Loss", "SharedSum"]

SUMS = torch.float64
"""Losses and counts are summed in double precision, in which counts are exact."""


class Loss(TorchLayer):
    """A loss over `partition`, of the order of the input, and its reduction to one value.

    Further dimensions of `partition` with one worker each are left out, so that of a linear layer's output will do.

    Of torch's arguments it does not take the deprecated `size_average` and `reduce`.

    With `reduction` "mean" or "sum" the loss is a tensor of order 0 on the rank `root`, which may be any rank of `comm`,
    and a tensor of zero volume, of shape (0,), elsewhere: an :class:`~adjointlab.layers.losses.absent.AbsentLoss`. With `all_reduce` every worker of `partition`
    has the loss, as an invariant value; every worker gives the same cotangent, and it counts once. `root` is then of no meaning,
    and neither has a meaning with `reduction` "none". Either way ``loss.backward()`` is called on every rank.

    `cuts` are the boundaries of the input in each dimension (default, and for `None` in one: balanced).

    Raises `ValueError`, in torch's words for what torch refuses, and for a `root` that is no rank, and a partition of
    another order than the input; `TypeError` for a `root` that is not an integer. Unlike in torch, inputs and targets are not broadcast to each other.
    """

    reduction_names: ClassVar[tuple[str, ...]] = ("none", "mean", "sum")
    argument_names: ClassVar[tuple[str, ...]]
    """Torch's arguments in their order, without the deprecated ones among them."""

    options: ClassVar[tuple[str, ...]] = ("root", "all_reduce", "cuts")

    def lay_out(
        self,
        module: nn.modules.loss._Loss,
        root: int = 0,
        all_reduce: bool = False,
        cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        comm, shape = self.comm, self.input_shape
        if not 0 <= whole_number("root", root) < comm.Get_size():
            raise ValueError(f"root: {root} is none of the ranks 0 to {comm.Get_size() - 1}")
        self.partition = _without_trailing_ones(self.partition, len(shape))
        self.check_order(shape)
        self.root, self.all_reduce = root, all_reduce
        self.reduction = module.reduction
        self.input_layout = Layout.cut(shape, self.partition, (None,) * len(shape) if cuts is None else cuts)
        self.plan(module)

    def plan(self, module: nn.Module) -> None:
        """Make the operators, spaces and buffers of this loss, whose torch module is `module`."""
        raise NotImplementedError

    def sequential(self) -> nn.Module:
        """Torch's loss with the same arguments, and copies of the weights that the layer has now."""
        module = super().sequential()
        for name, weight in self._buffers.items():
            setattr(module, name, None if weight is None else weight.detach().clone())
        return module

    @classmethod
    def torch_module(cls, dtype: torch.dtype | None, *arguments: object, **named: object) -> nn.Module:
        if arguments and isinstance(arguments[0], nn.Module):
            return super().torch_module(dtype, *arguments, **named)
        if len(arguments) > len(cls.argument_names):
            raise TypeError(
                f"{cls.__name__}: takes {', '.join(cls.argument_names)}, not {len(arguments)} arguments"
            )
        by_name = dict(zip(cls.argument_names, arguments, strict=False))
        return super().torch_module(dtype, **by_name, **named)

    def space_of_loss(self, each: Layout) -> Space:
        """Collective: plan the sum of the losses that lie as `each` says, and of the divisors of a mean; the space of the loss."""
        if self.reduction == "none":
            return Space(each, dtype=dtype_name(self.dtype), name="loss")
        summands = 2 if self.reduction == "mean" else 1
        numbers = Layout((summands,), self.partition, [((0, summands),)], (None,))
        name, order = dtype_name(self.dtype), self.partition.order
        self.sum_parts: LinearOperator
        if self.all_reduce:
            self.sum_parts = SharedSum(self.comm, numbers, dtype=dtype_name(SUMS))
            types = (LocalType.INVARIANT,) * order
            return Space(Layout((), self.partition, [], ()), dtype=name, types=types, name="loss")
        one = Partition((1,) * order, [self.root])
        self.sum_parts = SumReduce(self.comm, numbers, one, dtype=dtype_name(SUMS), preserve_batch=False)
        return Space(Layout((), one, [], ()), dtype=name, name="loss")

    def reduced(self, summand: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
        """The loss, from this worker's summand, and from that of the divisor where it is a mean.

        A rank that is no worker sends nothing: it passes none of its numbers on, but depends on them in the graph, and so
        takes part in the backward pass.
        """
        numbers = torch.stack([summand] if divisor is None else [summand, divisor])
        sums: torch.Tensor = apply(
            self.sum_parts, numbers if self.partition.is_active(self.rank) else numbers[:0]
        )
        if sums.numel() == 0:
            return absent(sums.reshape(-1).to(self.dtype))
        loss = sums[0] if len(sums) == 1 else sums[0] / sums[1].detach()
        return loss.to(self.dtype)


def _without_trailing_ones(partition: Partition, order: int) -> Partition:
    """The partition without its dimensions from `order` on, if each of them has one worker; else the partition itself."""
    if partition.order <= order or set(partition.shape[order:]) != {1}:
        return partition
    return Partition(partition.shape[:order], partition.ranks)


class SharedSum(LinearOperator):
    """Σ: varying local tensors over the same window are summed to one invariant value, which every worker has.

    ``forward(x)`` is the all-reduction over all dimensions of the partition. ``adjoint(y)`` moves nothing: each summand's
    cotangent is that of the sum. Raises what :class:`AllSumReduce` raises.
    """

    symbol = "Σ"
    batched = True

    def __init__(self, comm: Communicator, layout: Layout, *, dtype: str = "float64") -> None:
        check_layout("layout", layout, comm)
        order = layout.partition.order
        self.comm = comm
        self._sum = AllSumReduce(comm, layout, range(order), dtype=dtype)
        self.gain = self.fan_in = self._sum.gain
        self.domain = Space(layout, dtype=dtype, name="x")
        self.codomain = Space(layout, dtype=dtype, types=(LocalType.INVARIANT,) * order, name="y")

    def forward(self, x: Array) -> Array:
        """The sum, on every worker."""
        total: Array = self._sum.forward(x)
        return total

    def adjoint(self, y: Array) -> Array:
        """This worker's copy of y."""
        result: Array = arrays.copy(y)
        return result
