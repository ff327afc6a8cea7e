"""The checks there are, found by importing the modules of this package, and which of them a subject is put to."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import adjointlab.checks
from adjointlab.checks.check import Check, CheckedSubject

__all__ = ["CHECKS", "check_named", "checks_of"]


def _discovered() -> Mapping[str, Check[Any]]:
    """Checks by name; those that run on request come last."""
    package = adjointlab.checks
    found: dict[str, Check[Any]] = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name == __name__:
            continue  # this module is still being executed
        for value in vars(import_module(module.name)).values():
            # A module that uses the check of another has the same object among its names.
            if isinstance(value, Check) and found.setdefault(value.name, value) is not value:
                raise TypeError(f"two checks are called {value.name!r}; the second is in {module.name}")
    on_request = [check for check in found.values() if check.order is None]
    ordinary = [check for check in found.values() if check.order is not None]
    # By name where two have the same position, so that the order does not depend on the file system.
    ordinary.sort(key=lambda check: (check.order, check.name))
    return MappingProxyType({check.name: check for check in (*ordinary, *on_request)})


CHECKS: Final = _discovered()
"""All checks by name."""


def check_named(name: str) -> Check[Any]:
    """Return the check called `name`. Raises `ValueError`, naming those that users may ask for."""
    try:
        return CHECKS[name]
    except KeyError:
        known = ", ".join(check.name for check in CHECKS.values() if check.order is not None)
        raise ValueError(f"check: {name!r} is not one of {known}") from None


def checks_of(subject: CheckedSubject, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Names of the checks that a subject is put to, in order; where `only` names some, of those alone."""
    asked = [check for check in CHECKS.values() if check.order is not None]
    return tuple(
        check.name for check in asked if (only is None or check.name in only) and check.applies_to(subject)
    )
