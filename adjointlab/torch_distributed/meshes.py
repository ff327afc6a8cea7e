"""Meshes of simulated ranks, which DTensor must not confuse.

DTensor caches by mesh how it distributes operations, and treats equal meshes as one. In a process that is right. But the meshes of two
simulated ranks are equal although their coordinates differ, and so are those of successive cases on the same thread.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from torch.distributed import device_mesh

from adjointlab.replacement import replaced

__all__ = ["forget_meshes", "meshes_of_ranks"]

_DeviceMesh: Final[Any] = device_mesh.DeviceMesh

_ON_SPEED: Final = ("torch.distributed.tensor._redistribute", "torch.distributed.tensor._collective_utils")
"""Loggers of performance warnings, which would appear in every case, instead of once per process."""


@contextmanager
def meshes_of_ranks(identity_of_rank: Callable[[], int | None]) -> Iterator[None]:
    """Context in which meshes that ranks make are equal only to those of the same rank in the same case."""
    original: Callable[..., None] = _DeviceMesh.__init__

    # By position: torch has an argument of the name `mesh`.
    @wraps(original)
    def init(mesh: Any, /, *arguments: Any, **keywords: Any) -> None:
        original(mesh, *arguments, **keywords)
        if (identity := identity_of_rank()) is not None:
            # Part of the hash and of equality; torch uses it for the threads of its own tests.
            mesh._thread_id, mesh._hash = identity, None

    loggers = [logging.getLogger(name) for name in _ON_SPEED]
    for logger in loggers:
        logger.addFilter(_is_error)
    try:
        with replaced(_DeviceMesh, "__init__", init):
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def forget_meshes() -> None:
    """Clear DTensor's caches for the meshes of this thread's rank, which will not be used again."""
    redistribute: Any = sys.modules.get("torch.distributed.tensor._redistribute")
    if hasattr(redistribute, "_gen_transform_infos"):
        redistribute._gen_transform_infos.cache_clear()
    debug: Any = sys.modules.get("torch.distributed.tensor.debug")
    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()
