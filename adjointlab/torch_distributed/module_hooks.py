"""Torch's hooks on the registration of submodules and parameters, limited to one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch.utils.hooks import RemovableHandle

__all__ = ["hooked"]


@contextmanager
def hooked(register: Callable[[Any], RemovableHandle], hook: Callable[..., None]) -> Iterator[None]:
    """Context in which `hook`, installed by torch's function `register`, is called for what this thread registers.

    Simulated ranks are threads, and torch calls such a hook in all threads.
    """
    rank = get_ident()

    def call_on_rank(*arguments: object) -> None:
        if get_ident() == rank:
            hook(*arguments)

    handle = register(call_on_rank)
    try:
        yield
    finally:
        handle.remove()
