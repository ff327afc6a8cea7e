"""Modules that average gradients over ranks: those that torch calls data-parallel, and those that users' code makes, wherever it keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed._composable.contract import STATE_KEY
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from adjointlab.torch_distributed.module_hooks import hooked

__all__ = ["is_data_parallel", "is_flattening", "kept_elsewhere", "noting_wrappers"]


def is_data_parallel(part: nn.Module) -> bool:
    """Return True for FullyShardedDataParallel, DistributedDataParallel, and a module under `replicate`, which hides a DistributedDataParallel."""
    if isinstance(part, DistributedDataParallel) or is_flattening(part):
        return True
    states = vars(part).get(STATE_KEY, {}).values()
    return any(type(state).__module__ == "torch.distributed._composable.replicate" for state in states)


def is_flattening(part: nn.Module) -> bool:
    """Return True for torch's FullyShardedDataParallel; by name, because its import is slow."""
    return type(part).__name__ == "FullyShardedDataParallel"


@contextmanager
def noting_wrappers() -> Iterator[list[nn.Module]]:
    """Context whose value lists the data-parallel modules that this thread makes: an attribute of an engine may keep one, and be no submodule."""
    wrappers: list[nn.Module] = []

    def note(module: nn.Module, name: str, wrapped: nn.Module | None) -> None:
        if is_data_parallel(module):
            wrappers.append(module)

    with hooked(register_module_module_registration_hook, note):
        yield wrappers


def kept_elsewhere(module: nn.Module, wrappers: Iterable[nn.Module]) -> tuple[nn.Module, ...]:
    """Those wrappers around parameters of a module that are not in it."""
    held = {id(parameter) for parameter in module.parameters()}
    inside = set(module.modules())
    return tuple(
        each for each in wrappers if each not in inside and not held.isdisjoint(map(id, each.parameters()))
    )
