"""Variables of the modules and classes of some packages, one set for each simulated rank: like random streams, they are swapped with the rank.

Code keeps process groups, meshes and caches in module variables and class attributes, which simulated ranks share because they are threads.
The swap covers module variables, the attributes that the modules' classes have when the case begins, and the contents of dictionaries,
lists and sets among these. Each rank begins with its own copies of arrays that are variables or elements of such a container, and
with empty function caches (``functools.lru_cache``). Modules of other packages that have imported such a function by name are swapped too.
Out of reach are attributes of other objects, local variables, C++ state, and modules that are imported after the case has begun.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np

from adjointlab.core.arrays.own_copies import ArrayCopies

__all__ = ["NO_STATE", "CachedFunction", "ModuleState", "is_a", "is_within"]

NO_STATE: Final = (FunctionType, BuiltinFunctionType, ModuleType, type)
"""Types of module variables that hold definitions or imports, the same for all ranks."""

_CONTAINERS: Final = (dict, list, set)

_BUILTINS: Final = vars(builtins)
"""Modules whose functions `torch.compile` has compiled have it as ``__builtins_dict___0``."""


class _Saved(NamedTuple):
    variables: list[dict[str, Any]]  # by module
    attributes: list[dict[str, Any]]  # by class
    contents: list[tuple[Any, Any]]  # the containers among these values, each with a copy


class ModuleState:
    """The variables of all modules of some packages that are imported by now."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._modules = _modules_of(packages)
        # The names are computed once, because a package has many classes, few of which hold state, and ranks switch at every call.
        self._classes = [
            (kind, tuple(attributes))
            for module in self._modules
            for kind in _classes(module)
            if (attributes := _attributes(kind))
        ]
        self._first = self.save()

    def save(self) -> _Saved:
        """Copy the variables, and the contents of the containers among them."""
        variables = [_variables(module) for module in self._modules]
        attributes = [
            {name: vars(kind)[name] for name in names if name in vars(kind)} for kind, names in self._classes
        ]
        containers = {
            id(value): value
            for each in (*variables, *attributes)
            for value in each.values()
            if type(value) in _CONTAINERS
        }
        contents = [(container, container.copy()) for container in containers.values()]
        return _Saved(variables, attributes, contents)

    def restore(self, state: Any) -> None:
        """Restore a copy that :meth:`save` has made."""
        for module, variables in zip(self._modules, state.variables, strict=True):
            for name in _variables(module).keys() - variables.keys():
                del module[name]
            module.update(variables)
        for (kind, _), attributes in zip(self._classes, state.attributes, strict=True):
            _set(kind, attributes)
        for container, content in state.contents:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Context in which the initial state is restored, with empty caches; the elements of arrays are not restored."""
        now = self.save()
        self.seed(0)
        try:
            yield
        finally:
            self.restore(now)

    def kept(self) -> list[str]:
        """Names of variables that have changed, of caches that have had hits, and of all arrays, which may have been written to."""
        before = {id(container): content for container, content in self._first.contents}

        def is_kept(value: Any, first: dict[str, Any], name: str) -> bool:
            if is_a(value, np.ndarray) or name not in first or first[name] is not value:
                return True
            return id(value) in before and not _hold_the_same(value, before[id(value)])

        names = [
            name
            for module in self._modules
            for name, cached in _cached_functions(module)
            if cached.cache_info().hits
        ]
        for module, first in zip(self._modules, self._first.variables, strict=True):
            variables = _variables(module).items()
            names += [
                name
                for name, value in variables
                if not is_a(value, CachedFunction) and is_kept(value, first, name)
            ]
        for (kind, _), first in zip(self._classes, self._first.attributes, strict=True):
            names += [
                f"{kind.__name__}.{name}" for name in first if is_kept(vars(kind).get(name), first, name)
            ]
        return names

    def seed(self, number: int) -> None:
        """Set up a new rank, with the initial values of the variables and its own copies of arrays."""
        self.restore(self._first)
        caches: dict[int, object] = {}  # one per function, which may have several names
        for module in self._modules:
            for name, cached in _cached_functions(module):
                module[name] = caches.setdefault(id(cached), _with_own_cache(cached))
        copies = ArrayCopies()
        for holder in (*self._modules, *(container for container, _ in self._first.contents)):
            for key, value in _entries(holder):
                if (own := copies.of(value)) is not None:
                    holder[key] = own
        for (kind, _), attributes in zip(self._classes, self._first.attributes, strict=True):
            _set(
                kind,
                {name: own for name, value in attributes.items() if (own := copies.of(value)) is not None},
            )


CachedFunction: Final = type(lru_cache(lambda: None))


def _modules_of(packages: Sequence[str]) -> list[dict[str, Any]]:
    """The variables of the modules of some packages, and of other modules that have imported cached functions from them by name."""
    of_packages: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for name, module in list(sys.modules.items()):
        # Not every entry is a module: None blocks an import, and some modules replace themselves by another object. A cffi library, such
        # as cryptography's, claims a module as its __class__ but has no dictionary.
        if is_a(module, ModuleType):
            (of_packages if is_within(name, packages) else others).append(_dictionary(module))
    caches = {
        id(cached)
        for variables in of_packages
        for _, cached in _cached_functions(variables)
        if is_within(cached.__module__, packages)  # not those imported from elsewhere
    }
    if not caches:
        return of_packages
    return of_packages + [each for each in others if not caches.isdisjoint(map(id, list(each.values())))]


def is_within(name: str, packages: Sequence[str]) -> bool:
    """Return True if a module of that name is one of `packages` or in one of them."""
    return f"{name}.".startswith(tuple(f"{package}." for package in packages))


def _dictionary(module: ModuleType) -> dict[str, Any]:
    """The dictionary of a module; does not trigger the import of a lazy module."""
    dictionary: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return dictionary


def _cached_functions(module: dict[str, Any]) -> list[tuple[str, Any]]:
    """The functions with a cache among the variables of a module, with their names."""
    return [(name, value) for name, value in module.items() if is_a(value, CachedFunction)]


def is_a(value: Any, *kinds: type) -> bool:
    """Return True if `value` is an instance of one of `kinds`. Does not read attributes of it: proxies for deprecated names would warn."""
    return issubclass(type(value), kinds)


def _with_own_cache(cached: Any) -> Callable[..., Any]:
    own: Callable[..., Any] = lru_cache(**cached.cache_parameters())(cached.__wrapped__)
    return own


def _variables(module: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a module or class that may hold state, including names such as ``__default``."""
    return {
        name: value
        for name, value in module.items()
        if not (name.startswith("__") and name.endswith("__"))
        and not is_a(value, *NO_STATE)
        and value is not _BUILTINS
    }


def _classes(module: dict[str, Any]) -> list[type]:
    """The classes that a module defines, except enumerations, whose members cannot be set again."""
    return [
        value
        for value in module.values()
        if is_a(value, type) and value.__module__ == module.get("__name__") and not issubclass(value, Enum)
    ]


def _attributes(kind: type) -> dict[str, Any]:
    """The attributes of a class that may hold state: not methods, properties and other descriptors."""
    return {
        name: value for name, value in _variables(vars(kind)).items() if not hasattr(type(value), "__get__")
    }


def _set(kind: type, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        if name not in vars(kind) or vars(kind)[name] is not value:
            setattr(kind, name, value)


def _hold_the_same(one: Any, other: Any) -> bool:
    """Return True if two containers of one type hold identical objects under the same keys or indices."""
    if isinstance(one, set):
        return bool(one == other)
    return [(key, id(value)) for key, value in _entries(one)] == [
        (key, id(value)) for key, value in _entries(other)
    ]


def _entries(holder: dict[Any, Any] | list[Any] | set[Any]) -> list[tuple[Any, Any]]:
    """The entries of a dictionary or a list, by key; a set holds no arrays."""
    if isinstance(holder, set):
        return []
    return list(holder.items() if isinstance(holder, dict) else enumerate(holder))
