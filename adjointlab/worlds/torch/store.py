"""torchrun's key-value store, with which torch sets up process groups."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final, Protocol

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

__all__ = ["Store", "connected_store", "prefixed"]

_SECONDS: Final = 60.0
"""Time-out for connecting to the store, which runs in torchrun itself."""


class Store(Protocol):
    """The methods of ``torch.distributed.Store`` that the lab calls."""

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def add(self, key: str, amount: int) -> int: ...
    def append(self, key: str, value: bytes) -> None: ...
    def delete_key(self, key: str) -> bool: ...


def connected_store() -> tuple[Store, int, int]:
    """A connection to the store, the rank of this process, and the number of processes."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        raise RuntimeError(
            "the torch world needs the processes of torchrun: start this program with torchrun"
        )
    found: Any = rendezvous("env://", timeout=timedelta(seconds=_SECONDS))
    store, rank, size = next(iter(found))
    return store, rank, size


def prefixed(store: Store, prefix: str) -> Store:
    """A part of the store, whose keys begin with `prefix`."""
    distributed: Any = dist
    made: Store = distributed.PrefixStore(prefix, store)
    return made
