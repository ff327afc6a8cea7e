"""Measurement of the rounding in an operator's images: its matrix does not show how it computes its results.

A vector times a small integer rounds differently wherever something rounds. The change is relative to the norm of the image. But
if everything cancels, as in the difference of a vector and its projection onto a space that contains it, only
errors are left, and these are relative to the argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from adjointlab.checks.elements import magnitudes, norm, wide
from adjointlab.core import arrays
from adjointlab.core.space import Space
from adjointlab.typing import Array, NumpyArray

if TYPE_CHECKING:
    from adjointlab.checks.context import CheckContext

__all__ = [
    "NOTHING_MEASURED",
    "ROUNDING_FACTORS",
    "Apply",
    "MeasuredRounding",
    "largest_rounding",
    "measured_rounding",
    "residual_rounding",
    "times",
]

Apply: TypeAlias = Callable[[Sequence[Array]], tuple[Array, ...]]
"""One direction of an operator, on this rank's local tensors."""

ROUNDING_FACTORS = (3, 7)
"""Integers by which vectors are multiplied before they are applied again, to expose rounding."""

_MARGIN = 16
"""Factor by which other rounding may exceed the largest that was measured, because few of many numbers were measured."""

_FOR_ROUNDING = 1010
"""Number of the first draw for measuring rounding; no check uses these draws."""

_VECTORS_OF_TINY_IMAGES = 4
"""Number of random vectors for measuring rounding if elements of an image are tiny."""


class MeasuredRounding(NamedTuple):
    """The largest measured changes by rounding in the images of an operator."""

    relative: float  # to the norm of an image
    residual: (
        float  # relative to the largest number of the argument, in elements that may be nothing but errors
    )

    def with_margin(self, precision: float) -> MeasuredRounding:
        """The rounding to allow, with a margin as few of many numbers were measured; at most :func:`largest_rounding` of that precision."""
        most = largest_rounding(precision)
        return MeasuredRounding(*(min(_MARGIN * each, most) for each in self))


NOTHING_MEASURED = MeasuredRounding(0.0, 0.0)


def measured_rounding(context: CheckContext) -> MeasuredRounding:
    """The changes by rounding in the images of random vectors in both directions, with a margin. Collective.

    Each vector is applied again times 3 and times 7. The result is limited, so that an operator that casts, or is not linear, does not
    pass for one that rounds.
    """
    if context.arithmetic.has_integers:
        return NOTHING_MEASURED
    operator, measured = context.fresh(), NOTHING_MEASURED
    for number in range(_VECTORS_OF_TINY_IMAGES):
        seen = [
            *_changes(
                context, context.codomain, lambda x: context.forward(x, operator), context.primal, number
            ),
            *_changes(context, context.domain, lambda y: context.adjoint(y, operator), context.dual, number),
        ]
        changes = [_of_all_ranks(ranks) for ranks in zip(*operator.comm.allgather(seen), strict=True)]
        found = (each.measured for each in changes)
        measured = MeasuredRounding(*map(max, zip(measured, *found, strict=True)))
        # One vector is not enough for tiny elements, all of whose digits may be errors: two of these may be equal by chance.
        if measured.residual or not any(each.is_tiny for each in changes):
            break
    return measured.with_margin(context.arithmetic.precision)


class _Change(NamedTuple):
    """The change in the image of one vector under a factor, beyond the scaling, on one rank or on all."""

    changed: float  # norm of the difference
    image: float  # norm of the image
    residual: float  # the largest difference in a tiny element, relative to the argument's largest number
    is_tiny: bool  # whether an element is tiny, and not zero

    @property
    def measured(self) -> MeasuredRounding:
        """The rounding of the image; 0 where it is not finite."""
        relative = self.changed / self.image if 0 < self.image < math.inf else 0.0
        return MeasuredRounding(relative if math.isfinite(relative) else 0.0, self.residual)


def _of_all_ranks(of_ranks: Sequence[_Change]) -> _Change:
    changed, images, residuals, tiny = zip(*of_ranks, strict=True)
    return _Change(math.hypot(*changed), math.hypot(*images), max(residuals), any(tiny))


def _changes(
    context: CheckContext,
    space: Space,
    apply: Apply,
    element: Callable[[int, int], tuple[Array, ...]],
    number: int,
) -> list[_Change]:
    """For each factor, the change in this rank's part of the image of random vector `number` when that is multiplied by it."""
    precision, rank = context.arithmetic.precision, context.rank
    # Integers that leave room for the factor, so that nothing rounds outside the operator.
    largest = 2 ** (precision - 4)
    x = element(_FOR_ROUNDING + number, largest)
    plain, found = context.numpy(apply(x)), []
    with np.errstate(all="ignore"):  # values that are not finite are left out
        size, sizes = norm(space, plain, rank), magnitudes(plain) / largest
        is_tiny = bool(((sizes > 0) & (sizes < largest_rounding(precision))).any())
        for factor in ROUNDING_FACTORS:
            images = context.numpy(times(factor, apply)(x))
            changed = [
                image.astype(wide(image.dtype)) / factor - before
                for image, before in zip(images, plain, strict=True)
            ]
            residual = residual_rounding(magnitudes(changed) / largest, sizes, precision)
            found.append(_Change(norm(space, changed, rank), size, residual, is_tiny))
    return found


def residual_rounding(changes: NumpyArray, sizes: NumpyArray, precision: float) -> float:
    """The largest of the `changes` in numbers so small that they may consist of errors only; both are relative to the argument."""
    return float(changes[sizes < largest_rounding(precision)].max(initial=0.0))


def times(factor: int, apply: Apply) -> Apply:
    """Return the function that applies an operator to its argument times a factor."""
    return lambda x: apply([arrays.copy(array * factor) for array in x])


def largest_rounding(precision: float) -> float:
    """The largest measured difference that is attributed to rounding: 33 of 53 bits must agree, so that a cast to a narrower type shows."""
    return math.pow(2.0, -0.62 * precision)
