"""Arguments of torch's functions, as a subclass of tensors is given them by ``__torch_function__``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["entries"]


def entries(arguments: Iterable[Any]) -> list[Any]:
    """The arguments, and the entries of those that are sequences."""
    return [
        entry
        for argument in arguments
        for entry in (argument if isinstance(argument, list | tuple) else (argument,))
    ]
