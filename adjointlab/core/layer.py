"""Layers under test: modules that are not linear, with parameters, as one rank has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adjointlab.core.space import Space

__all__ = ["Layer", "elementwise", "undeclared"]

Prepare = Callable[..., Sequence[Any]]
"""Makes legal inputs of drawn ones, element by element: of a shard as of the whole tensor."""


def elementwise(*inputs: Any) -> Sequence[Any]:
    """Leaves the drawn inputs as they are."""
    return inputs


@dataclass(frozen=True)
class Layer:
    """A torch module on one rank, and where its tensors lie.

    `domain` and `codomain` are the spaces of its inputs and outputs, `parameters` and `buffers` those of its parameters
    and buffers: each tensor is called as the module calls it (``module.get_parameter(name)``), and so does the sequential
    twin. A rank that holds nothing of a parameter has one of zero volume.

    `rounding` is how far outputs and gradients may differ from the sequential ones, relative to the largest of each
    tensor: 0 where the arithmetic is exact on small integers. Where terms cancel, what is left may be smaller than what
    they were rounded by: `reach` is the least that a largest value counts for, with the lab's small integers as data.

    With `overwrites_inputs` it may write into its inputs, as an activation in place does, and gets copies of them.
    """

    comm: Any
    module: Any
    domain: Space
    codomain: Space
    parameters: Space
    buffers: Space
    rounding: float = 0.0
    prepare: Prepare = elementwise
    reach: float = 0.0
    overwrites_inputs: bool = False


def undeclared(module: Any, parameters: Space, buffers: Space) -> list[str]:
    """How the module's parameters and buffers differ from those that the spaces name, as predicates of the module.

    Buffers that are not persistent, which torch keeps out of ``state_dict``, are constants or caches: they need no place in
    a space. Of a tensor that the module has under several names, one is enough.
    """
    constants = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    faults = []
    for kind, space, owned in (
        ("parameter", parameters, dict(module.named_parameters(remove_duplicate=False))),
        ("buffer", buffers, dict(module.named_buffers(remove_duplicate=False))),
    ):
        declared = [tensor.name for tensor in space.tensors]
        known = {id(owned[name]) for name in declared if name in owned}
        faults += [
            f"has the {kind} {name}, which {kind}_space does not name"
            for name, tensor in owned.items()
            if id(tensor) not in known and name not in constants
        ]
        faults += [
            f"has no {kind} {name}, which {kind}_space names" for name in declared if name not in owned
        ]
    return faults
