"""Point-wise functions [Hewett21, section 4], applied element by element on the workers that have the elements.

    forward    ŷ = f(x̂)                         on each worker
    adjoint    δx̂ = f'(x̂) ∘ δŷ

Nothing is sent, and the output has the layout of the input.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from adjointlab import layers
from adjointlab.core.autograd_graph import graph_nodes
from adjointlab.core.layout import Layout
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import in_graph, of_nothing
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.validation import check_layout
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator

__all__ = ["Pointwise", "elementwise_dtype"]

Elementwise: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""A function of one tensor, such as a module; it keeps the shape."""

_PER_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
"""Modules that draw one number for all elements of a channel, which may be cut over workers with different generators."""


class Pointwise(DistributedModule):
    """`function`, a module or a function of one tensor, applied to a tensor of `layout`.

    For example ``Pointwise(comm, convolution.codomain.tensors[0].layout, torch.nn.ReLU())``. A worker without elements
    returns a tensor of zero volume, and calls the function with a single zero, to get the same graph as the others.

    When the layer is made, the function is applied to eight elements, one at a time and all together (a module in
    evaluation mode), to test that it is elementwise. So dropout is legal, but every worker draws separately, and not
    the mask of the sequential module. Give each worker another seed: with equal seeds the same mask repeats along the
    cut.

    Raises `ValueError` for a function that changes the shape, or that computes an element of the output from several elements
    of the input (a softmax, a normalisation, a cumulative sum); for dropout of whole channels (`Dropout1d`, `2d`, `3d`,
    `FeatureAlphaDropout`); and for a module with parameters or buffers, such as `PReLU`, or a function of another tensor that
    requires a gradient: their gradient is a sum over all workers, which needs a layer that declares where they lie and sums it.
    """

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        function: Elementwise,
        *,
        dtype: torch.dtype | None = None,
        rounding: float | None = None,
    ) -> None:
        check_layout("layout", layout, comm)
        super().__init__(comm, layout.partition)
        dtype = getattr(torch, dtype_name(dtype))
        if not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(
                f"dtype: {dtype}, but a function has derivatives only at real and complex numbers"
            )
        self.function = function
        if isinstance(function, nn.Module):
            self.training = function.training
        self.value_dtype, self.in_place = elementwise_dtype(function, dtype)
        # In an array of another length, a vector instruction may round the value for the same element differently.
        self.rounding = 4 * torch.finfo(dtype).eps if rounding is None else rounding
        # A small value may be the difference of larger ones, such as the argument, in the lab an integer up to 4.
        self.reach = 4.0
        self.domain = Space(layout, dtype=dtype_name(dtype))
        self.codomain = Space(layout, dtype=dtype_name(self.value_dtype), name="y")

    def sequential(self) -> nn.Module:
        """A copy of the module, or a module that applies the function."""
        return (
            copy.deepcopy(self.function)
            if isinstance(self.function, nn.Module)
            else _FunctionModule(self.function)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        x = in_graph(x)
        if x.numel() == 0:
            # Functions need not accept tensors without elements (a maximum does not).
            return of_nothing(x.shape, self.function, x).to(self.value_dtype)
        return self.function(x)

    def _check_inputs(self, x: tuple[torch.Tensor, ...]) -> None:
        super()._check_inputs(x)
        if self.in_place and torch.is_grad_enabled() and x[0].numel() and _has_leaf_memory(x[0]):
            raise ValueError(
                f"x: a leaf of the graph that requires a gradient on rank {self.rank}, and the function works in place; torch "
                "could not say what its gradient belongs to"
            )


def elementwise_dtype(function: Elementwise, dtype: torch.dtype) -> tuple[torch.dtype, bool]:
    """Return the element type of the function's values for an argument of `dtype`, and True if it works in place.

    Raises `ValueError` for a function that is not elementwise, and for a module with parameters, or that draws one number for a channel.
    """
    if isinstance(function, nn.Module):
        for module in function.modules():
            if isinstance(module, _PER_CHANNEL):
                raise ValueError(
                    f"function: {type(module).__name__} draws one number for a whole channel, and workers that hold "
                    "parts of a channel would draw different ones; Dropout and AlphaDropout draw one for each element"
                )
        owned = [
            name for named in (function.named_parameters(), function.named_buffers()) for name, _ in named
        ]
        if owned:
            raise ValueError(
                f"function: {type(function).__name__} has {', '.join(owned)}, which would be as many as there are "
                f"workers, each with a gradient of its own; {_instead(function)}"
            )
    return _value_dtype(function, dtype)


def _instead(function: nn.Module) -> str:
    """Return advice on a layer for a module that has parameters."""
    name = type(function).__name__
    if isinstance(function, nn.SyncBatchNorm):
        return "the layers BatchNorm1d, 2d and 3d have the statistics of all workers: use torch.nn.BatchNorm2d in its place"
    if name in layers.__all__ and type(function).__module__.startswith("torch."):
        return f"adjointlab.layers.{name} is the layer of it"
    return "write a layer that broadcasts them, as Linear does"


def _has_leaf_memory(x: torch.Tensor) -> bool:
    return any(t is not None and t.is_leaf and t.requires_grad for t in (x, x._base))


class _FunctionModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Elementwise) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _value_dtype(function: Elementwise, dtype: torch.dtype) -> tuple[torch.dtype, bool]:
    """Return the element type of the function's values, and True if it works in place. Raises `ValueError` if it is not elementwise."""
    apply: Elementwise
    if isinstance(function, nn.Module):
        name, apply = type(function).__name__, copy.deepcopy(function).eval()
    else:
        name, apply = getattr(function, "__name__", "function"), function
    # Of order 2, to detect functions along rows or columns. The function gets clones, as it may work in place.
    x = torch.tensor([[-2.5, -1.0, -0.25, 0.0], [0.5, 1.25, 3.0, 0.75]]).to(dtype)
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        try:
            argument = x.clone()
            together = apply(argument)
            in_training = x.clone()
            if isinstance(function, nn.Module):  # a dropout works in place only in training
                copy.deepcopy(function).train()(in_training)
            alone = [apply(element.reshape(1, 1).clone()) for element in x.reshape(-1)]
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            raise ValueError(
                f"function: {name} is not elementwise: it does not take every shape ({error})"
            ) from error
    if not isinstance(together, torch.Tensor):
        raise ValueError(
            f"function: {name} returns {described_type(together)}, but a point-wise function must return a tensor"
        )
    _require_elementwise(name, x, together, alone)
    # A module that works in place on the result of another one does not change the argument.
    return together.dtype, argument._version + in_training._version > 0


def _require_elementwise(
    name: str, x: torch.Tensor, together: torch.Tensor, alone: list[torch.Tensor]
) -> None:
    """Raise `ValueError` unless the values of a function for all of `x` are those for its elements `alone`, and take nothing else."""
    # A tensor that the function itself makes require a gradient, such as its argument, is a different one in each call.
    if any(leaf is other for leaf in _leaves(together) for other in _leaves(alone[0])):
        raise ValueError(
            f"function: the value of {name} depends on another tensor that requires a gradient, a parameter, which would be one for each "
            "worker, with a gradient of its own; write a layer that broadcasts it, as Linear does, or detach it"
        )
    if together.shape != x.shape or any(value.shape != (1, 1) for value in alone):
        raise ValueError(
            f"function: {name} is not elementwise: it makes shape {tuple(together.shape)} of {tuple(x.shape)}"
        )
    one, all_of_them = (
        values.detach().reshape(-1).to(torch.complex128) for values in (torch.cat(alone), together)
    )
    rounding = 2.0**-5 if x.dtype.itemsize == 2 else 2.0**-16
    if not torch.allclose(one, all_of_them, rtol=rounding, atol=rounding, equal_nan=True):
        raise ValueError(
            f"function: {name} is not elementwise: its value for an element depends on other elements"
        )


def _leaves(value: torch.Tensor) -> list[torch.Tensor]:
    """Return the leaves of the graph of a value: the tensors that get a gradient in a backward pass."""
    return [node.variable for node in graph_nodes([value]) if type(node).__name__ == "AccumulateGrad"]
