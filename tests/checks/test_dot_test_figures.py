"""Draws, sums and verdicts of the dot test, on vectors that are small enough to do it by hand."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.adjoint import (
    ADJOINT,
    DotTestObservation,
    InnerProducts,
    Magnitudes,
    NotFinite,
    _products,
)
from adjointlab.checks.check import Spaces, check_named
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.elements import EXACT
from adjointlab.checks.gain import Gain, GainSource
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.schedule_invariant import InnerProductResult
from adjointlab.checks.verdict import Figure, Inapplicable, Verdict
from adjointlab.core.operator import Direction
from adjointlab.core.pairing import ZERO, Exact
from adjointlab.worlds.run import Raised
from tests.checks.looks.harness import WORLD
from tests.checks.looks.operators import ring

DECLARED, PROBED = Gain(1, 3, 1.0, GainSource.DECLARED), Gain(1, 3, 1.0, GainSource.PROBE)
UNKNOWN = Gain(0, 3, 0.0, GainSource.UNKNOWN)
FULL = Spaces(*[al.Space(al.Layout((2,), (1,)))] * 2)
HEADLINE = "adjoint is not the transpose of forward"


def exact(number: float) -> Exact:
    return Exact(Fraction(number))


def draw(forward: float, adjoint: float, bound: int = 0, *, sized: bool = True) -> InnerProducts:
    """|Fx| |y| = 3 · 2 and |x| |F*y| = 1 · 4."""
    sizes = Magnitudes((3.0, 2.0, 1.0, 4.0), (3.0, 5.0), (2.0, 7.0)) if sized else None
    return InnerProducts(bound, exact(forward), exact(adjoint), sizes, (1, 2))


def judged(*draws: InnerProducts, gain: Gain, u: float = 0.0, spaces: Spaces = FULL) -> Verdict:
    return ADJOINT.judge(spaces, [DotTestObservation(draws, None, gain, gain.roundings, u)])


def observed(make: Any, seed: int = 0, what: Any = ADJOINT.observe, ranks: int = 2) -> Any:
    """The observation of each rank, or the exception of rank 0."""

    def observe(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm
        return what(CheckContext(partial(make, comm), InputSetting(seed), comm))

    run = WORLD.run(observe, None, ranks)
    first, *_ = run.outcomes
    return first if isinstance(first, Raised) else run.values


# What is drawn.


@pytest.mark.parametrize(
    ("dtype", "gain", "bounds"),
    [
        # So many exact draws as make a miss unlikely enough, and one of all bits, which tensors of integers do not have.
        ("float64", 1, (2**53 - 1, 0)),
        ("float64", 2**50, (7,) * 11 + (0,)),
        ("float64", 2**53, (0,)),
        ("int32", 1, (2**31 - 1,)),
        ("int64", 2**60, (7,) * 11),
    ],
)
def test_exact_draws_come_before_one_of_all_bits(dtype: str, gain: int, bounds: tuple[int, ...]) -> None:
    for seen in observed(ring(dtype=dtype, gain=gain)):
        assert tuple(each.bound for each in seen.products) == bounds
        assert seen.unit_roundoff == (0.0 if dtype.startswith("int") else 2.0**-53)
        assert seen.not_finite is None
        assert seen.gain == Gain(gain, gain, float(gain), GainSource.DECLARED)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"gain": 2**63}, f"no integer is exact under a gain of {2**63} with 63 bits"),
        ({"gain": None, "shape": (40,)}, "the gain is unknown (declare `gain`)"),
    ],
)
def test_integers_without_an_exact_draw_are_not_judged(given: dict[str, Any], reason: str) -> None:
    raised = observed(ring(dtype="int64", **given))
    assert raised.is_a(Inapplicable)
    assert raised.message.endswith(f"{reason}, and integer tensors have no floating form")


def exponents(seed: int, number: int, dtype: str = "float64") -> tuple[int, int]:
    """The exponents of x and y of a draw: integers up to 3 times these powers of two."""

    def products(context: CheckContext) -> Any:
        drawn = {}
        placed = context.placed

        def noted(space: Any, side: Any, number_: int, bound: int, exponent: int = 0) -> Any:
            assert (number_, bound) == (number, 3)
            drawn[side] = exponent
            return placed(space, side, number_, bound, exponent)

        context.placed = noted  # type: ignore[method-assign, assignment]
        _products(context, number, 3)
        return drawn["primal"], drawn["dual"]

    return observed(ring(dtype=dtype), seed, products)[0]  # type: ignore[no-any-return]


def test_a_draw_is_times_two_powers_of_two_each_pair_in_turn_and_integers_are_not() -> None:
    powers = (-2, -1, 1, 2)
    pairs = [(x, y) for y in powers for x in powers]
    assert [exponents(seed, 0) for seed in range(18)] == [*pairs, *pairs[:2]]
    assert [exponents(4, number) for number in range(14)] == [*pairs[4:], *pairs[:2]]
    assert exponents(1, 1, "int32") == (0, 0)


def test_a_draw_adds_up_products_norms_sums_and_peaks_of_each_rank() -> None:
    def both(context: CheckContext) -> Any:
        x = context.placed(context.domain, "primal", 1, 0, -1)[0].values
        y = context.placed(context.codomain.dual, "dual", 1, 0, -1)[0].values
        return x, y, _products(context, 1, 0), _products(context, 1, 5)

    # Seed 4 and draw 1 have the exponents of x and y that seed 5 has.
    seen = observed(ring(gain=1, shape=(3,)), 4, both)
    (x0, y0, first, integers), (x1, y1, _, _) = seen
    # Rank 0 gets x of rank 1 in forward, and y of rank 1 in adjoint.
    assert first.bound == 0
    assert float(first.forward.real) == pytest.approx(float(x1 @ y0), rel=1e-14)
    assert float(first.adjoint.real) == pytest.approx(float(x0 @ y1), rel=1e-14)
    sizes = first.magnitudes
    assert sizes.norms == pytest.approx([np.linalg.norm(each) for each in (x1, y0, x0, y1)], rel=1e-14)
    assert sizes.sums == pytest.approx((np.abs(x0).sum(), np.abs(y0).sum()), rel=1e-14)
    assert sizes.peaks == (np.abs(x0).max(), np.abs(y0).max())
    assert (integers.bound, integers.magnitudes) == (5, None)
    for probed in observed(ring(gain=None), 4, lambda context: _products(context, 1, 5)):
        assert probed.magnitudes is not None


def test_peaks_and_sums_of_nothing_are_zero() -> None:
    empty = al.Space(al.Layout((0,), (2,)))

    class Nothing(al.LinearOperator):
        gain, fan_in = None, None

        def __init__(self, comm: Any) -> None:
            self.comm, self.domain, self.codomain = comm, empty, empty

        def forward(self, x: Any) -> Any:
            return x.copy()

        adjoint = forward

    for seen in observed(Nothing, 0, lambda context: _products(context, 0, 0)):
        assert seen.magnitudes == Magnitudes((0.0,) * 4, (0.0, 0.0), (0.0, 0.0))
        assert seen == InnerProducts(0, exact(0), exact(0), seen.magnitudes, seen.exponents)


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
def test_the_first_result_that_is_not_finite_is_told_of_its_rank(direction: str) -> None:
    def fault(operator: Any, x: Any, result: Any) -> Any:
        if operator.rank == 1:
            result[1] = np.inf if len(operator.seen[direction]) else np.nan
        return result

    right, wrong = observed(ring(**{direction: fault}))
    assert right.not_finite is None
    assert wrong.products == ()
    where = {"forward": "y[3] (rank 1)", "adjoint": "x[3] (rank 1)"}[direction]
    assert wrong.not_finite == NotFinite(Direction(direction), where, "nan", wrong.not_finite.exponents)
    verdict = ADJOINT.judge(FULL, [right, wrong])
    assert (where in str(verdict), verdict.is_coherent) == (True, False)


# What is judged.


EMPTY = al.Space(al.Layout((0,), (1,)))


@pytest.mark.parametrize(
    ("draws", "gain", "u", "spaces", "is_exact"),
    [
        ([draw(1, 1, 7), draw(0, 0)], DECLARED, 0.0, FULL, True),
        ([draw(1, 1, 7)], PROBED, 0.0, FULL, True),
        ([draw(1, 1, 7)], PROBED, 1 / 64, FULL, False),
        ([draw(1, 1, 7, sized=False), draw(1, 1, 7)], PROBED, 1 / 64, FULL, False),
        ([draw(1, 1)], DECLARED, 0.0, FULL, False),
        # Where results have no element, rounding is bounded by nothing, whatever was computed: unless nothing rounds.
        ([draw(0, 0, 7)], PROBED, 0.0, Spaces(EMPTY, FULL.codomain), False),
        ([draw(0, 0, 7)], PROBED, 0.0, Spaces(FULL.domain, EMPTY), False),
        ([draw(0, 0, 7)], DECLARED, 0.0, Spaces(FULL.domain, EMPTY), True),
        ([draw(0, 0, 7)], Gain(1, 1, 1.0, GainSource.PROBE), 0.0, Spaces(EMPTY, EMPTY), True),
        ([draw(0, 0, 7)], Gain(1, 2, 1.0, GainSource.PROBE), 0.0, Spaces(EMPTY, EMPTY), False),
    ],
)
def test_a_verdict_is_exact_if_there_are_integers_and_no_tolerance(
    draws: list[InnerProducts], gain: Gain, u: float, spaces: Spaces, is_exact: bool
) -> None:
    verdict = judged(*draws, gain=gain, u=u, spaces=spaces)
    assert verdict.is_coherent
    assert verdict.is_exact == is_exact
    probability = {Figure.MISS_PROBABILITY: (2 / 15) ** len([each for each in draws if each.bound])}
    floating = {Figure.FLOATING_ERROR: 0.0} if not draws[-1].bound else {}
    assert verdict.figures == pytest.approx(
        {Figure.GAIN: gain.value}
        | (probability if is_exact else {})
        | floating
        | {
            Figure.GAIN_SOURCE: gain.source.value,
            Figure.NONZERO: 2 * sum(each.forward != ZERO for each in draws),
        }
    )


def test_of_two_exact_draws_both_count_in_the_probability_of_a_miss() -> None:
    verdict = judged(draw(1, 1, 7), draw(2, 2, 7), draw(3, 3), gain=DECLARED)
    assert verdict.figures[Figure.MISS_PROBABILITY] == pytest.approx((2 / 15) ** 2)


@pytest.mark.parametrize(
    ("wrong", "gain", "lines", "hint"),
    [
        (draw(2560, 2550, 7, sized=False), DECLARED, {"form": "integers up to 7, exact"}, None),
        (draw(2560, 2551, 7, sized=False), DECLARED, {"form": "integers up to 7, exact"}, FaultKind.NARROWED),
        (draw(-2560, -2551, 7, sized=False), DECLARED, {"form": "integers up to 7, exact"}, FaultKind.NARROWED),
        (draw(2560, 2551), DECLARED, {"form": "floating", "error": "1.5 (relative to the norms)"}, None),
        (draw(2560, 2551), PROBED, {"form": "floating", "error": "1.5 (relative to the norms)"}, None),
        (draw(30, 3, 7), PROBED, {"form": "integers up to 7, exact", "error": "4.5 (relative to the norms)"}, None),
    ],
)  # fmt: skip
def test_a_wrong_draw_is_told_with_its_form_its_error_and_a_hint_on_rounding(
    wrong: InnerProducts, gain: Gain, lines: dict[str, str], hint: FaultKind | None
) -> None:
    before = [] if wrong.bound else [draw(1, 1, 7)] * (gain is PROBED)
    verdict = judged(*before, wrong, gain=gain)
    assert verdict.headline == HEADLINE
    products = {"⟨Fx, y⟩": str(wrong.forward), "⟨x, F*y⟩": str(wrong.adjoint)}
    assert dict(verdict.lines) == products | lines
    found = verdict.evidence.hint if verdict.evidence is not None else None
    assert (None if found is None else found.kind) == (
        FaultKind.NARROWED if before and gain is PROBED else hint
    )


def test_in_a_pairing_of_real_and_complex_spaces_the_real_part_counts() -> None:
    real, whole = al.Space(al.Layout((2,), (1,))), al.Space(al.Layout((2,), (1,)), dtype="complex128")
    imaginary = Exact(Fraction(1), Fraction(5))
    one = InnerProducts(7, imaginary, exact(1), None, (1, 2))
    for spaces, is_coherent in (
        (Spaces(real, whole), True),
        (Spaces(whole, real), True),
        (Spaces(whole, whole), False),
    ):
        assert judged(one, gain=DECLARED, spaces=spaces).is_coherent == is_coherent


def test_no_schedule_may_change_the_inner_products_of_any_draw_beyond_rounding() -> None:
    ranks = [
        DotTestObservation((draw(1, 2, 7, sized=False), draw(3, 4)), None, UNKNOWN, 2, 1 / 64),
        DotTestObservation((draw(10, 20, 7, sized=False), draw(30, 40)), None, UNKNOWN, 2, 1 / 64),
    ]
    # γ = 2u / (1 - 2u) = 1/31 of three terms, times 2, and |Fx| |y| + |x| |F*y| = sqrt(18 · 8) + sqrt(2 · 32)
    within = 2 / 31 * (12 + 8)
    assert ADJOINT.schedule_invariants(FULL, ranks) == {
        "⟨Fx, y⟩ of draw 1": InnerProductResult(exact(11), 0.0),
        "⟨x, F*y⟩ of draw 1": InnerProductResult(exact(22), 0.0),
        "⟨Fx, y⟩ of draw 2": InnerProductResult(exact(33), pytest.approx(within)),
        "⟨x, F*y⟩ of draw 2": InnerProductResult(exact(44), pytest.approx(within)),
    }


def test_a_result_of_forward_that_adjoint_writes_into_is_told_as_such() -> None:
    class Kept(al.LinearOperator):
        def __init__(self, comm: Any) -> None:
            self.comm = comm
            self.domain = self.codomain = al.Space(al.Layout((3,), (1,)))
            self.work = np.zeros(3)

        def forward(self, x: Any) -> Any:
            self.work = 2 * x
            return self.work

        def adjoint(self, y: Any) -> Any:
            self.work *= 0
            return 2 * y

    verdict = ADJOINT.judge(FULL, observed(Kept))
    assert verdict.headline == "a later call changes what forward has returned"
    assert verdict.lines == (("call", "of adjoint, which comes next"), ("rank", "0"))


@pytest.mark.parametrize(("value", "is_told"), [(np.nan, True), (np.inf, False)])
def test_nan_may_be_memory_that_nobody_wrote(value: float, is_told: bool) -> None:
    def fault(operator: Any, x: Any, result: Any) -> Any:
        result[-1:] = value
        return result

    verdict = ADJOINT.judge(FULL, observed(ring(forward=fault)))
    assert [
        text.startswith("it reads uninitialised memory")
        for label, text in verdict.lines
        if label == "perhaps"
    ] == [True] * is_told


# The combinations that linearity is sampled on.


@pytest.mark.parametrize(
    ("dtype", "seed", "scalar"),
    [
        ("float64", 0, 2),
        ("float64", 1, 2),
        ("complex128", 0, 2),
        ("complex128", 1, 1j),
        ("complex128", 9, 1j),
    ],
)
def test_twice_a_vector_and_another_are_combined_or_i_times_it_in_every_other_case(
    dtype: str, seed: int, scalar: complex
) -> None:
    def arguments(context: CheckContext) -> Any:
        seen = check_named("linearity").observe(context)
        bound = context.arithmetic.integers(4)
        operator: Any = context.operator
        (x,), (y,) = context.primal(0, bound), context.primal(1, bound)
        (v,), (w,) = context.dual(0, bound), context.dual(1, bound)
        return operator.seen, (x, y), (v, w), seen

    for applied, (x, y), (v, w), seen in observed(ring(dtype=dtype), seed, arguments):
        for given, one, other in ((applied["forward"], x, y), (applied["adjoint"], v, w)):
            expected = [scalar * one + other, one, other, 0 * one]
            assert [each.tolist() for each in given] == [each.tolist() for each in expected]
        for images in seen.images:
            np.testing.assert_array_equal(images.combined[0], images.combination[0])
            assert not images.zero[0].any()
        assert seen.tolerance == EXACT
