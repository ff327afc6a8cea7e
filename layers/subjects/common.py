"""Parts that the subjects of several layers share: layers and sequential twins from drawn arguments, and element types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import nn

from adjointlab.core import strategies
from adjointlab.core.partition import Partition
from adjointlab.engine.subject_decorators import subject
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.torch_modules import parameters_of
from adjointlab.typing import Communicator

__all__ = [
    "Arguments",
    "batches",
    "cuts_over",
    "drawn_shape",
    "dtypes",
    "grids_up_to",
    "layer_from",
    "layer_of",
    "layer_subject",
    "twin_of",
    "with_legal_input",
    "with_other_statistics",
]

Arguments: TypeAlias = dict[str, object]
"""A case: the arguments by name, with element types as strings, as in a file."""

layer_subject = partial(
    subject, arrays=("torch", "torch-cuda", "torch+torch-cuda"), twice_differentiable=True
)
"""``@subject`` of a layer whose parameters and activations lie on the host, on a device, or on either by rank."""

dtypes: SearchStrategy[str] = st.sampled_from(("float64", "float32"))

batches: SearchStrategy[int] = st.sampled_from((1, 2, 3) * 3 + (0,))
"""Lengths of a batch, rarely 0."""


def layer_of(*classes: Callable[..., DistributedModule]) -> Callable[..., DistributedModule]:
    """Return a function that makes a layer from a case; the class is chosen by the case's number `dims` of dimensions."""

    def make(comm: Communicator, *, dtype: str, dims: int = 1, **arguments: Any) -> DistributedModule:
        return classes[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)

    return make


def twin_of(*classes: type[nn.Module]) -> Callable[..., nn.Module]:
    """Return a function that makes the sequential twin from those arguments of a case that torch's class has."""

    def make(*, dtype: str, dims: int = 1, **arguments: Any) -> nn.Module:
        torch_class = classes[dims - 1]
        known = parameters_of(torch_class)
        given = {**arguments, "dtype": getattr(torch, dtype)}
        return torch_class(**{name: value for name, value in given.items() if name in known})

    return make


def layer_from(
    kind: Callable[..., DistributedModule], sequential: Callable[..., nn.Module]
) -> Callable[..., DistributedModule]:
    """Return a function that makes a layer from the sequential module of a case."""

    def make(comm: Communicator, **case: Any) -> DistributedModule:
        shape, dtype = case["input_shape"], getattr(torch, case["dtype"])
        return kind(comm, case["partition"], shape, sequential(**case), dtype=dtype)

    return make


def with_other_statistics(module: nn.Module) -> nn.Module:
    """Return the module with its running statistics, if any, changed to differ from the initial ones and between channels."""
    if statistics := dict(module.named_buffers()):
        channel = torch.arange(len(statistics["running_mean"]))
        statistics["running_mean"].copy_(channel / 4 - 1)
        statistics["running_var"].copy_(channel + 0.5)
        statistics["num_batches_tracked"].fill_(len(channel) % 2 * 3)  # or no batch yet
    return module


def with_legal_input(module: nn.Module, legal: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Return the module, made to apply `legal` to its last input, such as indices or targets, which is drawn as any numbers."""
    module.register_forward_pre_hook(lambda _, inputs: (*inputs[:-1], legal(inputs[-1])))
    return module


def drawn_shape(draw: DrawFn, order: int) -> tuple[int, ...]:
    """Draw a shape of that order, with longer sides for fewer dimensions; with several dimensions, sides are sometimes 0."""
    # A tensor without elements only shows if all ranks take part, so it is rare.
    least = 0 if order > 1 and draw(st.integers(0, 5)) == 5 else 1
    return tuple(draw(st.integers(least, 6 if order < 3 else 3)) for _ in range(order))


def grids_up_to(ranks: int, order: int) -> list[tuple[int, ...]]:
    """Return the grids of at most `ranks` workers, from small to large: in a uniform choice most cut dimensions, and many several."""
    return [grid for size in range(ranks) for grid in strategies.grids(size + 1, order)]


def cuts_over(draw: DrawFn, shape: tuple[int, ...], partition: Partition) -> tuple[tuple[int, ...], ...]:
    """Draw boundaries for each dimension of a tensor, which lies along that of the partition: uneven ones, and empty parts."""
    return tuple(
        draw(strategies.cuts(side, parts)) for side, parts in zip(shape, partition.shape, strict=True)
    )
