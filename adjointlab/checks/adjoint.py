"""Is the backward pass the adjoint of the forward pass? <Fx, y> = <x, F*y> [Hewett21, eqs. 1 and 26]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adjointlab.checks.check import Check, Inapplicable, Spaces
from adjointlab.checks.context import CheckContext, Gain
from adjointlab.checks.finite import place_not_finite, returned_not_finite
from adjointlab.checks.schedule_invariant import InnerProductResult, ScheduleInvariant
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.pairing import ZERO, Exact, pair_local
from adjointlab.core.space import Space

__all__ = ["AdjointCheck", "Products", "miss_probability"]

MISS_TARGET = 1e-9
"""Exact draws repeat until a wrong adjoint is missed with at most this probability."""


@dataclass(frozen=True)
class Magnitudes:
    """One rank's part of the sizes that rounding is measured against."""

    squares: tuple[float, float, float, float]  # of Fx, y, x, F*y: the squared norms of eq. 26
    sums: tuple[float, float]  # of |x|, |y|
    peaks: tuple[float, float]  # max |x|, max |y|


@dataclass(frozen=True)
class Products:
    """One rank's contributions to both inner products of one draw."""

    bound: int  # K of an exact draw, 0 for the floating form
    forward: Exact  # to <Fx, y>
    adjoint: Exact  # to <x, F*y>
    magnitudes: Magnitudes | None  # None where nothing rounds


@dataclass(frozen=True)
class Observation:
    """What one rank saw: its products, or the first NaN or infinity; and facts that all ranks share."""

    products: tuple[Products, ...]
    not_finite: tuple[str, str, str] | None  # the direction, where, and which of the two
    gain: Gain
    unit_roundoff: float


class AdjointCheck(Check):
    """The dot test: exact on integers that rounding cannot touch, and in floating point.

    One exact draw of integers from {-K, ..., K} misses a wrong adjoint with probability at most 2/(2K+1)
    (Schwartz-Zippel: the difference of both sides is a polynomial of degree two). Draws repeat until the product of
    these bounds is below 1e-9. The floating form uses the full significand and a bound from the operator's fan-in.
    """

    name = "adjoint"

    def observe(self, context: CheckContext) -> Observation:
        gain = context.gain
        bound = context.integer_bound() if gain.value else 0
        rounds = _rounds(bound)
        integers = any(t.element.is_integer for t in (*context.domain.tensors, *context.codomain.tensors))
        bounds = [bound] * rounds + ([] if integers else [0])
        if not bounds:
            raise Inapplicable(
                f"no integer is exact under a gain of {gain.value} with {context.precision} bits"
            )
        # All draws on every rank, whatever has come of one on this rank: the others are in its calls too.
        draws = [_products(context, number, each) for number, each in enumerate(bounds)]
        return Observation(
            tuple(draw for draw in draws if isinstance(draw, Products)),
            next((draw for draw in draws if not isinstance(draw, Products)), None),
            gain,
            0.0 if integers else 2.0**-context.precision,
        )

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        for rank, seen in enumerate(observations):
            if seen.not_finite:
                direction, where, value = seen.not_finite
                return returned_not_finite(direction, rank, where, value)
        draws = [
            _total(contributions) for contributions in zip(*(o.products for o in observations), strict=True)
        ]
        exact = [draw for draw in draws if draw.bound]
        figures: dict[str, float | str] = {"gain": first.gain.value, "gain from": first.gain.source}
        if exact:
            figures["miss probability"] = miss_probability(exact[0].bound) ** len(exact)
        for draw in draws:
            error = _error(draw, spaces.mixed)
            sizes = draw.magnitudes
            if sizes is not None and not draw.bound:
                figures["floating error (eq. 26)"] = _normwise(sizes, error)
            if error > (0.0 if sizes is None else _rounding_bound(sizes, first)):
                lines = [
                    ("⟨Fx, y⟩", str(draw.forward)),
                    ("⟨x, F*y⟩", str(draw.adjoint)),
                    ("form", f"integers up to {draw.bound}, exact" if draw.bound else "floating"),
                ]
                if sizes is not None:
                    lines.append(("error", f"{_normwise(sizes, error):.3g} (eq. 26)"))
                return incoherent("adjoint is not the transpose of forward", *lines, figures=figures)
        return coherent(**figures)

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[Observation]
    ) -> Mapping[str, ScheduleInvariant]:
        found: dict[str, ScheduleInvariant] = {}
        for number, parts in enumerate(zip(*(seen.products for seen in observations), strict=True), 1):
            draw = _total(parts)
            within = 0.0 if draw.magnitudes is None else _rounding_bound(draw.magnitudes, observations[0])
            found[f"⟨Fx, y⟩ of draw {number}"] = InnerProductResult(draw.forward, within)
            found[f"⟨x, F*y⟩ of draw {number}"] = InnerProductResult(draw.adjoint, within)
        return found


def miss_probability(bound: int) -> float:
    """The probability that one draw with values in {-K, ..., K} misses a wrong adjoint, at most.

    Each value has a probability of at most 1/(2K+1) + 2**-64, as it is a 64-bit hash modulo 2K+1.
    """
    return min(1.0, 2 * (1 / (2 * bound + 1) + 2.0**-64))


def _rounds(bound: int) -> int:
    if bound < 1:
        return 0
    return math.ceil(math.log(MISS_TARGET) / math.log(miss_probability(bound)))


def _products(context: CheckContext, number: int, bound: int) -> Products | tuple[str, str, str]:
    """This rank's part of one draw; the first NaN or infinity instead, as of :attr:`Observation.not_finite`."""
    # Powers of two other than one, so that a cast to integers shows.
    exponents = (-2, -1, 1, 2)
    seed = context.setting.seed + number
    fractional = not any(t.element.is_integer for t in (*context.domain.tensors, *context.codomain.tensors))
    exponent_x, exponent_y = (exponents[seed % 4], exponents[seed // 4 % 4]) if fractional else (0, 0)
    placed_x = context.placed(context.domain, "primal", number, bound, exponent_x)
    placed_y = context.placed(context.codomain.dual, "dual", number, bound, exponent_y)
    image, coimage = context.forward([p.view for p in placed_x]), context.adjoint([p.view for p in placed_y])
    # Paired with the values that were drawn: an operator that spoils its argument is the purity check's matter.
    x, y = [p.values for p in placed_x], [p.values for p in placed_y]
    rank, domain, codomain = context.rank, context.domain, context.codomain
    for direction, space, local in (("forward", codomain, image), ("adjoint", domain.dual, coimage)):
        if found := place_not_finite(space, context.numpy(local), rank):
            return direction, *found
    forward, adjoint = pair_local(codomain, image, y, rank), pair_local(domain, x, coimage, rank)
    if bound and context.gain.is_exact:
        return Products(bound, forward, adjoint, None)
    squares = (
        _square(codomain, image, rank),
        _square(codomain, y, rank),
        _square(domain, x, rank),
        _square(domain, coimage, rank),
    )
    sizes = [np.abs(np.concatenate([np.zeros(0), *(a.ravel() for a in v)])) for v in (x, y)]
    sums = (float(sizes[0].sum()), float(sizes[1].sum()))
    peaks = (float(sizes[0].max(initial=0.0)), float(sizes[1].max(initial=0.0)))
    return Products(bound, forward, adjoint, Magnitudes(squares, sums, peaks))


def _square(space: Space, local: Sequence[object], rank: int) -> float:
    return float(
        sum(
            (np.abs(np.asarray(arrays.to_numpy(array), dtype=np.complex128)) ** 2).sum()
            for tensor, array in zip(space.tensors, local, strict=True)
            if tensor.is_counted(rank)
        )
    )


def _total(contributions: Sequence[Products]) -> Products:
    forward, adjoint = ZERO, ZERO
    for part in contributions:
        forward, adjoint = forward + part.forward, adjoint + part.adjoint
    parts = [part.magnitudes for part in contributions if part.magnitudes is not None]
    magnitudes = None
    if parts:
        squares = tuple(np.sum([part.squares for part in parts], axis=0).tolist())
        sums = tuple(np.sum([part.sums for part in parts], axis=0).tolist())
        peaks = tuple(np.max([part.peaks for part in parts], axis=0).tolist())
        magnitudes = Magnitudes(squares, sums, peaks)
    return Products(contributions[0].bound, forward, adjoint, magnitudes)


def _error(draw: Products, mixed: bool) -> float:
    difference = draw.forward - draw.adjoint
    return abs(Exact(difference.real)) if mixed else abs(difference)


def _normwise(sizes: Magnitudes, error: float) -> float:
    """The left side of eq. 26."""
    image, y, x, coimage = (math.sqrt(square) for square in sizes.squares)
    scale = max(image * y, x * coimage)
    return error / scale if scale else error


def _rounding_bound(sizes: Magnitudes, seen: Observation) -> float:
    """What rounding can do to <Fx, y> - <x, F*y>, a priori.

    An output that adds up n terms has an error of at most gamma_{n-1} sum_j |F_ij| |x_j|, in any order of summation.
    So <Fx, y> is off by at most gamma_{n-1} * gain * max|x| * sum|y|, and <x, F*y> likewise. Complex products and
    magnitudes cost a factor of two at most. Pure data movement has n = 1 and must be exact.
    """
    u, n = seen.unit_roundoff, seen.gain.fan_in - 1
    gamma = n * u / (1 - n * u) if n * u < 1 else math.inf
    (sum_x, sum_y), (peak_x, peak_y) = sizes.sums, sizes.peaks
    if seen.gain.row_sum:
        scale = seen.gain.row_sum * (peak_x * sum_y + peak_y * sum_x)
    else:
        # Nothing is known of the operator but its size: normwise, as eq. 26 puts it.
        image, y, x, coimage = (math.sqrt(square) for square in sizes.squares)
        scale = image * y + x * coimage
    return 2 * gamma * scale
