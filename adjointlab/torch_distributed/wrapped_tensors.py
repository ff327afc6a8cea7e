"""Tensors in `torch.func.grad`, `jvp` and the like, which wrap them once for each level.

Those of `torch.func.jvp` reach a process group if a `torch.autograd.Function` communicates in its own `jvp`. Real backends are called
through torch's dispatcher, which unwraps them; a process group in Python is called directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

import torch
from torch.utils._pytree import tree_map_only

__all__ = ["of_plain_tensors"]

C = TypeVar("C", bound=type)

# Private, but used by torch itself: there is no public way to recognise a wrapped tensor, or to get its memory.
_FUNCTORCH: Final[Any] = torch._C._functorch
_Without: Final[Any] = torch._C._DisableFuncTorch


def of_plain_tensors(cls: C) -> C:
    """Decorator of a class that makes its public methods, and their aliases, get unwrapped tensors."""
    for name, method in list(vars(cls).items()):
        if callable(method) and not method.__name__.startswith("_"):
            setattr(cls, name, _called_with_plain(method))
    return cls


def _called_with_plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **given: Any) -> Any:
        if _FUNCTORCH.peek_interpreter_stack() is None:
            return method(*arguments, **given)
        arguments, given = tree_map_only(torch.Tensor, _plain, (arguments, given))
        # Otherwise results computed from a plain tensor within a level would be wrapped again.
        with _Without():
            return method(*arguments, **given)

    return call


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    while _FUNCTORCH.is_gradtrackingtensor(tensor):
        tensor = _FUNCTORCH.get_unwrapped(tensor)
    return tensor
