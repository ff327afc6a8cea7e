"""Names of the parameters and buffers of a sequential module, and their paths in a module made from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from adjointlab.core.layer import constants_of

__all__ = ["Names", "missing", "sequential_name"]

_WRAPPERS: Final = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Attributes in which wrappers keep the module that they wrap."""

_KEEP_NAMES: Final = ", as FullyShardedDataParallel(..., use_orig_params=True) does"


@dataclass(frozen=True)
class Paths:
    """Paths of parameters and buffers in a module, by their names in the sequential one."""

    parameters: Mapping[str, str]
    buffers: Mapping[str, str]


@dataclass(frozen=True)
class Names:
    """Shapes of the parameters and names of the buffers of a sequential module; `tied` maps further names of a parameter to its first."""

    parameters: Mapping[str, tuple[int, ...]]
    buffers: tuple[str, ...]
    tied: Mapping[str, str]

    @classmethod
    def of(cls, module: nn.Module) -> Names:
        constants = constants_of(module)
        return cls(
            {name: tuple(held.shape) for name, held in module.named_parameters()},
            tuple(name for name, _ in module.named_buffers() if name not in constants),
            _tied(module),
        )

    def paths(self, module: nn.Module) -> Paths:
        """The paths in `module`. Raises `TypeError` if it has other parameters. Those that it lacks may be on other ranks."""
        owned = _owned(module.named_parameters(remove_duplicate=False), self.parameters)
        for path in owned:
            if (first := self.tied.get(path)) in owned:
                raise TypeError(
                    f"the parallel module has {path} and {first} as two parameters, and the sequential one as a single one: tie them again"
                )
        # A rank may have a tied parameter only under a further name, as the last pipeline stage.
        parameters = _paths("parameter", owned, self.parameters, self.tied)
        held = _owned(module.named_buffers(remove_duplicate=False), self.buffers)
        return Paths(parameters, _paths("buffer", held, self.buffers, {}, others=True))


def _tied(module: nn.Module) -> dict[str, str]:
    """The first name of each parameter that has several, by its other names."""
    first: dict[int, str] = {}
    names = [(name, id(held)) for name, held in module.named_parameters(remove_duplicate=False)]
    return {name: known for name, held in names if (known := first.setdefault(held, name)) != name}


def _owned(named: Iterable[tuple[str, torch.Tensor]], names: Collection[str]) -> list[str]:
    """One path for each tensor: preferably one in `names`, else the path with the longest name among them."""
    paths: dict[int, list[str]] = {}
    for path, held in named:
        paths.setdefault(id(held), []).append(path)
    return [
        max(each, key=lambda path: (path in names, len(sequential_name(path, names) or "")))
        for each in paths.values()
    ]


def _paths(
    kind: str, owned: Sequence[str], names: Collection[str], tied: Mapping[str, str], *, others: bool = False
) -> dict[str, str]:
    """The `owned` paths by name, of `tied` parameters by their first one. With `others`, paths without a name are left out."""
    paths: dict[str, str] = {}
    for path in owned:
        found = sequential_name(path, {*names, *tied})
        name = None if found is None else tied.get(found, found)
        if name is None and others:
            continue
        if name is None or name in paths:
            advice = _KEEP_NAMES if path.endswith("_flat_param") else ""
            raise TypeError(
                f"the parallel module has a {kind} {path}, and the sequential one none of that name: they are compared by name, so keep the sequential names{advice}"
            )
        paths[name] = path
    return {name: paths[name] for name in names if name in paths}


def missing(kind: str, name: str, found: Collection[str]) -> TypeError:
    """The error for a missing parameter or buffer, if those `found` exist.

    It mentions that each rank may have some of several parameters whose names differ only in a number, as of experts.
    """
    number = re.compile(r"\d+")
    alike = [other for other in found if other != name and number.sub("", other) == number.sub("", name)]
    advice = (
        f", but {alike[0]}: if each rank has some of several, such as experts, each needs its name in the sequential module, or, if each rank "
        "numbers its own from 0, its values there when parallelize returns"
    )
    return TypeError(
        f"the parallel module has no {kind} {name}, which the sequential one has{advice if alike else ''}"
    )


def sequential_name(path: str, names: Collection[str]) -> str | None:
    """The name of a path among `names`, without the parts that wrappers have added; None if there is none."""
    if path in names:
        return path
    parts = path.split(".")
    bare = ".".join(part for part in parts if part not in _WRAPPERS)
    shorter = (".".join(parts[start:]) for start in range(1, len(parts)))
    return next((name for name in (bare, *shorter) if name in names), None)
