"""Layers under test: modules that are not linear, with parameters, as one rank has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adjointlab.space import Space

__all__ = ["Layer", "elementwise"]

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
