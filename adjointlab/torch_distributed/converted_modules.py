"""Conversions of whole modules, such as ``module.float()``, in a case whose element type stands for torch's default one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import filterfalse
from threading import get_ident
from typing import Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from adjointlab.core.arrays import element_type_in

__all__ = ["convert", "converted_to"]

_ON_TENSORS: Final = nn.Module._apply
_TYPES: Final[dict[int, torch.dtype]] = {}
"""Element types of cases by thread: simulated ranks are threads, and have the classes of torch in common."""


@contextmanager
def converted_to(dtype: torch.dtype) -> Iterator[None]:
    """Have modules that this thread converts to torch's default type converted to `dtype` in its place, and to it again after another type.

    In training ``.float()`` leaves a module of the default type alone. Here it would convert one of another type, which what wraps it or has
    hooks on it loses then, as it does where training converts it.
    """
    rank = get_ident()
    _TYPES[rank] = dtype
    nn.Module._apply = _apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        del _TYPES[rank]
        if not _TYPES:
            nn.Module._apply = _ON_TENSORS  # type: ignore[method-assign]


def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    if (dtype := _TYPES.get(get_ident())) is None:
        return _ON_TENSORS(self, fn, recurse)  # type: ignore[no-untyped-call, no-any-return]
    _ON_TENSORS(self, _in_its_place(fn, dtype), recurse)  # type: ignore[no-untyped-call]
    convert(filterfalse(is_lazy, self.parameters(recurse=False)), dtype)
    return self


def _in_its_place(
    fn: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A conversion of tensors to torch's default type, to `dtype` instead; tensors that are of that type are not rounded on the way."""

    def applied(tensor: torch.Tensor) -> torch.Tensor:
        result = fn(tensor)
        default = element_type_in(torch.get_default_dtype(), result.dtype)
        if result.dtype == tensor.dtype or result.dtype != default:
            return result
        wanted = element_type_in(dtype, result.dtype)
        return tensor.to(result.device) if tensor.dtype == wanted else result.to(wanted)

    return applied


def convert(tensors: Iterable[torch.Tensor], dtype: torch.dtype) -> None:
    """Convert tensors to an element type, or to the one of complex numbers of its precision, where they are."""
    for held in tensors:
        if (wanted := element_type_in(dtype, held.dtype)) != held.dtype:
            held.data = held.data.to(wanted)
