"""Checks of the arguments of a layer's constructor that torch does not make; each error names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from torch import nn

from adjointlab.core.partition import integers
from adjointlab.layers.torch_modules import parameters_of
from adjointlab.spelling import described_type, did_you_mean

if TYPE_CHECKING:
    from adjointlab.layers.distributed import TorchLayer

__all__ = ["check_channels", "check_layer_arguments", "real_number", "shape_of"]


def shape_of(name: str, sides: object) -> tuple[int, ...]:
    """Return a global shape; raise, naming the argument, `TypeError` for sides that are not integers, `ValueError` for negative ones."""
    shape = integers(name, sides)
    if any(side < 0 for side in shape):
        raise ValueError(f"{name}: a side of a tensor is at least 0, not {shape}")
    return shape


def check_channels(shape: tuple[int, ...], in_channels: int, dims: int) -> None:
    """Raise `ValueError` unless `shape` is that of an input for a convolution of `in_channels` and `dims` spatial dimensions."""
    if len(shape) != dims + 2 or shape[1] != in_channels:
        raise ValueError(
            f"input_shape: {shape} is not (batch, in_channels = {in_channels}, {dims} spatial sides)"
        )


def real_number(name: str, value: object) -> float:
    """Return `value` as a float; raise `TypeError` naming the argument if it is not a real number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r} is not a number") from None


def check_layer_arguments(
    layer: type[TorchLayer],
    input_shape: object,
    arguments: Sequence[object],
    named: Mapping[str, object],
    options: Mapping[str, object],
) -> None:
    """Raise `TypeError` for a misplaced module, or one with further arguments, an unknown argument, and a flag that is not a bool."""
    module = arguments[0] if arguments else None
    if isinstance(input_shape, nn.Module):
        raise TypeError(
            f"input_shape: {described_type(input_shape)}; the global shape of the input is given before the module"
        )
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise TypeError(f"module: the class {module.__name__}; pass a module, such as {module.__name__}(...)")
    is_given = isinstance(module, nn.Module)
    known = [name for kind in layer.torch_classes for name in sorted(parameters_of(kind))] if named else []
    if unknown := [name for name in named if name not in known]:
        own = ("dtype", *layer.options)
        of_torch = " or ".join(kind.__name__ for kind in layer.torch_classes)
        beside = " beside a module" if is_given else f" beside the arguments of torch's {of_torch}"
        raise TypeError(
            f"{unknown[0]}: not an argument of {layer.__name__}, which takes {', '.join(own)}{beside}"
            f"{did_you_mean(unknown[0], own if is_given else [*own, *known])}"
        )
    if is_given and (named or len(arguments) > 1):
        further = ", ".join(named) or repr(arguments[1])
        raise TypeError(f"{further}: {layer.__name__} takes a module or the arguments of one, not both")
    flags = _flags(layer.lay_out) if options else ()
    for name in flags:
        if name in options and not isinstance(options[name], bool):
            raise TypeError(f"{name}: {options[name]!r} is neither True nor False")


@cache
def _flags(lay_out: Callable[..., None]) -> tuple[str, ...]:
    """Return the arguments that are True or False by default."""
    parameters = inspect.signature(lay_out).parameters
    return tuple(name for name, parameter in parameters.items() if isinstance(parameter.default, bool))
