"""Flattening a tensor that is cut [Hewett21, section 5: a repartition before the classifier].

    forward    x ← T_{P_x→P_f} x              of the dimensions s to e, the first alone stays cut
               y = flat(x)                     on each worker
               y ← T_{P_f→P_y} y              to where it is wanted, if that is elsewhere
    adjoint    δy ← T* δy    δx = flat* δy    δx ← T* δx

In row-major order a part of the dimensions s to e is one interval of the flat one only where it is whole in those
from s + 1 to e. P_f has all the workers of P_x, those of the flattened dimensions along the first of them; a window
[a, b) of it becomes [a n, b n), where n is the number of elements of the others. A tensor of 4 x 3, n = 3, over 2 x 2
workers, and over the 4 x 1 of P_f:

        0   1 | 2             0   1   2    worker 0: [0, 3)
        3   4 | 5             -----------
        ------+---    T       3   4   5    worker 1: [3, 6)
        6   7 | 8     →       -----------
        9  10 | 11            6   7   8    worker 2: [6, 9)
                              -----------
                              9  10  11    worker 3: [9, 12)

Where P_x is such a partition already, nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import apply
from adjointlab.layers.distributed import TorchLayer, dtype_name
from adjointlab.layers.torch_modules import result_of
from adjointlab.primitives.repartition import Repartition

__all__ = ["Flatten"]


class Flatten(TorchLayer, torch_classes=(nn.Flatten,)):
    """`torch.nn.Flatten` over `partition`, of the order of the input, which is cut in any dimensions.

    The output lies over all of the workers: the dimensions that are not flattened are cut as before, and the flat one into
    multiples of the number of elements that follow the first of the flattened dimensions. `target`, a layout of the
    output over any ranks, says where it is wanted instead: that of the next layer's input,
    ``linear.domain.tensors[0].layout``. Either way ``codomain.tensors[0].layout`` is where it lies.

    `cuts` are the boundaries of the input in each dimension (default, and for `None` in one: balanced).

    Raises `ValueError`, with torch's words, for dimensions that the input has not or that are in the wrong order; and for a
    partition of another order than the input, and a target that is no layout of the output.
    """

    options = ("target", "cuts")

    def lay_out(
        self,
        module: nn.Flatten,
        target: Layout | None = None,
        cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        comm, partition, shape = self.comm, self.partition, self.input_shape
        order = len(shape)
        # On the device "meta" a view has a shape and no elements; an empty batch will not do where it is flattened.
        flat_shape = tuple(result_of(module, torch.empty(shape, device="meta")).shape)
        self.check_order(shape)
        # Torch has found both dimensions legal. A tensor of order 0 counts as one of order 1 there.
        first, last = (dim % max(1, order) for dim in (module.start_dim, module.end_dim))
        name = dtype_name(self.dtype)
        x = Layout.cut(shape, partition, (None,) * order if cuts is None else cuts)
        gathered = _cut_along_the_first(x, first, last)
        per_index = math.prod(shape[first + 1 : last + 1])
        flat = (
            tuple((a * per_index, b * per_index) for a, b in gathered.windows[first]) if order else ((0, 1),)
        )
        leading, trailing = partition.shape[:first], partition.shape[last + 1 :]
        workers = math.prod(partition.shape[first : last + 1])
        y = Layout(
            flat_shape,
            Partition((*leading, workers, *trailing), partition.ranks),
            (*gathered.windows[:first], flat, *gathered.windows[last + 1 :]),
        )
        self.gather = None if gathered is x else Repartition(comm, x, gathered, dtype=name)
        self.flat_local_shape = y.local_shape(self.rank)
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        if self.gather is not None:
            x = apply(self.gather, x)
        y = x.reshape(self.flat_local_shape)
        if self.deliver is not None:
            y = apply(self.deliver, y)
        return y


def _cut_along_the_first(x: Layout, first: int, last: int) -> Layout:
    """The layout over the same workers in which of the dimensions `first` to `last` only `first` is cut: P_f."""
    sides = x.partition.shape
    if math.prod(sides[first + 1 : last + 1]) == 1:
        return x
    # The workers keep their order: those along the flattened dimensions are in row-major order along the first.
    workers = math.prod(sides[first : last + 1])
    row = Partition((*sides[:first], workers, *(1,) * (last - first), *sides[last + 1 :]), x.partition.ranks)
    return Layout.cut(x.shape, row, [None if first <= dim <= last else x.ends(dim) for dim in range(x.order)])
