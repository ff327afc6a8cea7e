"""Variables of the modules and classes of packages, one set for each simulated rank: as random streams, they are swapped with the rank.

Code keeps process groups, meshes and caches in variables of modules and attributes of classes, which simulated ranks share as threads.
Swapped are those of the modules, those that a class which a module defines has when the case begins, and what dictionaries, lists and
sets among them hold. Each rank begins with arrays of its own in the place of those that are variables or stand in such a container, and
with empty caches of its functions (``functools.lru_cache``); modules elsewhere that have imported one of these by name are swapped too. Out
of reach are attributes of other objects, variables of functions, state of C++, and modules that are imported after the case has begun.
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
"""Types of what a module defines or imports, which is the same for all ranks."""

_CONTAINERS: Final = (dict, list, set)

_BUILTINS: Final = vars(builtins)
"""It stands in modules whose functions `torch.compile` has compiled, as ``__builtins_dict___0``."""


class _Saved(NamedTuple):
    variables: list[dict[str, Any]]  # by module
    attributes: list[dict[str, Any]]  # by class
    contents: list[tuple[Any, Any]]  # containers among them, each with a copy


class ModuleState:
    """The variables of all modules of some packages that are imported by now."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._modules = _modules_of(packages)
        # The names once and for all: a package has many classes, few of which hold anything, and ranks change at every call.
        self._classes = [
            (kind, tuple(attributes))
            for module in self._modules
            for kind in _classes(module)
            if (attributes := _attributes(kind))
        ]
        self._first = self.save()

    def save(self) -> _Saved:
        """Copy the variables, and what the containers among them hold."""
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
        """Bring back what :meth:`save` has copied."""
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
        """Context in which everything is as it was at first, with empty caches, but for what arrays hold."""
        now = self.save()
        self.seed(0)
        try:
            yield
        finally:
            self.restore(now)

    def kept(self) -> list[str]:
        """The names of what is not as it was at first, of caches that have been of use, and of arrays, which may have been written to."""
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
        """Begin a rank: with what the variables held before the case, and arrays of its own."""
        self.restore(self._first)
        caches: dict[int, object] = {}  # one for each function, under whatever names modules have it
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
    """The variables of the modules of some packages, and of others that have imported functions with caches from there by name."""
    of_packages: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for name, module in list(sys.modules.items()):
        # None stands there for one that is not to be imported, and some put another object in their place. A library of cffi, as
        # cryptography has one, says that its class is that of a module, and has no dictionary.
        if is_a(module, ModuleType):
            (of_packages if is_within(name, packages) else others).append(_dictionary(module))
    caches = {
        id(cached)
        for variables in of_packages
        for _, cached in _cached_functions(variables)
        if is_within(cached.__module__, packages)  # not one that they have imported themselves
    }
    if not caches:
        return of_packages
    return of_packages + [each for each in others if not caches.isdisjoint(map(id, list(each.values())))]


def is_within(name: str, packages: Sequence[str]) -> bool:
    """Return True for the name of a module that is one of some packages, or is in one."""
    return f"{name}.".startswith(tuple(f"{package}." for package in packages))


def _dictionary(module: ModuleType) -> dict[str, Any]:
    """The dictionary of a module, without running the code of one that is to be imported when it is first used."""
    dictionary: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return dictionary


def _cached_functions(module: dict[str, Any]) -> list[tuple[str, Any]]:
    """The functions among the variables of a module that keep their results, by name."""
    return [(name, value) for name, value in module.items() if is_a(value, CachedFunction)]


def is_a(value: Any, *kinds: type) -> bool:
    """Return True for an instance, without asking the object, which may warn: some stand for names that are deprecated."""
    return issubclass(type(value), kinds)


def _with_own_cache(cached: Any) -> Callable[..., Any]:
    own: Callable[..., Any] = lru_cache(**cached.cache_parameters())(cached.__wrapped__)
    return own


def _variables(module: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a module or class that may hold state of its own; a name such as ``__default`` is that of one too."""
    return {
        name: value
        for name, value in module.items()
        if not (name.startswith("__") and name.endswith("__"))
        and not is_a(value, *NO_STATE)
        and value is not _BUILTINS
    }


def _classes(module: dict[str, Any]) -> list[type]:
    """The classes that a module defines. The members of an enumeration are not set again."""
    return [
        value
        for value in module.values()
        if is_a(value, type) and value.__module__ == module.get("__name__") and not issubclass(value, Enum)
    ]


def _attributes(kind: type) -> dict[str, Any]:
    """The attributes of a class that may hold state, which methods, properties and other descriptors do not."""
    return {
        name: value for name, value in _variables(vars(kind)).items() if not hasattr(type(value), "__get__")
    }


def _set(kind: type, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        if name not in vars(kind) or vars(kind)[name] is not value:
            setattr(kind, name, value)


def _hold_the_same(one: Any, other: Any) -> bool:
    """Return True if two containers of one type hold the same objects, at the same places."""
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
