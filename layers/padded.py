"""Torch's convolutions with padding that may differ on the left and on the right, which torch does not support."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from adjointlab.layers.torch_modules import Sides, per_dim, spatial_dims

__all__ = ["Padded", "Paddings", "convolution_of", "paddings"]

Paddings: TypeAlias = tuple[tuple[int, int], ...]
"""(left, right) in each spatial dimension."""


class Padded(nn.Sequential):
    """A convolution without padding of an input that is padded first; it has the convolution's parameters.

    `padding` is (left, right) in each spatial dimension, `mode` one of torch's padding modes.
    """

    bias: nn.Parameter | None

    def __init__(self, convolution: nn.Module, padding: Sequence[Sequence[int]], mode: str) -> None:
        super().__init__()
        self.weight: nn.Parameter = convolution.get_parameter("weight")
        self.register_parameter("bias", cast(nn.Parameter | None, convolution.bias))
        # In a list: a submodule would give each parameter a second name.
        self._convolution = [convolution]
        self.padding: Paddings = tuple((left, right) for left, right in padding)
        self.mode = mode

    @property
    def convolution(self) -> nn.Module:
        """The convolution, with its initial parameters."""
        return self._convolution[0]

    def reset_parameters(self) -> None:
        """Draw new parameters, as the convolution's class does."""
        cast(nn.Conv1d, self.convolution).reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Torch lists the last dimension's padding first.
        sides = [side for pair in reversed(self.padding) for side in pair]
        padded = functional.pad(x, sides, mode="constant" if self.mode == "zeros" else self.mode)
        parameters: dict[str, torch.Tensor] = {"weight": self.weight}
        if self.bias is not None:
            parameters["bias"] = self.bias
        # Conversions such as `.double()` replace this module's parameters, but not those of the convolution.
        return cast(torch.Tensor, functional_call(self.convolution, parameters, padded))


def convolution_of(torch_class: type[nn.Module], *arguments: object, **named: object) -> nn.Module:
    """Return the convolution that torch makes from the arguments, or a :class:`Padded` one for uneven padding.

    Unlike in torch, sizes may be sequences of one entry, and entries of `padding` may be (left, right). Raises
    `ValueError` for illegal sizes, and the errors of `torch_class`.
    """
    dims = spatial_dims(torch_class)
    bound = inspect.signature(torch_class).bind(*arguments, **named)
    bound.apply_defaults()
    given = bound.arguments
    for name in ("kernel_size", "stride", "dilation"):
        given[name] = per_dim(name, given[name], dims)
    kernel, mode = given["kernel_size"], given["padding_mode"]
    if min(kernel) < 1:  # torch raises this only in a call, after a warning about an empty weight
        raise ValueError(f"kernel size should be greater than zero, but got {'x'.join(map(str, kernel))}")
    if isinstance(given["padding"], str):
        return torch_class(**given)
    pads = paddings(given["padding"], kernel, given["dilation"])
    if all(left == right for left, right in pads):
        return torch_class(**{**given, "padding": tuple(left for left, _ in pads)})
    return Padded(torch_class(**{**given, "padding": 0, "padding_mode": "zeros"}), pads, mode)


def paddings(
    padding: str | Sides | Sequence[Sides], kernel: Sequence[int], dilation: Sequence[int]
) -> Paddings:
    """Return (left, right) for each dimension, from `padding` as in torch or with pairs among its entries.

    Raises `ValueError` for another number of entries.
    """
    if isinstance(padding, str):
        # "valid" pads nothing, "same" by the reach of the kernel in total; an odd total has the larger part on the right.
        reach = [0 if padding == "valid" else d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in reach)
    entries = tuple(padding) if isinstance(padding, Iterable) else (padding,)
    if len(entries) not in (1, len(kernel)):
        raise ValueError(
            f"padding must either be a single int, or one int or (left, right) for each of {len(kernel)} dimensions, not "
            f"{padding!r}"
        )
    pairs = [per_dim("padding", entry, 2) for entry in entries]
    pairs *= len(kernel) if len(entries) == 1 else 1
    return tuple((left, right) for left, right in pairs)
