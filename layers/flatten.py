"""Flattening a tensor that is cut [Hewett21, section 5: repartitioning as glue before the classifier].

    forward    x ← T_{P_x→P_f} x              of the dimensions s to e, the first alone stays cut
               y = flat(x)                     on each worker
               y ← T_{P_f→P_y} y              to where it is wanted, if that is elsewhere
    adjoint    δy ← T* δy    δx = flat* δy    δx ← T* δx

In row-major order a part of the dimensions s to e is one interval of the flat one only where it is whole in those
from s + 1 to e. P_f has all the workers of P_x, those of the flattened dimensions along the first of them; a window
[a, b) of it becomes [a n, b n), where n is the number of elements of the others. Where P_x is such a partition already,
nothing travels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import apply
from adjointlab.layers.distributed import DistributedModule, dtype_name
from adjointlab.primitives.repartition import Repartition

__all__ = ["Flatten"]


class Flatten(DistributedModule):
    """`torch.nn.Flatten` over `partition`, of the order of the input, which is cut in any dimensions.

    The output lies over all of the workers: the dimensions that are not flattened are cut as before, and the flat one into
    multiples of what follows the first of the flattened dimensions. `target`, a layout of the output over any ranks, says
    where it is wanted instead: that of the next layer's input, ``linear.domain.tensors[0].layout``. Either way
    ``codomain.tensors[0].layout`` is where it lies.

    `cuts` are the boundaries of the input in each dimension (default, and for `None` in one: balanced).

    Raises `ValueError`, with torch's words, for dimensions that the input has not or that are in the wrong order; and for a
    partition of another order than the input, and a target that is no layout of the output; and in a call, on every rank, for
    a local tensor that is not what `domain` says on some.
    """

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        start_dim: int = 1,
        end_dim: int = -1,
        *,
        target: Layout | None = None,
        dtype: torch.dtype | None = None,
        cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        super().__init__(comm, partition)
        shape = tuple(input_shape)
        order = len(shape)
        self.start_dim, self.end_dim = start_dim, end_dim
        first, last = (_dimension(dim, order) for dim in (start_dim, end_dim))
        if first > last:
            raise ValueError("flatten() has invalid args: start_dim cannot come after end_dim")
        self.check_order(shape)
        name = dtype_name(dtype or torch.get_default_dtype())
        x = Layout.cut(shape, partition, (None,) * order if cuts is None else cuts)
        along = slice(first, last + 1)
        workers = math.prod(partition.shape[along])
        # The workers keep their order: those along the flattened dimensions are in row-major order along the first.
        lead, trail = partition.shape[:first], partition.shape[last + 1 :]
        sides = partition.shape[along]
        gathered = x
        if math.prod(sides[1:]) > 1:
            row = Partition((*lead, workers, *(1,) * (last - first), *trail), partition.ranks)
            kept = [None if first <= dim <= last else x.ends(dim) for dim in range(order)]
            gathered = Layout.cut(shape, row, kept)
        each = math.prod(shape[first + 1 : last + 1])
        length = math.prod(shape[along])
        cut = ((0, 1),) if order == 0 else tuple((a * each, b * each) for a, b in gathered.windows[first])
        y = Layout(
            (*shape[:first], length, *shape[last + 1 :]),
            Partition((*lead, workers, *trail), partition.ranks),
            (*gathered.windows[:first], cut, *gathered.windows[last + 1 :]),
        )
        self.gather = None if gathered is x else Repartition(comm, x, gathered, dtype=name)
        self.made = y.local_shape(self.rank)
        self.deliver: Repartition | None = None
        if target is not None:
            if target.shape != y.shape:
                raise ValueError(
                    f"target: a layout of a tensor of shape {target.shape}, but the output has shape {y.shape}"
                )
            if not Space(target).fits(Space(y)):
                self.deliver = Repartition(comm, y, target, dtype=name)
            y = target
        self.domain, self.codomain = Space(x, dtype=name), Space(y, dtype=name, name="y")

    @classmethod
    def from_sequential(
        cls, module: nn.Flatten, comm: Any, partition: Partition, input_shape: Sequence[int], **given: Any
    ) -> Self:
        """The distributed layer with the arguments of `module`; `given` are those that it has not, from `target` on.

        Raises `ValueError` for a module of another class.
        """
        cls.check_sequential(module, nn.Flatten)
        layer = cls(comm, partition, input_shape, module.start_dim, module.end_dim, **given)
        return layer.train(module.training)

    def sequential(self) -> nn.Flatten:
        """`torch.nn.Flatten` with the same arguments."""
        return nn.Flatten(self.start_dim, self.end_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        if self.gather is not None:
            x = apply(self.gather, x)
        y = x.reshape(self.made)
        if self.deliver is not None:
            y = apply(self.deliver, y)
        return y


def _dimension(dim: int, order: int) -> int:
    """A dimension counted from the first one; a tensor of order 0 counts as one of order 1, as in torch."""
    least = -max(1, order)
    if not least <= dim <= -least - 1:
        raise ValueError(
            f"Dimension out of range (expected to be in range of [{least}, {-least - 1}], but got {dim})"
        )
    return dim - least if dim < 0 else dim
