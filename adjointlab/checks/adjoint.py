"""The dot test: <Fx, y> = <x, F*y> on random x and y [Hewett21, eqs. 1 and 26].

*Exact form.* x and y are integers from {-K, ..., K}, with K so small that no operation rounds
(:mod:`adjointlab.checks.arithmetic`), and both inner products are accumulated as integers. Then they are equal for a right
adjoint. For a wrong one, <Fx, y> - <x, F*y> is a nonzero polynomial of degree two in the values, and by the Schwartz-Zippel
lemma it vanishes in one draw with probability at most 2/(2K+1). Draws repeat until the product of these bounds
is below 1e-9. If the gain is read off the matrix, intermediates may be larger than it shows; then differences within the
rounding bound of the floating form pass, and the test is not called exact.

*Floating form.* x and y fill the significand, so that a cast to a narrower type shows. The tolerance is the largest rounding error
that this operator can have, not a constant: a constant that passes long sums also passes one lost ghost cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from adjointlab.checks.check import Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import SMALL, Local, first_not_finite, magnitudes, norm, returned_not_finite
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.gain import Gain, GainSource
from adjointlab.checks.hints import narrowing_hint
from adjointlab.checks.matrix import WitnessedCheck
from adjointlab.checks.measured_rounding import MeasuredRounding, largest_rounding
from adjointlab.checks.schedule_invariant import InnerProductResult, ScheduleInvariant
from adjointlab.checks.seed_digits import SIZES, X_EXPONENT, Y_EXPONENT
from adjointlab.checks.verdict import (
    PERHAPS,
    Figure,
    Figures,
    Inapplicable,
    NotMeasured,
    Verdict,
    coherent,
    incoherent,
)
from adjointlab.core import arrays
from adjointlab.core.operator import Direction
from adjointlab.core.pairing import ZERO, Exact, exact_sum, pair_local
from adjointlab.core.space import Space

__all__ = ["ADJOINT", "AdjointCheck", "DotTestObservation", "InnerProducts", "miss_probability"]

MISS_TARGET = 1e-9
"""Exact draws repeat until a wrong adjoint is missed with at most this probability."""


@dataclass(frozen=True)
class Magnitudes:
    """One rank's part of the magnitudes to which rounding is compared."""

    norms: tuple[float, float, float, float]  # of Fx, y, x, F*y, as in [Hewett21, eq. 26]
    sums: tuple[float, float]  # of |x|, |y|
    peaks: tuple[float, float]  # max |x|, max |y|


@dataclass(frozen=True)
class InnerProducts:
    """One rank's contributions to both inner products of one draw."""

    bound: int  # K of a draw of integers, 0 for the floating form
    forward: Exact  # to <Fx, y>
    adjoint: Exact  # to <x, F*y>
    magnitudes: Magnitudes | None  # None if nothing rounds
    exponents: tuple[int, int]  # of the powers of two by which x and y were multiplied
    changed_later: bool = False  # whether the call of adjoint has changed the result of forward


@dataclass(frozen=True)
class NotFinite:
    """First NaN or infinity in this rank's results of a draw."""

    direction: Direction
    where: str
    value: str  # "nan" or "inf"
    exponents: tuple[int, int]


@dataclass(frozen=True)
class DotTestObservation:
    """One rank's inner products, or the first result that is not finite; and facts that all ranks share."""

    products: tuple[InnerProducts, ...]
    not_finite: NotFinite | None
    gain: Gain
    roundings: int  # largest number on a path from an input to an output
    unit_roundoff: float
    may_be_measured: bool = False  # intermediates that the matrix does not show may round: not measured yet


class AdjointCheck(WitnessedCheck[DotTestObservation]):
    """The exact form as often as its miss probability requires, and the floating form once."""

    name = "adjoint"
    order = 10

    def observe(self, context: CheckContext) -> DotTestObservation:
        gain = context.arithmetic.gain
        bound = context.arithmetic.integer_bound() if gain.value else 0
        rounds = _rounds(bound)
        integers, tensors = context.arithmetic.has_integers, context.tensors
        bounds = [bound] * rounds + ([] if integers else [0])
        if not bounds:
            raise Inapplicable(
                f"{_why_inexact(gain, context.arithmetic.precision)}, and integer tensors have no floating form"
            )
        # Run all draws even if one was not finite: only this rank knows, and the others wait in the calls of
        # the next draw.
        draws = [_products(context, number, each) for number, each in enumerate(bounds)]
        return DotTestObservation(
            tuple(draw for draw in draws if isinstance(draw, InnerProducts)),
            next((draw for draw in draws if isinstance(draw, NotFinite)), None),
            gain,
            # A cast between element types rounds too.
            gain.roundings + (len({tensor.dtype for tensor in tensors}) > 1),
            0.0 if integers else 2.0**-context.arithmetic.precision,
            not integers and gain.is_whole and gain.source is GainSource.PROBE and not context.measurement,
        )

    def judge(self, spaces: Spaces, observations: Sequence[DotTestObservation]) -> Verdict:
        first, *_ = observations
        if (without_products := _without_products(observations)) is not None:
            return without_products
        draws = [
            _total(contributions) for contributions in zip(*(o.products for o in observations), strict=True)
        ]
        tolerances = [_rounding_bound(draw, first) for draw in draws]
        with_integers = [tolerance for draw, tolerance in zip(draws, tolerances, strict=True) if draw.bound]
        # If results have no elements, the bound on rounding is zero, whatever was computed.
        has_results = bool(spaces.domain.dimension and spaces.codomain.dimension)
        may_round = not first.gain.is_exact and first.roundings > 0
        is_exact = bool(with_integers) and not any(with_integers) and (has_results or not may_round)
        figures: Figures = {
            Figure.GAIN: first.gain.value,
            Figure.GAIN_SOURCE: first.gain.source.value,
            Figure.NONZERO: sum(each != ZERO for draw in draws for each in (draw.forward, draw.adjoint)),
        }
        if is_exact:
            figures[Figure.MISS_PROBABILITY] = miss_probability(draws[0].bound) ** len(with_integers)
        for draw, tolerance in zip(draws, tolerances, strict=True):
            error = _error(draw, spaces.mixed)
            # Not if results may consist of errors only: then a relative error is meaningless.
            if draw.magnitudes is not None and not draw.bound and not first.gain.measured.residual:
                figures[Figure.FLOATING_ERROR] = _normwise(draw.magnitudes, error)
            if error > tolerance:
                if first.may_be_measured and error <= _rounding_bound(draw, _rounding_most(first)):
                    raise NotMeasured
                narrowed = narrowing_hint(error, float(abs(draw.forward))) if is_exact else None
                return incoherent(
                    "adjoint is not the transpose of forward",
                    *_lines(draw, error, tolerance),
                    figures=figures,
                    evidence=None if narrowed is None else Evidence(hint=narrowed),
                )
        return coherent(figures, is_exact=is_exact)

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[DotTestObservation]
    ) -> Mapping[str, ScheduleInvariant]:
        first, *_ = observations
        found: dict[str, ScheduleInvariant] = {}
        for number, parts in enumerate(zip(*(seen.products for seen in observations), strict=True), 1):
            draw = _total(parts)
            within = _rounding_bound(draw, first)
            found[f"⟨Fx, y⟩ of draw {number}"] = InnerProductResult(draw.forward, within)
            found[f"⟨x, F*y⟩ of draw {number}"] = InnerProductResult(draw.adjoint, within)
        return found


_UNWRITTEN: Final = (
    "perhaps",
    "it reads uninitialised memory, as numpy.empty returns it: the purity check finds that",
)


def _without_products(observations: Sequence[DotTestObservation]) -> Verdict | None:
    """The verdict if some rank's results have no valid inner product; else None."""
    for rank, seen in enumerate(observations):
        if found := seen.not_finite:
            verdict = returned_not_finite(found.direction, rank, found.where, found.value)
            unwritten = (_UNWRITTEN,) if found.value == "nan" else ()
            return verdict.with_lines(*_scales(found.exponents), *unwritten)
        if any(draw.changed_later for draw in seen.products):
            return incoherent(
                f"a later call changes what {Direction.FORWARD} has returned",
                ("call", "of adjoint, which comes next"),
                ("rank", str(rank)),
            )
    return None


def _lines(draw: InnerProducts, error: float, tolerance: float) -> Iterator[tuple[str, str]]:
    """Lines on a draw whose inner products differ."""
    yield "⟨Fx, y⟩", str(draw.forward)
    yield "⟨x, F*y⟩", str(draw.adjoint)
    form = f"integers up to {draw.bound}, {'within rounding' if tolerance else 'exact'}"
    yield "form", form if draw.bound else "floating"
    yield from _scales(draw.exponents)
    if draw.magnitudes is not None:
        relative = _normwise(draw.magnitudes, error)
        yield "error", f"{relative:.3g} (relative to the norms)"
        if relative < SMALL:
            yield PERHAPS


def miss_probability(bound: int) -> float:
    """Bound on the probability that one draw with values in {-K, ..., K} misses a wrong adjoint.

    Twice the probability of the likeliest value, which is at most 1/(2K+1) + 2**-64: a value is a 64-bit hash modulo 2K+1.
    """
    return min(1.0, 2 * (1 / (2 * bound + 1) + 2.0**-64))


def _why_inexact(gain: Gain, precision: int) -> str:
    if gain.value:
        return f"no integer is exact under a gain of {gain.value} with {precision} bits"
    if gain.source is GainSource.DECLARED:
        return "integers are mapped to fractions"
    return "the gain is unknown (declare `gain`)"


def _rounds(bound: int) -> int:
    if bound < 1:
        return 0
    return math.ceil(math.log(MISS_TARGET) / math.log(miss_probability(bound)))


def _products(context: CheckContext, number: int, bound: int) -> InnerProducts | NotFinite:
    """This rank's part of draw `number`, or the first NaN or infinity among its results."""
    rank, domain, codomain = context.rank, context.domain, context.codomain
    exponents = _exponents(context, number, bound)
    placed_x = context.placed(domain, "primal", number, bound, exponents[0])
    placed_y = context.placed(codomain.dual, "dual", number, bound, exponents[1])
    fx = context.forward([p.view for p in placed_x])
    on_return = context.numpy(fx)
    fstar_y = context.adjoint([p.view for p in placed_y])
    drawn = _Vectors(
        # Pair with the values as drawn: the purity check finds operators that overwrite their arguments.
        x=tuple([p.values for p in placed_x]),
        y=tuple([p.values for p in placed_y]),
        fx=on_return,
        fstar_y=tuple(map(arrays.to_numpy, fstar_y)),
    )
    if found := first_not_finite(codomain, drawn.fx, rank):
        return NotFinite(Direction.FORWARD, *found, exponents)
    if found := first_not_finite(domain, drawn.fstar_y, rank):
        return NotFinite(Direction.ADJOINT, *found, exponents)
    return InnerProducts(
        bound,
        pair_local(codomain, drawn.fx, drawn.y, rank),
        pair_local(domain, drawn.x, drawn.fstar_y, rank),
        None if bound and context.arithmetic.gain.is_exact else _magnitudes(drawn, domain, codomain, rank),
        exponents,
        not all(
            np.array_equal(arrays.to_numpy(late), early) for late, early in zip(fx, on_return, strict=True)
        ),
    )


def _exponents(context: CheckContext, number: int, bound: int) -> tuple[int, int]:
    """The exponents of the powers of two by which x and y of a draw are multiplied; `bound` is that of its integers, 0 for floats."""
    if context.arithmetic.has_integers:
        return 0, 0
    seed = context.setting.seed + number
    near = _NEAR[X_EXPONENT.of(seed)], _NEAR[Y_EXPONENT.of(seed)]
    of_x, of_y = _SIZES[SIZES.of(seed)]
    dtypes = {tensor.dtype for tensor in context.tensors}
    if of_x == of_y == "near" or "float16" in dtypes:
        return near
    # An operator that declares its rounding may compute in a narrower type. One whose coefficients are not integers may scale by a power
    # of ten, for which the range of single precision is too small.
    if context.operator.rounding is not None or not (bound or dtypes <= _DOUBLE):
        return near
    far = _FAR["double" if dtypes <= _DOUBLE else "single"]
    return far.get(of_x, near[0]), far.get(of_y, near[1])


def _scales(exponents: tuple[int, int]) -> tuple[tuple[str, str], ...]:
    """A line on vectors that were multiplied by a power of two far from 1."""
    scaled = [
        f"{name} is multiplied by 2**{exponent}"
        for name, exponent in zip("xy", exponents, strict=True)
        if exponent not in (0, *_NEAR)
    ]
    return (("values", ", ".join(scaled)),) if scaled else ()


_NEAR: Final = (-2, -1, 1, 2)
"""Exponents of most draws. Scaling by a power of two is exact; as no exponent is 0, a cast to integers shows."""

_SIZES: Final = (
    *(("near", "near"),) * 9,
    ("small", "near"),
    ("large", "near"),
    ("near", "small"),
    ("near", "large"),
    ("small", "small"),
    ("large", "large"),
)
"""Sizes of x and y; a digit of a draw's seed selects an entry."""

_DOUBLE: Final = frozenset({"float64", "complex128"})

_FAR: Final[Mapping[str, Mapping[str, int]]] = {
    "double": {"small": -100, "large": 85},
    "single": {"small": -60, "large": 36},
}
"""Exponents that expose an absolute tolerance. Squares, such as a solver's norms, stay within the range of the type; float16's is too small."""


class _Vectors(NamedTuple):
    """The parts of the vectors of one draw that a rank holds, in NumPy."""

    x: Local
    y: Local
    fx: Local
    fstar_y: Local


def _magnitudes(drawn: _Vectors, domain: Space, codomain: Space, rank: int) -> Magnitudes:
    norms = (
        norm(codomain, drawn.fx, rank),
        norm(codomain, drawn.y, rank),
        norm(domain, drawn.x, rank),
        norm(domain, drawn.fstar_y, rank),
    )
    abs_x, abs_y = magnitudes(drawn.x), magnitudes(drawn.y)
    sums = (float(abs_x.sum()), float(abs_y.sum()))
    peaks = (float(abs_x.max(initial=0.0)), float(abs_y.max(initial=0.0)))
    return Magnitudes(norms, sums, peaks)


def _total(contributions: Sequence[InnerProducts]) -> InnerProducts:
    """Sum of the contributions of all ranks to one draw."""
    parts = [part.magnitudes for part in contributions if part.magnitudes is not None]
    magnitudes = None
    if parts:
        fx, y, x, fstar_y = (
            math.hypot(*of_ranks) for of_ranks in zip(*(part.norms for part in parts), strict=True)
        )
        sums = tuple(np.sum([part.sums for part in parts], axis=0).tolist())
        peaks = tuple(np.max([part.peaks for part in parts], axis=0).tolist())
        magnitudes = Magnitudes((fx, y, x, fstar_y), sums, peaks)
    return InnerProducts(
        contributions[0].bound,
        exact_sum([part.forward for part in contributions]),
        exact_sum([part.adjoint for part in contributions]),
        magnitudes,
        contributions[0].exponents,
    )


def _error(draw: InnerProducts, mixed: bool) -> float:
    difference = draw.forward - draw.adjoint
    return abs(Exact(difference.real)) if mixed else abs(difference)


def _normwise(sizes: Magnitudes, error: float) -> float:
    """Left-hand side of [Hewett21, eq. 26]."""
    fx, y, x, fstar_y = sizes.norms
    scale = max(fx * y, x * fstar_y)
    return error / scale if scale else error


def _rounding_bound(draw: InnerProducts, seen: DotTestObservation) -> float:
    """A-priori bound on the rounding error of <Fx, y> - <x, F*y>.

    With unit roundoff u, a result of n roundings is off by at most gamma_n = nu / (1 - nu) times the sum of its terms' magnitudes,
    in whichever order they are added. So output i of F is off by gamma_n sum_j |F_ij| |x_j| <= gamma_n * row sum * max|x|, and
    <Fx, y> by that times sum|y|; <x, F*y> likewise. Complex products and magnitudes cost a factor of two at most. The inner
    products themselves are exact. Pure data movement has n = 0, so its bound is zero. An operator of several steps may round more;
    this is measured, relative to norms, and relative to max|x| if an output consists of errors only.
    """
    if (sizes := draw.magnitudes) is None:
        return 0.0
    u, n = seen.unit_roundoff, seen.roundings
    gamma = n * u / (1 - n * u) if n * u < 1 else math.inf
    (sum_x, sum_y), (peak_x, peak_y) = sizes.sums, sizes.peaks
    fx, y, x, fstar_y = sizes.norms
    normwise = fx * y + x * fstar_y
    # An output of one term is as large as that term: relative to norms. So is the error if the row sum is unknown, as in [Hewett21, eq. 26].
    by_peaks = peak_x * sum_y + peak_y * sum_x
    by_rows = 0.0 if seen.gain.fan_in == 1 else seen.gain.row_sum * by_peaks
    measured = seen.gain.measured
    return 2 * (gamma * (by_rows or normwise) + measured.relative * normwise + measured.residual * by_peaks)


def _rounding_most(seen: DotTestObservation) -> DotTestObservation:
    """The observation with the largest rounding that a measurement may ever allow."""
    largest = largest_rounding(-math.log2(seen.unit_roundoff))
    return replace(seen, gain=replace(seen.gain, measured=MeasuredRounding(largest, largest)))


ADJOINT = AdjointCheck()
