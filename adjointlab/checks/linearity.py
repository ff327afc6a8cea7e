"""Is the operator linear? F(2x + y) = 2 F(x) + F(y) and F(0) = 0, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.checks.context import CheckContext
from adjointlab.checks.finite import not_finite
from adjointlab.checks.schedule_invariant import ElementResult, ScheduleInvariant
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core import arrays

__all__ = ["LinearityCheck"]

_SCALARS: tuple[complex, ...] = (2, 1j)


@dataclass(frozen=True)
class Observation:
    """For both directions: the image of the combination, the combination of the images, the image of zero."""

    combined: tuple[Local, Local]
    combination: tuple[Local, Local]
    zero: tuple[Local, Local]
    tolerance: Tolerance


class LinearityCheck(Check):
    """Sampled: what makes a basis probe a proof. Complex spaces are tried with an imaginary scalar too."""

    name = "linearity"

    def observe(self, context: CheckContext) -> Observation:
        bound = context.integers(headroom=4)
        complex_field = context.domain.is_complex and context.codomain.is_complex
        scalar = _SCALARS[context.setting.seed % 2] if complex_field else 2
        forward = _probe(context, context.forward, context.primal, scalar, bound)
        # F* is linear too; a complex scalar passes through it unchanged.
        adjoint = _probe(context, context.adjoint, context.dual, scalar, bound)
        return Observation(
            (forward[0], adjoint[0]),
            (forward[1], adjoint[1]),
            (forward[2], adjoint[2]),
            context.tolerance,
        )

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        for index, (direction, _, space) in enumerate(spaces.sides()):
            for part in ("combined", "combination", "zero"):
                if verdict := not_finite(
                    direction, space, [getattr(seen, part)[index] for seen in observations]
                ):
                    return verdict
            got = [seen.combined[index] for seen in observations]
            want = [seen.combination[index] for seen in observations]
            if difference := first_difference(space, got, want, observations[0].tolerance):
                where, actual, expected = difference
                return incoherent(
                    f"{direction} is not linear",
                    ("element", where),
                    ("F(cx + y)", actual),
                    ("c F(x) + F(y)", expected),
                )
            zero = [seen.zero[index] for seen in observations]
            nothing = [tuple(np.zeros_like(array) for array in local) for local in zero]
            if difference := first_difference(space, zero, nothing):
                where, actual, _ = difference
                return incoherent(f"{direction} is not linear", ("element", where), ("F(0)", actual))
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[Observation]
    ) -> Mapping[str, ScheduleInvariant]:
        tolerance = observations[0].tolerance
        return {
            f"{direction} of a sum": ElementResult(
                space, [seen.combined[index] for seen in observations], tolerance
            )
            for index, (direction, _, space) in enumerate(spaces.sides())
        }


def _probe(
    context: CheckContext,
    apply: Callable[[Sequence[Any]], tuple[Any, ...]],
    draw: Callable[[int, int], tuple[Any, ...]],
    scalar: complex,
    bound: int,
) -> tuple[Local, Local, Local]:
    x, y = draw(0, bound), draw(1, bound)
    combined = context.numpy(apply([arrays.copy(a * scalar + b) for a, b in zip(x, y, strict=True)]))
    images = zip(context.numpy(apply(x)), context.numpy(apply(y)), strict=True)
    with np.errstate(all="ignore"):  # what is not finite is told by the judge
        combination = tuple(np.asarray(a * scalar + b) for a, b in images)
    zero = context.numpy(apply([arrays.copy(a * 0) for a in x]))
    return combined, combination, zero
