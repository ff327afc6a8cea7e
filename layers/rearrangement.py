"""Layers that rearrange the elements of their input: moves between workers, and moves on each worker.

The layout of the output follows from that of the input, such that as little as possible is sent. `target` requests another layout,
so that no repartition is needed after the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import nn

from adjointlab.core.layout import Layout, Window, balanced_windows
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import differentiable, in_graph
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.torch_modules import dtype_name, result_of
from adjointlab.primitives.repartition import Repartition
from adjointlab.typing import Communicator

__all__ = ["Rearrangement", "Step", "Steps", "checked_target", "in_elements", "in_units"]

Step: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class Steps:
    """A chain of repartitions, and of functions on each worker, applied to a tensor of an initial layout.

    `layout` is the layout after the steps so far; `moves` are the repartitions among them.
    """

    def __init__(self, comm: Communicator, layout: Layout, dtype: str) -> None:
        self.comm, self.layout, self.dtype = comm, layout, dtype
        self.moves: list[Repartition] = []
        self._steps: list[Step] = []

    def move(self, target: Layout) -> None:
        """Collective: add a repartition to another layout of the same shape, unless every rank has its part already."""
        if not Space(self.layout).fits(Space(target)):
            self.moves.append(Repartition(self.comm, self.layout, target, dtype=self.dtype))
            self._steps.append(differentiable(self.moves[-1]))
        self.layout = target

    def reshape(self, target: Layout) -> None:
        """Add a reshape of each worker's part to its shape in `target`, with the elements in the same order."""
        shape = target.local_shape(self.comm.Get_rank())
        self.apply(lambda x: x.reshape(shape), target)

    def apply(self, function: Step, target: Layout) -> None:
        """Add a function that is applied on each rank, even on idle ones; its result has the layout `target`."""
        self._steps.append(function)
        self.layout = target

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the local tensor after all steps, in the graph of every rank."""
        if not self.moves:
            x = in_graph(x)
        for step in self._steps:
            x = step(x)
        return x


class Rearrangement(TorchLayer):
    """A layer over `partition`, of the order of the input, which is cut in any dimensions; a subclass plans its steps.

    `target` is the wanted layout of the output, over any ranks, such as that of the next layer's input,
    ``linear.domain.tensors[0].layout``. Without it the subclass determines the layout. Either way it is
    ``codomain.tensors[0].layout``.

    `cuts` are the boundaries of the input in each dimension (default, and for `None` in one: balanced).

    Raises `ValueError`, with torch's message, for arguments that torch rejects; and for a partition of another order than the input, and a
    target that is not a layout of the output.
    """

    options = ("target", "cuts")

    def lay_out(
        self,
        module: nn.Module,
        target: Layout | None = None,
        cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        shape, name = self.input_shape, dtype_name(self.dtype)
        y_shape = self.output_shape(module)
        self.check_order(shape)
        x = Layout.cut(shape, self.partition, (None,) * len(shape) if cuts is None else cuts)
        self.steps = Steps(self.comm, x, name)
        self.plan(module, y_shape)
        if target is not None:
            self.steps.move(checked_target(target, y_shape))
        self.domain = Space(x, dtype=name)
        self.codomain = Space(self.steps.layout, dtype=name, name="y")

    def output_shape(self, module: nn.Module) -> tuple[int, ...]:
        """Return the shape of the result. Raises `ValueError`, with torch's message, if there is none."""
        # On the device "meta" a tensor has a shape and no elements; an empty batch does not work if the batch is moved.
        return tuple(result_of(module, torch.empty(self.input_shape, device="meta")).shape)

    def plan(self, module: nn.Module, y_shape: tuple[int, ...]) -> None:
        """Collective: add the steps from the input's layout to one of the output."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        return self.steps.of(x)


def checked_target(target: object, shape: tuple[int, ...]) -> Layout:
    """Return the target; raise `ValueError` unless it is a layout of an output of this shape."""
    if not isinstance(target, Layout):
        raise ValueError(
            f"target: {target!r} is not an adjointlab.Layout, which says where the output is wanted"
        )
    if target.shape != shape:
        raise ValueError(
            f"target: a layout of a tensor of shape {target.shape}, but the output has shape {shape}"
        )
    return target


def in_units(windows: Sequence[Window], unit: int, length: int) -> tuple[Window, ...]:
    """Return windows of `length` blocks of `unit` elements each: with the same elements if possible, else balanced."""
    if unit and all(end % unit == 0 for window in windows for end in window):
        return tuple((start // unit, stop // unit) for start, stop in windows)
    return balanced_windows(length, len(windows))


def in_elements(windows: Sequence[Window], unit: int) -> tuple[Window, ...]:
    """Return windows of blocks of `unit` elements each as windows of elements."""
    return tuple((start * unit, stop * unit) for start, stop in windows)
