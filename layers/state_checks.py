"""Checks of a state_dict that is to be loaded: what one rank was given wrongly is the same error on every rank, before any values move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike

import torch

from adjointlab.core.agreement import check_alike, raise_together
from adjointlab.primitives.validation import single_worker
from adjointlab.typing import Communicator

__all__ = ["check_on", "check_tensors"]


def check_on(comm: Communicator, root: int | None, check: Callable[[], None]) -> None:
    """Collective: run `check` on the rank `root` alone, without one on each, and raise its `TypeError` or `ValueError` on every rank.

    Raises `ValueError` for a `root` that differs by rank, or is no rank.
    """
    check_alike(comm, {"root": root})
    if root is not None:
        single_worker("root", root, 1, comm)
    raise_together(comm, check if root in (None, comm.Get_rank()) else lambda: None)


def check_tensors(state: Mapping[str, torch.Tensor] | None) -> Mapping[str, torch.Tensor]:
    """`state`; raise `TypeError` unless it is a mapping whose values are torch's tensors."""
    given: object = state
    if not isinstance(given, Mapping):
        hint = "with root= the others may have none" if given is None else "pass that of the sequential model"
        if isinstance(given, str | PathLike):
            hint = "torch.load reads one from a file"
        raise TypeError(f"state: a {type(given).__name__} is no state_dict; {hint}")
    wrong = {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}
    if wrong:
        name, value = next(iter(wrong.items()))
        hint = "; torch.from_numpy makes one" if type(value).__module__ == "numpy" else ""
        raise TypeError(f"state: {name} is a {type(value).__name__}, no torch.Tensor{hint}")
    return given
