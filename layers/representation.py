"""The text of a layer in ``print(network)``: the arguments of the sequential module, those of the layer, shapes and partition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.space import Space
from adjointlab.layers.torch_modules import dtype_name

__all__ = ["arguments_that_differ", "as_text", "sequential_arguments", "shapes_of"]

_MISSING: Final = object()

_ELSEWHERE: Final = {"comm", "partition", "dtype", "rounding"}
"""Arguments that are shown with the shapes, or are only for the lab."""


def sequential_arguments(module: nn.Module) -> dict[str, str]:
    """Return the arguments of a sequential module: torch's text, under an empty name, or else those that are attributes of it."""
    if text := module.extra_repr():
        return {"": text}
    return arguments_that_differ(module, type(module).__init__, {})


def arguments_that_differ(
    holder: object, function: Callable[..., object], given: Mapping[str, object]
) -> dict[str, str]:
    """Return the arguments of `function` that differ from their defaults, by name.

    A value is the attribute of `holder` with the name of the argument, since it may have been chosen there, else that in `given`.
    """
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        value = getattr(holder, name, given.get(name, _MISSING))
        # A tensor or a module is not a line of text; torch lists modules separately.
        if value is _MISSING or isinstance(value, torch.Tensor | nn.Module):
            continue
        if value is not parameter.default and value != parameter.default and name not in _ELSEWHERE:
            found[name] = f"{name}={as_text(value)}"
    return found


def shapes_of(*spaces: Space) -> list[str]:
    """Return the global shape of each tensor of the spaces, by its name, and their floating-point types other than torch's default."""
    tensors = [tensor for space in spaces for tensor in space.tensors]
    texts = [f"{tensor.name}={list(tensor.layout.shape)}" for tensor in tensors]
    names = {tensor.dtype for tensor in tensors if getattr(torch, tensor.dtype).is_floating_point}
    names -= {dtype_name(torch.get_default_dtype())}
    return texts + [f"dtype={name}" for name in sorted(names)]


def as_text(value: object) -> str:
    """Return a layout as the lab's text, a function as its name, and everything else as its ``repr``."""
    if isinstance(value, Layout):
        return str(value)
    return getattr(value, "__name__", None) or repr(value)
