"""Meshes of simulated ranks, which DTensor must not take for one another.

DTensor remembers by mesh how it distributes operations, and takes equal meshes for one. In a process that is right; but the meshes of two
simulated ranks are equal and differ in their coordinates, and so do those of two cases, one after the other, on the same thread.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from torch.distributed import device_mesh

__all__ = ["MeshesOfRanks", "forget_meshes"]

_DeviceMesh: Final[Any] = device_mesh.DeviceMesh

_ON_SPEED: Final = ("torch.distributed.tensor._redistribute", "torch.distributed.tensor._collective_utils")
"""Loggers whose warnings say what would be faster, once in a process otherwise, and here in every case."""


class MeshesOfRanks:
    """While it is installed, meshes that ranks make are equal only to those of the same rank in the same case."""

    def __init__(self, identity: Callable[[], int | None]) -> None:
        self._identity = identity
        self._init = _DeviceMesh.__init__

    def install(self) -> None:
        """Let new meshes have the identity of the rank that makes them."""
        original, identity_of_rank = self._init, self._identity

        # By position: torch has an argument of the name `mesh`.
        @wraps(original)
        def init(mesh: Any, /, *arguments: Any, **keywords: Any) -> None:
            original(mesh, *arguments, **keywords)
            if (identity := identity_of_rank()) is not None:
                # Part of the hash and of equality; torch has it for the threads of its own tests.
                mesh._thread_id, mesh._hash = identity, None

        _DeviceMesh.__init__ = init
        for logger in map(logging.getLogger, _ON_SPEED):
            logger.addFilter(_is_error)

    def uninstall(self) -> None:
        """Undo :meth:`install`."""
        _DeviceMesh.__init__ = self._init
        for logger in map(logging.getLogger, _ON_SPEED):
            logger.removeFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def forget_meshes() -> None:
    """Clear what DTensor remembers of the meshes of this thread's rank, which will not be seen again."""
    redistribute: Any = sys.modules.get("torch.distributed.tensor._redistribute")
    if hasattr(redistribute, "_gen_transform_infos"):
        redistribute._gen_transform_infos.cache_clear()
    debug: Any = sys.modules.get("torch.distributed.tensor.debug")
    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()
