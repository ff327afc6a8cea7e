"""Attributes that users' code sets on the classes of a module while it makes it parallel: the sequential module has the same classes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING

from adjointlab.worlds.module_state import is_within

if TYPE_CHECKING:
    import torch

__all__ = ["warning_of_classes"]


@contextmanager
def warning_of_classes(module: torch.nn.Module, rank_local: Sequence[str]) -> Iterator[None]:
    """Context that warns of attributes that are set meanwhile on classes of a module, unless each rank has them for itself."""
    import torch

    kinds = {kind for part in module.modules() for kind in type(part).__mro__} - {torch.nn.Module, object}
    before = {kind: dict(vars(kind)) for kind in kinds}
    yield
    shared = [
        f"{kind.__name__}.{name}"
        for kind, attributes in before.items()
        for name, value in vars(kind).items()
        if attributes.get(name) is not value
        and not name.startswith("__")
        and not (is_within(kind.__module__, rank_local) and not isinstance(value, FunctionType))
    ]
    if shared:
        warnings.warn(
            f"parallelize has set {', '.join(sorted(shared))}: the sequential module finds that on its class too, and so does every simulated rank, "
            "so that a fault may not show. Set it on the module; or, if it is no function, name the module of the class in rank_local",
            stacklevel=3,
        )
