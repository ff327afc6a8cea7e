"""The modules that contain a subject's code, and the packages that they import."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Final

from adjointlab.engine.subject import Subject
from adjointlab.worlds.module_state import CachedFunction

__all__ = ["NOT_OF_RANKS", "imported_packages", "modules_of"]

_LOOKED_AFTER: Final = {"adjointlab", "numpy", "torch"}
"""Packages whose state the worlds handle: they separate it by rank where necessary."""

NOT_OF_RANKS: Final = (
    _LOOKED_AFTER
    | sys.stdlib_module_names
    | {"array_api_compat", "cupy", "hypothesis", "jax", "jaxlib", "mpi4py", "pytest", "scipy", "triton"}
)
"""Packages that a subject's module may import whose state does not belong to a rank, and is not searched."""


def modules_of(subject: Subject) -> Iterator[tuple[str, ModuleType]]:
    """The modules of the subject and of the objects that it checks, by name."""
    parts = (subject.draws, subject.target, *subject.pair)
    for name in dict.fromkeys((subject.declared_in, *(getattr(part, "__module__", "") for part in parts))):
        module = sys.modules.get(name or "")
        if module is not None and name.partition(".")[0] not in _LOOKED_AFTER:
            yield name, module


def imported_packages(modules: Iterable[ModuleType]) -> Iterator[tuple[str, ModuleType]]:
    """The packages from which these modules have imported modules, functions or classes, by name."""
    origins = (origin for module in modules for origin in _origins(module))
    for name in dict.fromkeys(origin.partition(".")[0] for origin in origins):
        package = sys.modules.get(name)
        if package is not None:
            yield name, package


def _origins(module: ModuleType) -> Iterator[str]:
    """The names of modules that this one has imported, or whose functions or classes it has, except those in :data:`NOT_OF_RANKS`."""
    for value in list(vars(module).values()):
        if not issubclass(type(value), (ModuleType, FunctionType, type, CachedFunction)):
            continue
        origin = str(value.__name__ if issubclass(type(value), ModuleType) else value.__module__)
        if origin.partition(".")[0] not in NOT_OF_RANKS:
            yield origin
