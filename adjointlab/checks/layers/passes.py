"""A module's passes over given values: forward, and backward where it is asked for, with what came of each.

A layer and its sequential twin go through the same passes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adjointlab.checks.compare import Local
from adjointlab.core import arrays

__all__ = ["Names", "Pass", "as_tuple", "fill", "gradients", "run", "values"]


@dataclass(frozen=True)
class Names:
    """What a module's parameters and buffers are called."""

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]


@dataclass
class Pass:
    """What a module gets in one pass, and what came of it.

    `inputs` are leaves of the graph where a gradient is asked for; with `copied`, the module gets copies of them.
    `parameters` are filled in before, by name; without any, those of the pass before stay. `accumulated` stands in the
    ``.grad`` of inputs and parameters before the backward pass, and is taken off the gradients after it; `None` is an
    empty ``.grad``.
    """

    inputs: Sequence[Any]
    cotangents: Sequence[Any] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    accumulated: Sequence[Any] | None = None
    copied: bool = False
    outputs: tuple[Any, ...] = ()
    results: dict[str, Local] = field(default_factory=dict)


def run(
    module: Any,
    names: Names,
    passes: Sequence[Pass],
    *,
    backward: bool,
    together: bool,
    check: Callable[[tuple[Any, ...]], None],
) -> None:
    """Run the module through `passes`; with `together`, all of them forward before the first goes backward.

    `check` sees the outputs of each pass and raises for those that cannot be.
    """
    for each in passes:
        fill(module, each.parameters)
        each.outputs = as_tuple(module(*(x.clone() if each.copied else x for x in each.inputs)))
        check(each.outputs)
        each.results["outputs"] = values(each.outputs)
        each.results["buffers"] = values([module.get_buffer(name) for name in names.buffers])
        each.results["parameters"] = values([module.get_parameter(name) for name in names.parameters])
        if backward and not together:
            _go_back(module, names, each)
    if backward and together:
        for each in passes:
            _go_back(module, names, each)


def _go_back(module: Any, names: Names, each: Pass) -> None:
    import torch

    leaves = [*each.inputs, *(module.get_parameter(name) for name in names.parameters)]
    before = [None] * len(leaves) if each.accumulated is None else each.accumulated
    for leaf, accumulated in zip(leaves, before, strict=True):
        # In the leaf's own memory order, as torch has it.
        leaf.grad = (
            torch.zeros_like(leaf).copy_(accumulated)
            if accumulated is not None and leaf.requires_grad
            else None
        )
    # Every rank runs backward, whatever requires a gradient here: the messages of the others depend on it.
    reached = [(y, g) for y, g in zip(each.outputs, each.cotangents, strict=True) if y.requires_grad]
    if reached:
        torch.autograd.backward([y for y, _ in reached], [g for _, g in reached])
    found = gradients(leaves)
    if each.accumulated is not None:
        found = tuple(
            total - np.array(arrays.to_numpy(accumulated)) if leaf.requires_grad else total
            for leaf, total, accumulated in zip(leaves, found, each.accumulated, strict=True)
        )
    each.results["input gradient"] = found[: len(each.inputs)]
    each.results["parameter gradient"] = found[len(each.inputs) :]


def fill(module: Any, parameters: Mapping[str, Any]) -> None:
    """Give the module's parameters their values, each of the same shape, or both of zero volume."""
    import torch

    with torch.no_grad():
        for name, given in parameters.items():
            if given.numel():
                module.get_parameter(name).copy_(given)


def gradients(leaves: Sequence[Any]) -> Local:
    """The gradients of leaves of the graph: zero where there is none."""
    return tuple(
        np.zeros(tuple(leaf.shape)) if leaf.grad is None else np.array(arrays.to_numpy(leaf.grad))
        for leaf in leaves
    )


def values(tensors: Sequence[Any]) -> Local:
    """What tensors hold now."""
    return tuple(np.array(arrays.to_numpy(tensor.detach())) for tensor in tensors)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One tensor or several, as several."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)
