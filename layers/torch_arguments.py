"""Arguments of torch's functions, as ``__torch_function__`` of a tensor subclass gets them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["entries"]


def entries(arguments: Iterable[Any]) -> list[Any]:
    """Return the arguments, with the entries of those that are sequences in place of these."""
    return [
        entry
        for argument in arguments
        for entry in (argument if isinstance(argument, list | tuple) else (argument,))
    ]
