"""Torch's modules as the source of arguments, defaults, errors and shapes of the distributed layers."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from operator import index
from typing import Any, SupportsIndex, TypeAlias

import torch
from torch import nn
from torch.nn import functional

__all__ = [
    "Sides",
    "TorchClasses",
    "device_of",
    "dtype_name",
    "function_of_dims",
    "parameters_of",
    "per_dim",
    "result_of",
    "spatial_dims",
    "uninitialised_copy",
]

Sides: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""An integer of any library, or a sequence of one integer, or of one for each spatial dimension."""

TorchClasses: TypeAlias = tuple[type[nn.Module], ...]

_COUNTS = {1: "one int", 2: "two ints", 3: "three ints"}
_KINDS = (
    "Conv",
    "ConvTranspose",
    "MaxPool",
    "AvgPool",
    "LPPool",
    "MaxUnpool",
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
)
_BY_SPATIAL_DIMS: tuple[TorchClasses, ...] = tuple(
    tuple(getattr(nn, f"{kind}{dims}d") for kind in _KINDS) for dims in (1, 2, 3)
)


def spatial_dims(module: nn.Module | type[nn.Module]) -> int:
    """Return the number of spatial dimensions of a torch convolution or pool, or of its class."""
    kind = module if isinstance(module, type) else type(module)
    return next(dims for dims, classes in enumerate(_BY_SPATIAL_DIMS, 1) if issubclass(kind, classes))


def function_of_dims(name: str, dims: int) -> Callable[..., Any]:
    """Return torch's function of that name for `dims` spatial dimensions, such as `torch.nn.functional.conv2d`."""
    function: Callable[..., Any] = getattr(functional, f"{name}{dims}d")
    return function


def per_dim(name: str, value: Sides, dims: int) -> tuple[int, ...]:
    """Return the sizes in each of `dims` dimensions, from one for all or one for each.

    Raises `ValueError`, with torch's message, for anything else.
    """
    try:
        given = _integers(value)
    except TypeError:
        given = ()
    if len(given) not in (1, dims):
        raise ValueError(f"{name} must either be a single int, or a tuple of {_COUNTS[dims]}, not {value!r}")
    return given * dims if len(given) == 1 else given


def result_of(module: nn.Module, *inputs: object) -> torch.Tensor:
    """Return the (first) result of `module` for inputs that cost nothing: without samples, or without memory.

    Torch checks arguments and shapes at the start of a call: so an empty batch suffices to get the shape of the result, or
    torch's error. Raises `ValueError`, with torch's message, for arguments that torch rejects.
    """
    # A warning about speed, which torch gives once per process, is meant for users who call the module themselves.
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # `forward`, since the module's hooks are not meant for this call.
            result: torch.Tensor | tuple[torch.Tensor, ...] = module.forward(*inputs)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(str(error)) from None
    return result[0] if isinstance(result, tuple) else result


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters and buffers; the host if it has none."""
    tensors = (*module.parameters(), *module.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


def uninitialised_copy(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of `module` without hooks, whose parameters and buffers are new, uninitialised tensors on `device`.

    The tensors go into the memo of the deep copy, so that none of the module's is copied, and a tensor that the
    module has under two names stays one tensor.
    """
    memo: dict[int, object] = {
        id(tensor): torch.empty_like(tensor, device=device) for tensor in module.buffers()
    }
    # Hooks belong to the caller, and maybe to objects that cannot be copied. Torch (2.13) keeps them in dictionaries.
    attributes = [item for part in module.modules() for item in vars(part).items()]
    memo |= {
        id(hooks): type(hooks)() for name, hooks in attributes if "_hooks" in name and isinstance(hooks, dict)
    }
    for tensor in module.parameters():
        empty = torch.empty_like(tensor, device=device, requires_grad=False)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad)
    return copy.deepcopy(module, memo)


def parameters_of(torch_class: Callable[..., nn.Module]) -> frozenset[str]:
    """Return the names of the arguments that a torch class takes."""
    return _parameters_of(torch_class)  # separate, since mypy rejects a class as an argument of it


@cache  # called by every rank for each layer
def _parameters_of(torch_class: Callable[..., nn.Module]) -> frozenset[str]:
    return frozenset(inspect.signature(torch_class).parameters)


def dtype_name(dtype: torch.dtype | None) -> str:
    """Return the lab's name for a torch element type, by default torch's default; raise `TypeError` if it is not one."""
    given: object = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(given, torch.dtype):
        raise TypeError(f"dtype: {given!r} is not a torch.dtype, such as torch.float32")
    return str(given).removeprefix("torch.")


def _integers(value: Sides) -> tuple[int, ...]:
    try:
        return (index(value),)  # type: ignore[arg-type]
    except TypeError:
        return tuple(map(index, value))  # type: ignore[arg-type]
