"""Data are frozen: what is drawn, observed, judged, stored or sent cannot be changed on its way."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from types import ModuleType

import msgspec
import pytest

MUTABLE = {
    "Pass",  # is filled while a module goes through it
    "CaseCounts",  # counts
    "HangSimulator",
    "_State",  # of the transport over a communicator
}
"""The dataclasses of these packages that are state and no data."""


def data_types_of(package: str) -> Iterator[type]:
    """All dataclasses and structs that the modules of a package define."""
    for module in modules_of(package):
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__ and _is_data(value):
                yield value


def modules_of(package: str) -> Iterator[ModuleType]:
    """The modules of a package and of the packages in it."""
    for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
        yield import_module(module.name)


def _is_data(kind: type) -> bool:
    return is_dataclass(kind) or issubclass(kind, msgspec.Struct)


def is_frozen(kind: type) -> bool:
    """True for a type whose objects cannot be changed."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", ["core", "checks", "engine", "store"])
def test_data_are_frozen(package: str) -> None:
    found = list(data_types_of(f"adjointlab.{package}"))
    assert len(found) > 3
    mutable = {each.__name__ for each in found if not is_frozen(each)}
    assert mutable <= MUTABLE
