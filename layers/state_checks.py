"""Checks of a state_dict before it is loaded: a wrong argument on one rank raises the same error on every rank, before values are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike

import torch
from torch import nn

from adjointlab.core.agreement import check_alike, raise_together
from adjointlab.primitives.validation import single_worker
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator

__all__ = ["check_on", "check_shapes", "check_tensors", "name_below", "state_of"]


def check_on(comm: Communicator, root: int | None, check: Callable[[], None]) -> None:
    """Collective: run `check` on the rank `root`, or on each rank if that is None; raise its `TypeError` or `ValueError` on every rank.

    Raises `ValueError` for a `root` that differs by rank, or is not a rank.
    """
    check_alike(comm, {"root": root})
    if root is not None:
        single_worker("root", root, 1, comm)
    raise_together(comm, check if root in (None, comm.Get_rank()) else lambda: None)


def check_tensors(state: Mapping[str, torch.Tensor] | None) -> Mapping[str, torch.Tensor]:
    """Return `state`; raise `TypeError` unless it is a mapping whose values are torch tensors."""
    given: object = state
    if not isinstance(given, Mapping):
        hint = "with root= the others may have none" if given is None else "pass that of the sequential model"
        if isinstance(given, str | PathLike):
            hint = "torch.load reads one from a file"
        raise TypeError(f"state: {described_type(given)} is not a state_dict; {hint}")
    wrong = {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}
    if wrong:
        name, value = next(iter(wrong.items()))
        hint = "; torch.from_numpy makes one" if type(value).__module__ == "numpy" else ""
        if isinstance(value, Mapping):
            hint = f"; if that is the state_dict, pass state[{name!r}]"
        raise TypeError(f"state: {name} is {described_type(value)}, not a torch.Tensor{hint}")
    return given


def name_below(path: str, name: str) -> str:
    """Return the full name in a model of `name` in the module at `path`."""
    return f"{path}.{name}" if path else name


def check_shapes(state: Mapping[str, torch.Tensor], needed: Mapping[str, torch.Tensor], path: str) -> None:
    """Raise `ValueError` unless `state` has tensors of the names and shapes of those in `needed`; errors prefix names by `path`."""
    if lacking := [
        f"{name_below(path, name)} {tuple(needed[name].shape)}" for name in needed if name not in state
    ]:
        raise ValueError(f"state: lacks {', '.join(lacking)}, which the layer needs")
    if unknown := [name_below(path, name) for name in state if name not in needed]:
        raise ValueError(f"state: has {', '.join(unknown)}, which the layer does not have")
    for name, value in state.items():
        if value.shape != needed[name].shape:
            raise ValueError(
                f"state: {name_below(path, name)} has the shape {tuple(value.shape)}, but the layer needs {tuple(needed[name].shape)}"
            )


def state_of(module: nn.Module) -> Mapping[str, torch.Tensor]:
    """Return the state_dict of `module`; raise `TypeError` if it is not a module."""
    given: object = module
    if not isinstance(given, nn.Module):
        raise TypeError(
            f"module: {described_type(given)} is not a torch.nn.Module; load_sequential_state_dict takes a state_dict"
        )
    return check_tensors(given.state_dict())
