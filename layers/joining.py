"""Concatenation, stacking and splitting across cuts: y = [x_1 ... x_m] along one dimension, and the parts of a tensor.

    concatenation  forward    each x_i is repartitioned to its part of the worker's part of y, and these are concatenated there
    stacking       forward    the worker's parts of all x_i are stacked along the new dimension, which is not cut
    splitting      forward    x is repartitioned to the worker's parts of each y_i
    adjoint        of each repartition, the repartition back

Inputs and outputs are balanced, so the cuts of y differ from those of x_i, even in dimensions other than the joined one.
Splitting is the adjoint of concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import nn

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition, PartitionLike, entries
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.arguments import shape_of
from adjointlab.layers.differentiable import apply, connected
from adjointlab.layers.distributed import DistributedModule, TorchLayer
from adjointlab.layers.rearrangement import Steps, checked_target
from adjointlab.layers.torch_modules import dtype_name, result_of
from adjointlab.primitives.repartition import Repartition
from adjointlab.typing import Communicator

__all__ = ["Chunk", "Chunks", "Concatenation", "Join", "Part", "Pile", "Split", "Stack"]


class Join(nn.Module):
    """`torch.cat` as a module."""

    def __init__(self, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        """Return the concatenated tensor."""
        return torch.cat(x, self.dim)


class Part(nn.Module):
    """`torch.split` as a module: `sizes` has the sizes of the parts, or one size for all but the last."""

    def __init__(self, sizes: int | Sequence[int], dim: int = 0) -> None:
        super().__init__()
        self.sizes, self.dim = sizes if isinstance(sizes, int) else list(sizes), dim

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the parts."""
        return torch.split(x, self.sizes, self.dim)


class Chunks(nn.Module):
    """`torch.chunk` as a module."""

    def __init__(self, chunks: int, dim: int = 0) -> None:
        super().__init__()
        self.chunks, self.dim = chunks, dim

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the parts."""
        return torch.chunk(x, self.chunks, self.dim)


class Pile(nn.Module):
    """`torch.stack` as a module."""

    def __init__(self, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        """Return the stacked tensor."""
        return torch.stack(x, self.dim)


class _OfSeveral(DistributedModule):
    """A function of several tensors, which all lie over `partition`."""

    def take_inputs(
        self, module: nn.Module, input_shapes: Sequence[Sequence[int]], name: str
    ) -> tuple[list[Layout], tuple[int, ...]]:
        """Set the domain to inputs of these shapes; return their layouts, and the shape of the result of `module`."""
        given = entries("input_shapes", input_shapes, "the shapes of the inputs")
        shapes = [shape_of("input_shapes", shape) for shape in given]
        result = result_of(module, *(torch.empty(shape, device="meta") for shape in shapes))
        for shape in shapes:
            self.check_order(shape)
        inputs = [Layout(shape, self.partition) for shape in shapes]
        self.domain = Space(*(Tensor(x, name, name=f"x{number}") for number, x in enumerate(inputs)))
        return inputs, tuple(result.shape)


class Concatenation(_OfSeveral):
    """`torch.cat` of tensors of `input_shapes` along `dim`, all over `partition`, of their order, and balanced.

    Raises `ValueError`, with torch's message for shapes that do not fit, and for a partition of another order.
    """

    def __init__(
        self,
        comm: Communicator,
        partition: PartitionLike,
        input_shapes: Sequence[Sequence[int]],
        dim: int = 0,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        module = Join(dim)
        super().__init__(comm, partition, module)
        name = dtype_name(dtype)
        inputs, y_shape = self.take_inputs(module, input_shapes, name)
        self.dim = dim % len(y_shape)
        y = Layout(y_shape, self.partition)
        ends = (0, *accumulate(x.shape[self.dim] for x in inputs))
        self.moves = [
            Repartition(comm, x, _shifted(y, x.shape, self.dim, part), dtype=name)
            for x, part in zip(inputs, pairwise(ends), strict=True)
        ]
        self.codomain = Space(y, dtype=name, name="y")

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from those of all x."""
        x = self.check_inputs(*x)
        return torch.cat([apply(move, each) for move, each in zip(self.moves, x, strict=True)], self.dim)


class Stack(_OfSeveral):
    """`torch.stack` of tensors of `input_shapes`, which must be equal, along a new dimension `dim`; all over `partition`, and balanced.

    The new dimension is not cut, so that nothing is sent: the output lies over the same workers, unless `target` is another layout
    of the output, over any ranks.

    Raises `ValueError`, with torch's message for shapes that do not fit, and for a partition of another order than the inputs and a
    target that is not a layout of the output.
    """

    def __init__(
        self,
        comm: Communicator,
        partition: PartitionLike,
        input_shapes: Sequence[Sequence[int]],
        dim: int = 0,
        *,
        target: Layout | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        module = Pile(dim)
        super().__init__(comm, partition, module)
        partition, name = self.partition, dtype_name(dtype)
        _, y_shape = self.take_inputs(module, input_shapes, name)
        self.dim = dim % len(y_shape)
        before, after = partition.shape[: self.dim], partition.shape[self.dim :]
        new = Partition((*before, 1, *after), partition.ranks)
        stacked = Layout(y_shape, new)
        self.local_output_shape = stacked.local_shape(self.rank)
        self.steps = Steps(comm, stacked, name)
        if target is not None:
            self.steps.move(checked_target(target, y_shape))
        self.codomain = Space(self.steps.layout, dtype=name, name="y")

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from those of all x."""
        return self.steps.of(self.stacked(self.check_inputs(*x)))

    def stacked(self, x: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return this worker's parts of the inputs, stacked."""
        if self.partition.is_active(self.rank):
            return torch.stack(x, self.dim)
        return connected(x[0].new_zeros(self.local_output_shape), *x)


class Split(TorchLayer, torch_classes=(Part,)):
    """`torch.split` of a tensor of `input_shape` along `dim`, over `partition`, of its order; all parts are balanced over it too.

    `sizes` has the sizes of the parts, or one size for all but the last.

    Raises `ValueError`, with torch's message for sizes that do not add up, and for a partition of another order.
    """

    def lay_out(self, module: nn.Module) -> None:
        shape = self.input_shape
        whole = torch.empty(shape, device="meta")
        result_of(module, whole)
        parts = [tuple(part.shape) for part in module.forward(whole)]
        self.check_order(shape)
        given = module.dim
        assert isinstance(given, int)
        self.dim, name = given % len(shape), dtype_name(self.dtype)
        x = Layout(shape, self.partition)
        outputs = [Layout(part, self.partition) for part in parts]
        starts = accumulate((part[self.dim] for part in parts[:-1]), initial=0)
        self.moves = [
            Repartition(self.comm, x, _placed(y, shape, self.dim, start), dtype=name)
            for y, start in zip(outputs, starts, strict=True)
        ]
        self.domain = Space(x, dtype=name)
        self.codomain = Space(*(Tensor(y, name, name=f"y{number}") for number, y in enumerate(outputs)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The local tensors of all parts, from that of x."""
        (x,) = self.check_inputs(x)
        return tuple(apply(move, x) for move in self.moves)


class Chunk(Split, torch_classes=(Chunks,)):
    """`torch.chunk` of a tensor of `input_shape` into `chunks` parts along `dim`, or fewer, as in torch; see :class:`Split`."""


def _shifted(y: Layout, shape: tuple[int, ...], dim: int, part: Window) -> Layout:
    """Return the layout of an input, which is a `part` of y along `dim`, on the workers that have it in y."""
    first, last = part
    clipped = [
        (max(0, min(start, last) - first), max(0, min(stop, last) - first)) for start, stop in y.windows[dim]
    ]
    return Layout(shape, y.partition, [*y.windows[:dim], clipped, *y.windows[dim + 1 :]])


def _placed(y: Layout, shape: tuple[int, ...], dim: int, first: int) -> Layout:
    """Return the layout of a part as windows of the whole tensor, with gaps."""
    moved = [(start + first, stop + first) for start, stop in y.windows[dim]]
    return Layout(shape, y.partition, [*y.windows[:dim], moved, *y.windows[dim + 1 :]])
