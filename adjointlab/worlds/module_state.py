"""Module-level variables of packages, one set for each simulated rank: as random streams, they are swapped with the rank.

Released libraries keep their process groups, meshes and caches in variables of modules, which simulated ranks share as threads. Swapped
are the variables themselves, and what dictionaries, lists and sets among them hold. Each rank begins with arrays of its own in the place
of those that are variables or stand in such a container, and with empty caches of its functions (``functools.lru_cache``). Out of reach
are attributes of classes and other objects, variables of functions, state of C++, and modules that are imported after the case has begun.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from adjointlab.core.arrays.own_copies import ArrayCopies

__all__ = ["ModuleState", "cached_functions"]

_NO_STATE: Final = (FunctionType, BuiltinFunctionType, ModuleType, type)
_CONTAINERS: Final = (dict, list, set)


class _Saved(NamedTuple):
    variables: list[dict[str, Any]]  # by module
    contents: list[tuple[Any, Any]]  # containers among them, each with a copy


class ModuleState:
    """The variables of all modules of some packages that are imported by now."""

    def __init__(self, packages: Sequence[str]) -> None:
        prefixes = tuple(f"{package}." for package in packages)
        self._modules = [
            vars(module) for name, module in list(sys.modules.items()) if f"{name}.".startswith(prefixes)
        ]
        self._first = self.save()

    def save(self) -> _Saved:
        """Copy the variables, and what the containers among them hold."""
        variables = [_variables(module) for module in self._modules]
        containers = {
            id(value): value for each in variables for value in each.values() if type(value) in _CONTAINERS
        }
        return _Saved(variables, [(container, container.copy()) for container in containers.values()])

    def restore(self, state: Any) -> None:
        """Bring back what :meth:`save` has copied."""
        for module, variables in zip(self._modules, state.variables, strict=True):
            for name in _variables(module).keys() - variables.keys():
                del module[name]
            module.update(variables)
        for container, content in state.contents:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)

    def seed(self, number: int) -> None:
        """Begin a rank: with what the variables held before the case, and arrays of its own."""
        self.restore(self._first)
        for module in self._modules:
            module.update({name: _with_own_cache(cached) for name, cached in cached_functions(module)})
        copies = ArrayCopies()
        for holder in (*self._modules, *(container for container, _ in self._first.contents)):
            for key, value in _entries(holder):
                if (own := copies.of(value)) is not None:
                    holder[key] = own


_CachedFunction: Final = type(lru_cache(lambda: None))


def cached_functions(module: dict[str, Any]) -> list[tuple[str, Any]]:
    """The functions among the variables of a module that keep their results, by name."""
    return [(name, value) for name, value in module.items() if isinstance(value, _CachedFunction)]


def _with_own_cache(cached: Any) -> Callable[..., Any]:
    own: Callable[..., Any] = lru_cache(**cached.cache_parameters())(cached.__wrapped__)
    return own


def _variables(module: dict[str, Any]) -> dict[str, Any]:
    """The variables of a module that may hold state of its own."""
    return {
        name: value
        for name, value in module.items()
        if not name.startswith("__") and not isinstance(value, _NO_STATE)
    }


def _entries(holder: dict[Any, Any] | list[Any] | set[Any]) -> list[tuple[Any, Any]]:
    """The entries of a dictionary or a list, by key; a set holds no arrays."""
    if isinstance(holder, set):
        return []
    return list(holder.items() if isinstance(holder, dict) else enumerate(holder))
