"""Values that are drawn for a layer and its twin: the keys of each pass, and the kinds of inputs made from drawn integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from adjointlab.checks.context import FRACTIONS, INFINITE, SUBNORMAL, CheckContext
from adjointlab.checks.seed_digits import COTANGENTS
from adjointlab.core import arrays
from adjointlab.core.layer import Layer, elementwise, prepared
from adjointlab.core.vectors import SMALL_INTEGERS, THIRDS, VALUES, Draw

if TYPE_CHECKING:
    import torch

__all__ = [
    "LARGEST",
    "LARGEST_FOR_INDICES",
    "SMALL",
    "change_of",
    "described_cotangents",
    "direction_keys",
    "has_halved_cotangents",
    "has_small_cotangents",
    "infinite",
    "left_as_given",
    "pass_keys",
]

LARGEST = 4
"""Bound of the drawn integers: sums of some thousand products of three of them are exact in single precision."""

LARGEST_FOR_INDICES = 2**31
"""Bound of the integers from which indices are made: exact in double precision, with bits left for fractions."""


_EXPONENTS: Mapping[str, Mapping[str, int]] = {
    "large": {"float64": 14, "float32": 14, "bfloat16": 14, "float16": 6},
    "tiny": {"float64": -40, "float32": -40, "bfloat16": -40, "float16": -6},
}
"""Exponents by kind of values and the type in which a module computes. Cubes are still normal numbers, except in half precision."""


SMALL = -10
"""Exponent of small cotangents: with them gradients are below thresholds such as the norm of a clip."""


def has_small_cotangents(seed: int, layer: Layer) -> bool:
    """Return True if the cotangents of a case are far below 1.

    Not if a rounding is declared, which would hide the steps of an optimiser, nor in float16, where gradients would underflow.
    """
    tensors = (*layer.domain.tensors, *layer.parameters.tensors, *layer.codomain.tensors)
    declares = bool(layer.rounding or layer.reach or layer.computes_in)
    return COTANGENTS.of(seed) == 1 and not declares and all(tensor.dtype != "float16" for tensor in tensors)


def has_halved_cotangents(seed: int) -> bool:
    """Return True if the cotangents of a case are zero in one half of each dimension, as if the loss did not depend on some tokens."""
    return COTANGENTS.of(seed) == 2


def described_cotangents(seed: int, layer: Layer) -> str:
    """Description of the cotangents of a case if they are special; else empty."""
    if has_halved_cotangents(seed):
        return "zero in one half of each dimension, so that some ranks may have only zeros"
    return "far below 1, so that gradients are small" if has_small_cotangents(seed, layer) else ""


def pass_keys(context: CheckContext, number: int) -> dict[str, Draw]:
    """Keys of the values of pass `number`."""
    seed = context.setting.seed
    of_others = context.values if context.values in (FRACTIONS, THIRDS) else SMALL_INTEGERS
    # Thirds are made from the integers that the subject has prepared (`ModuleUnderTest.inputs`).
    values = context.values if context.values in VALUES and context.values != THIRDS else SMALL_INTEGERS
    return {
        "inputs": Draw(seed, 3 * number, "primal", LARGEST, values=values, beyond=context.beyond),
        # Small integers have ties: the largest value of each rank's part would mostly be that of the whole parameter.
        "parameters": Draw(seed, 3 * number + 1, "primal", LARGEST, values=of_others, peaked=number == 1),
        "cotangents": Draw(seed, 3 * number + 2, "dual", LARGEST, values=of_others, beyond=context.beyond),
        "accumulated": Draw(seed, 3 * number, "dual", LARGEST),
    }


def direction_keys(context: CheckContext) -> dict[str, Draw]:
    """Keys of the direction in which a check differentiates: the same for a layer and for its twin."""
    seed = context.setting.seed
    return {"inputs": Draw(seed, 7, "primal", LARGEST), "parameters": Draw(seed, 8, "primal", LARGEST)}


def change_of(values: str, computes_in: str = "") -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the function that turns drawn integers into `values`, for a module that computes in that type; `None` if not needed."""
    if values in _EXPONENTS:
        exponents = _EXPONENTS[values]
        return lambda x: x * 2.0 ** exponents[computes_in or str(x.dtype).removeprefix("torch.")]
    return {SUBNORMAL: _subnormal, INFINITE: infinite, THIRDS: lambda x: x / 3}.get(values)


def _subnormal(x: torch.Tensor) -> torch.Tensor:
    import torch

    limits = torch.finfo(x.dtype)
    return x * (limits.smallest_normal * limits.eps)


def infinite(x: torch.Tensor) -> torch.Tensor:
    """Replace the largest and the smallest of the integers by infinities."""
    import torch

    return torch.where(x.abs() >= LARGEST, x * float("inf"), x)


def left_as_given(layer: Layer, memory: str, change: Callable[[torch.Tensor], torch.Tensor]) -> list[bool]:
    """For each input: True if the subject's preparation changes neither drawn integers nor the results of `change`.

    If it changes an input, that needs values in a certain range. The result does not depend on drawn values, which differ between
    ranks.
    """
    import torch

    free = [True] * len(layer.domain.tensors)
    if layer.prepare is elementwise:
        return free
    for number in range(-LARGEST, LARGEST + 1):
        drawn = [
            cast(
                "torch.Tensor",
                arrays.from_numpy(np.full((1,) * len(tensor.layout.shape), number), tensor.dtype, memory),
            )
            for tensor in layer.domain.tensors
        ]
        changed = [change(x) if x.is_floating_point() else x for x in drawn]
        for given in (drawn, changed):
            try:
                legal = prepared(layer.prepare, *given)
            except Exception:  # a preparation that needs more than one element may raise anything
                return [False] * len(free)
            free = [
                known and x.dtype == y.dtype and torch.equal(x, y)
                for known, x, y in zip(free, given, legal, strict=True)
            ]
    return free
