"""Linearity of both directions, sampled: F(cx + y) = c F(x) + F(y) and F(0) = 0.

A matrix describes an operator completely only if the operator is linear, so this is the premise of the matrix test. Code that counts
nonzero elements, such as the ranks that contribute to a mean, is linear on vectors without zeros, and on basis vectors. So x
often has zeros where y has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np

from adjointlab.checks.check import BothDirections, Check, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local, Tolerance, first_difference, not_finite_verdict
from adjointlab.checks.schedule_invariant import ScheduleInvariant
from adjointlab.checks.seed_digits import ZEROS
from adjointlab.checks.verdict import PERHAPS, Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.space import Space
from adjointlab.typing import Array

__all__ = ["LINEARITY", "NOT_LINEAR", "LinearityCheck"]

Vector: TypeAlias = tuple[Array, ...]
"""This rank's part of each tensor of a space."""

NOT_LINEAR: Final = "is not linear"
"""The headline after the direction."""


class _Zeros(Enum):
    """The places in which the first vector of a combination is zero, by a digit of the seed; each occurs in a third of the cases."""

    NOWHERE = 0
    IN_A_THIRD_OF_THE_PLACES = 1
    ON_EVERY_SECOND_RANK = 2


_HEADROOM = 4
"""Factor by which combining enlarges integers up to K: |2x + y| <= 3K, and a component of i x + y at most 2K."""


@dataclass(frozen=True)
class Images:
    """One rank's images under one direction F."""

    combined: Local  # F(cx + y)
    combination: Local  # c F(x) + F(y)
    zero: Local  # F(0)


@dataclass(frozen=True)
class LinearityObservation:
    """One rank's images under both directions."""

    images: BothDirections[Images]
    tolerance: Tolerance


class LinearityCheck(Check[LinearityObservation]):
    """One random combination and the zero vector in either direction; the scalar is 2, or i between complex spaces."""

    name = "linearity"
    share = 0.4
    order = 40

    def observe(self, context: CheckContext) -> LinearityObservation:
        bound = context.arithmetic.integers(_HEADROOM)
        # An operator that is linear only over the reals, such as conjugation, is not linear on a complex space.
        complex_field = context.domain.is_complex and not Spaces(context.domain, context.codomain).mixed
        scalar = 1j if complex_field and context.setting.seed % 2 else 2
        forward = _images(
            context, context.forward, _vectors(context, context.domain, context.primal, bound), scalar
        )
        # F* is linear too: the conjugate is in the pairing, and the scalar passes through unchanged.
        dual = context.codomain.dual
        adjoint = _images(context, context.adjoint, _vectors(context, dual, context.dual, bound), scalar)
        tolerance = context.arithmetic.tolerance_under(_HEADROOM)
        return LinearityObservation(BothDirections(forward, adjoint), tolerance)

    def judge(self, spaces: Spaces, observations: Sequence[LinearityObservation]) -> Verdict:
        first, *_ = observations
        for direction, space, images in spaces.outputs(seen.images for seen in observations):
            combined = [each.combined for each in images]
            combination = [each.combination for each in images]
            zero = [each.zero for each in images]
            for outputs in (combined, combination, zero):
                if verdict := not_finite_verdict(direction, space, outputs):
                    return verdict
            nothing = [tuple(np.zeros_like(array) for array in local) for local in zero]
            # Exact for any operator: sums and products of zeros do not round.
            if difference := first_difference(space, zero, nothing):
                return incoherent(
                    f"{direction} {NOT_LINEAR}",
                    ("element", difference.where),
                    ("F(0)", difference.actual),
                    evidence=difference.evidence("F(0)", "should be"),
                )
            if difference := first_difference(space, combined, combination, first.tolerance):
                perhaps = [PERHAPS] if difference.is_small else []
                headline = f"{direction} {NOT_LINEAR}"
                return difference.verdict(headline, "F(cx + y)", "c F(x) + F(y)", *perhaps)
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[LinearityObservation]
    ) -> Mapping[str, ScheduleInvariant]:
        first, *_ = observations
        combined = (BothDirections(*(each.combined for each in seen.images)) for seen in observations)
        return spaces.element_results(combined, first.tolerance)


def _vectors(
    context: CheckContext, space: Space, element: Callable[[int, int], Vector], bound: int
) -> tuple[Vector, Vector]:
    """Two random vectors. The first often has zeros, the second hardly any: code may count nonzero elements."""
    zeros = _Zeros(ZEROS.of(context.setting.seed))
    in_places = zeros is _Zeros.IN_A_THIRD_OF_THE_PLACES
    x, y = element(0, 1 if in_places else bound), element(1, bound)
    for array, tensor in zip(x, space.tensors, strict=True):
        if in_places:
            array[...] = array * max(1, bound)
        elif zeros is _Zeros.ON_EVERY_SECOND_RANK and _is_second(tensor.groups, context.rank):
            array[...] = 0
    return x, y


def _is_second(groups: Mapping[int, int], rank: int) -> bool:
    """Return True for every second of the groups of ranks that hold equal copies."""
    return rank in groups and sorted(set(groups.values())).index(groups[rank]) % 2 == 1


def _images(
    context: CheckContext,
    apply: Callable[[Sequence[Array]], Vector],
    vectors: tuple[Vector, Vector],
    scalar: complex,
) -> Images:
    x, y = vectors
    # Combine before the operator gets x and y, which it might overwrite.
    combined = context.numpy(apply([arrays.copy(a * scalar + b) for a, b in zip(x, y, strict=True)]))
    images = zip(context.numpy(apply(x)), context.numpy(apply(y)), strict=True)
    with np.errstate(all="ignore"):  # the judge reports images that are not finite
        combination = tuple(np.asarray(a * scalar + b) for a, b in images)
    zero = context.numpy(apply([arrays.copy(a * 0) for a in x]))
    return Images(combined, combination, zero)


LINEARITY = LinearityCheck()
