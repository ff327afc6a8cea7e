"""Figures of the checks, beside values that were computed by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.adjoint import (
    ADJOINT,
    DotTestObservation,
    InnerProducts,
    Magnitudes,
    _normwise,
    _rounding_bound,
    _rounds,
    _total,
    miss_probability,
)
from adjointlab.checks.check import Spaces, check_named
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.elements import EXACT, Tolerance, first_difference, is_whole, norm
from adjointlab.checks.gain import Gain, GainSource, _probed
from adjointlab.checks.matrix import MATRIX, WITNESS, MatrixCheck, _allowed
from adjointlab.checks.measured_rounding import NOTHING_MEASURED, MeasuredRounding
from adjointlab.checks.schedule_invariant import InnerProductResult, MatrixResult
from adjointlab.checks.verdict import Figure, Inapplicable
from adjointlab.core.pairing import Exact
from adjointlab.core.program import Add, Program
from adjointlab.layers.subjects.linear import linears
from adjointlab.worlds.run import Raised
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.checks.looks.harness import Look, verdict
from tests.checks.looks.operators import Copies, Ring, ring
from tests.samples import right


def exact(number: float) -> Exact:
    return Exact(Fraction(number))


# The probability of a miss: 2 / (2K + 1), and the part that a hash of 64 bits is not uniform by.


@pytest.mark.parametrize(
    ("bound", "probability"),
    [(0, 1.0), (1, 2 / 3), (2, 0.4), (7, 2 / 15), (2047, 2 / 4095), (2**53, 2.0**-53 + 2.0**-63)],
)
def test_one_draw_misses_with_twice_the_probability_of_a_value(bound: int, probability: float) -> None:
    assert miss_probability(bound) == pytest.approx(probability, rel=1e-9, abs=0)
    assert miss_probability(bound) >= min(1, 2 / (2 * bound + 1))


@pytest.mark.parametrize(
    # 1e-9 by hand: (2/3)**51 = 1.05e-9 and (2/3)**52 = 6.98e-10; (2/15)**10 = 1.78e-9; (2/4095)**3 = 1.17e-10; one of 2**-52
    ("bound", "draws"),
    [(0, 0), (1, 52), (7, 11), (127, 5), (2047, 3), (2**24, 2), (2**40, 1), (2**53, 1)],
)
def test_draws_repeat_until_a_miss_is_less_likely_than_one_in_a_billion(bound: int, draws: int) -> None:
    assert _rounds(bound) == draws


@pytest.mark.parametrize(
    ("dtype", "gain", "bound"),
    [("float16", 1, 2047), ("float16", 2, 1023), ("complex64", 1, 2**24 - 1), ("float64", 2**50, 7)],
)
def test_the_report_states_the_miss_probability_of_all_exact_draws(dtype: str, gain: int, bound: int) -> None:
    found = verdict(ADJOINT, Look("", ring(dtype=dtype, gain=gain), ""))
    assert found.is_exact
    assert found.figures[Figure.GAIN] == gain
    assert found.figures[Figure.GAIN_SOURCE] == "declared"
    probability = (2 / (2 * bound + 1)) ** _rounds(bound)
    assert found.figures[Figure.MISS_PROBABILITY] == pytest.approx(probability, rel=1e-6)


def test_a_program_and_a_probe_tell_the_gain_too_and_a_probe_claims_nothing_exact() -> None:
    specified = verdict(ADJOINT, Look("", ring(gain=None, is_specified=True), ""))
    assert (specified.figures[Figure.GAIN], specified.figures[Figure.GAIN_SOURCE]) == (1, "program")
    assert specified.is_exact
    probed = verdict(ADJOINT, Look("", ring(gain=None), ""))
    assert (probed.figures[Figure.GAIN], probed.figures[Figure.GAIN_SOURCE]) == (1, "probe")
    assert not probed.is_exact
    assert Figure.MISS_PROBABILITY not in probed.figures
    unknown = verdict(ADJOINT, Look("", ring(gain=None, shape=(40,)), ""))
    assert (unknown.figures[Figure.GAIN], unknown.figures[Figure.GAIN_SOURCE]) == (0, "unknown")


def test_of_two_programs_the_larger_gain_counts() -> None:
    class OfItsOwnAdjoint(Ring):
        def specification(self) -> Any:
            forward = super().specification()
            assert forward is not None
            adjoint = forward.adjoint()
            return forward, Program(
                adjoint.inputs, [each for step in adjoint.steps for each in [step] * _times(step)]
            )

    found = verdict(ADJOINT, Look("", ring(OfItsOwnAdjoint, gain=None, is_specified=True), ""))
    assert (found.figures[Figure.GAIN], found.figures[Figure.GAIN_SOURCE]) == (3, "program")


def _times(step: Any) -> int:
    return 3 if isinstance(step, Add) else 1


def test_a_sum_of_three_ranks_has_the_gain_three() -> None:
    class Unknown(Copies):
        def __init__(self, comm: Any, **given: Any) -> None:
            super().__init__(comm, **given)
            self.gain = self.fan_in = None

    look = Look(
        "", ring(Unknown, domain="partial", codomain="replicated", sums=("forward", "adjoint")), "", 3
    )
    assert verdict(ADJOINT, look).figures[Figure.GAIN] == 3


# The gain of a matrix.

WHOLE = np.array([[1.0, -2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("matrix", "gain"),
    [
        # Rows add up to 3 and 7, columns to 4 and 6.
        (WHOLE, Gain(7, 4, 7.0, GainSource.PROBE)),
        (WHOLE.T, Gain(7, 4, 7.0, GainSource.PROBE)),
        # Quarters: two bits of a fraction, so that 1.75 counts as 2 in units of 1/4.
        (WHOLE / 4, Gain(8, 4, 1.75, GainSource.PROBE)),
        # |re| + |im| of the entries are 2 and 5, and 7 in their row.
        (np.array([[1 + 1j, 3 - 2j]]), Gain(7, 4, 7.0, GainSource.PROBE)),
        (np.array([[0.5j]]), Gain(2, 3, 0.5, GainSource.PROBE)),
        # Terms that cancel show nowhere.
        (np.zeros((2, 2)), Gain(16, 2, 16.0, GainSource.PROBE)),
        (np.zeros((0, 2)), Gain(1, 1, 1.0, GainSource.PROBE)),
        (np.array([[np.nan]]), Gain(1, 1, 1.0, GainSource.PROBE)),
        # Of the terms that are not zero, two more may be hidden.
        (np.array([[1.0, 0.0, 1.0]]), Gain(2, 4, 2.0, GainSource.PROBE)),
        (np.array([[1.0], [1.0], [1.0]]), Gain(3, 5, 3.0, GainSource.PROBE)),
        # However small or large, of any number of bits, it is stated up to 2**64.
        (np.array([[2.0**-63]]), Gain(2**63, 3, 2.0**-63, GainSource.PROBE)),
        (np.array([[2.0**-65]]), Gain(2**64, 3, 2.0**-65, GainSource.PROBE)),
        (np.array([[1e-300, 0.0]]), Gain(2**64, 3, 1e-300, GainSource.PROBE)),
        (np.array([[2.0**65]]), Gain(2**64, 3, 2.0**65, GainSource.PROBE)),
    ],
)
def test_the_gain_of_a_matrix(matrix: Any, gain: Gain) -> None:
    assert _probed(matrix, None) == gain
    assert _probed(matrix, 9).fan_in == 9


# K: the largest integers.


def context_of(make: Any, ranks: int = 2) -> CheckContext:
    """The context of rank 0."""
    run = SimulatedWorld(ranks).run(
        lambda context, _: (
            lambda made: (
                made.arithmetic.integer_bound(),
                made.arithmetic.integer_bound(4),
                made.arithmetic.integers(),
                made.arithmetic.gain,
                made.arithmetic.tolerance,
            )
        )(CheckContext(lambda: make(context.comm), InputSetting(), context.comm)),
        None,
        ranks,
    )
    return run.values[0]


@pytest.mark.parametrize(
    ("dtype", "gain", "bounds"),
    [
        # floor((2**p - 1) / gain), at most 2**53; a quarter of it where a check enlarges values; at most 2**20 one by one
        ("float64", 1, (2**53 - 1, 2**51 - 1, 2**20)),
        ("float32", 1, (2**24 - 1, 2**22 - 1, 2**20)),
        ("float16", 1, (2047, 511, 2047)),
        ("float16", 3, (682, 170, 682)),
        ("complex128", 7, ((2**53 - 1) // 7, (2**53 - 1) // 28, 2**20)),
        ("int64", 1, (2**53, 2**53, 2**20)),
        ("int32", 1, (2**31 - 1, 2**29 - 1, 2**20)),
        ("float64", 2**52, (1, 0, 1)),
    ],
)
def test_integers_are_as_large_as_the_significand_and_the_gain_allow(
    dtype: str, gain: int, bounds: tuple[int, int, int]
) -> None:
    assert context_of(ring(dtype=dtype, gain=gain))[:3] == bounds  # type: ignore[index]


def test_integers_of_an_unknown_gain_leave_eight_bits() -> None:
    bound, with_headroom, _, gain, tolerance = context_of(ring(gain=None, shape=(40,)))  # type: ignore[misc]
    assert (bound, with_headroom) == ((2**53 - 1) // 2**8, (2**53 - 1) // 2**10)
    assert gain == Gain(0, 80, 0.0, GainSource.UNKNOWN)
    # 84 roundings of 2u = 2**-52 each, doubled for complex products
    assert tolerance == Tolerance(84 * 2.0**-51, 0.0)


@pytest.mark.parametrize(("dimension", "source"), [(64, GainSource.PROBE), (65, GainSource.UNKNOWN)])
def test_a_gain_is_read_off_matrices_of_64_columns(dimension: int, source: GainSource) -> None:
    *_, gain, _ = context_of(ring(gain=None, shape=(dimension,)), ranks=1)  # type: ignore[misc]
    assert gain.source is source


def test_the_tolerance_of_a_probed_operator_counts_its_terms() -> None:
    *_, gain, tolerance = context_of(ring(gain=None))  # type: ignore[misc]
    assert gain == Gain(1, 3, 1.0, GainSource.PROBE)
    assert tolerance == Tolerance(7 * 2.0**-51, 2.0**20)
    *_, tolerance = context_of(ring())  # type: ignore[misc]
    assert tolerance == EXACT == Tolerance(0.0, 0.0, 0.0)


# Errors, and what rounding allows.


def draw(forward: float, adjoint: float, bound: int = 0, norms: Any = (3.0, 2.0, 1.0, 4.0)) -> InnerProducts:
    sizes = Magnitudes(norms, (3.0, 5.0), (2.0, 7.0))
    return InnerProducts(bound, exact(forward), exact(adjoint), sizes, (1, 2))


def test_the_error_of_the_floating_form_is_relative_to_the_larger_product_of_norms() -> None:
    # |Fx| |y| = 3 · 2 and |x| |F*y| = 1 · 4
    sizes = draw(0, 0).magnitudes
    assert sizes is not None
    assert _normwise(sizes, 3.0) == 0.5
    # |Fx| |y| = 1 · 4 and |x| |F*y| = 3 · 2
    other = draw(0, 0, norms=(1.0, 4.0, 3.0, 2.0)).magnitudes
    assert other is not None
    assert _normwise(other, 3.0) == 0.5
    assert _normwise(Magnitudes((0.0, 0.0, 0.0, 0.0), (0.0, 0.0), (0.0, 0.0)), 3.0) == 3.0


@pytest.mark.parametrize(
    ("gain", "by_hand"),
    [
        # γ = 5u / (1 - 5u) for 5 terms, not all with a coefficient of 1, with u = 1/64: 5/59. Times 2, and a row sum of 6 · (2 · 5 + 7 · 3).
        (Gain(6, 5, 6.0, GainSource.PROBE), 10 / 59 * 6 * 31),
        # γ = 4u / (1 - 4u) for 5 terms with coefficients of 1: 1/15.
        (Gain(5, 5, 5.0, GainSource.PROBE), 2 / 15 * 5 * 31),
        # Without a row sum, 3 · 2 + 1 · 4 of the norms.
        (Gain(0, 5, 0.0, GainSource.UNKNOWN), 10 / 59 * 10),
        # What was measured counts beside it, relative to the norms, and in tiny elements to the arguments.
        (
            Gain(0, 5, 0.0, GainSource.UNKNOWN, MeasuredRounding(0.25, 0.5)),
            2 * ((5 / 59 + 0.25) * 10 + 0.5 * 31),
        ),
        (Gain(1, 1, 1.0, GainSource.DECLARED), 0.0),
        (Gain(1, 65, 1.0, GainSource.DECLARED), np.inf),
    ],
)
def test_rounding_is_bounded_by_the_number_of_terms(gain: Gain, by_hand: float) -> None:
    seen = DotTestObservation((), None, gain, gain.roundings, 1 / 64)
    assert _rounding_bound(draw(0, 0), seen) == pytest.approx(by_hand, rel=1e-12)
    assert _rounding_bound(InnerProducts(3, exact(0), exact(0), None, (1, 2)), seen) == 0.0


def test_contributions_of_ranks_are_added_and_of_peaks_the_largest_counts() -> None:
    total = _total([draw(1, 2), draw(10, 20, norms=(4.0, 1.5, 0.0, 3.0))])
    assert (total.forward, total.adjoint) == (exact(11), exact(22))
    assert total.magnitudes == Magnitudes((5.0, 2.5, 1.0, 5.0), (6.0, 10.0), (2.0, 7.0))


SPACES = Spaces(al.Space(al.Layout((2,), al.Partition((1,)))), al.Space(al.Layout((2,), al.Partition((1,)))))


def judged(*draws: InnerProducts, gain: Gain) -> Any:
    return ADJOINT.judge(SPACES, [DotTestObservation(draws, None, gain, gain.roundings, 1 / 64)])


def test_an_error_is_told_where_it_is_larger_than_its_bound_and_stated_where_it_is_not() -> None:
    gain = Gain(1, 2, 0.0, GainSource.UNKNOWN)
    bound = 2 * (2 / 62) * 10
    within, beyond = (judged(draw(0, 0.999 * bound), gain=gain), judged(draw(0, 1.001 * bound), gain=gain))
    assert within.is_coherent
    assert not within.is_exact
    assert within.figures[Figure.FLOATING_ERROR] == pytest.approx(0.999 * bound / 6)
    assert not beyond.is_coherent
    assert dict(beyond.lines)["error"] == f"{1.001 * bound / 6:.3g} (relative to the norms)"
    assert dict(beyond.lines)["form"] == "floating"
    assert beyond.figures[Figure.FLOATING_ERROR] == pytest.approx(1.001 * bound / 6)


def test_the_form_of_a_wrong_draw_is_told() -> None:
    declared, probed = Gain(1, 1, 1.0, GainSource.DECLARED), Gain(1, 2, 1.0, GainSource.PROBE)
    wrong = judged(InnerProducts(7, exact(3), exact(2), None, (1, 2)), gain=declared)
    assert dict(wrong.lines) == {"⟨Fx, y⟩": "3", "⟨x, F*y⟩": "2", "form": "integers up to 7, exact"}
    wrong = judged(draw(30, 2, bound=7), gain=probed)
    assert dict(wrong.lines)["form"] == "integers up to 7, within rounding"


def test_norms_count_invariant_copies_once() -> None:
    layout = al.Layout((2,), al.Partition((2,)), axes=(None,))
    invariant, replicated = (al.Space(layout, types=(kind,)) for kind in ("invariant", "replicated"))
    local = [np.array([3.0, 4.0])]
    assert [norm(invariant, local, rank) for rank in (0, 1)] == [5.0, 0.0]
    assert [norm(replicated, local, rank) for rank in (0, 1)] == [5.0, 5.0]
    assert norm(replicated, [np.array([3 + 4j, 0])], 0) == 5.0


# Tolerances of elements and of matrices.


def test_an_element_may_differ_relative_to_the_largest_of_its_tensor_or_to_what_is_given() -> None:
    space = al.Space(al.Layout((2,), al.Partition((1,))))

    def differs(by: float, tolerance: Tolerance) -> bool:
        expected = np.array([1.0, 8.0])
        return (
            first_difference(space, [(expected + np.array([by, 0.0]),)], [(expected,)], tolerance) is not None
        )

    assert (differs(0.25, Tolerance(1 / 32, 0.0)), differs(0.26, Tolerance(1 / 32, 0.0))) == (False, True)
    assert (differs(0.5, Tolerance(1 / 32, 16.0)), differs(0.51, Tolerance(1 / 32, 16.0))) == (False, True)
    assert (differs(0.0, EXACT), differs(2.0**-40, EXACT)) == (False, True)
    assert (differs(0.5, Tolerance(0.0, 0.0, 0.5)), differs(0.51, Tolerance(0.0, 0.0, 0.5))) == (False, True)


def test_the_tolerance_of_a_tensor_is_the_same_on_however_many_ranks() -> None:
    space = al.Space(al.Layout((2,), al.Partition((3,)), axes=(None,)))
    expected = [(np.array([1.0, 8.0]),)] * 3
    for by, differs in ((0.25, False), (0.26, True)):
        actual = [*expected[:2], (np.array([1.0 + by, 8.0]),)]
        assert (first_difference(space, actual, expected, Tolerance(1 / 32)) is not None) == differs


def test_values_that_differ_in_the_last_bit_read_otherwise() -> None:
    difference = first_difference(
        SPACES.domain, [(np.array([1.0, 1 + 2.0**-52]),)], [(np.array([1.0, 1.0]),)]
    )
    assert difference is not None
    assert difference.actual != difference.expected


def test_differences_of_integers_do_not_wrap_around() -> None:
    least, zero = np.array([np.iinfo(np.int64).min] * 2), np.zeros(2, np.int64)
    assert first_difference(SPACES.domain, [(least,)], [(zero,)], Tolerance(0.0, 0.0, 4.0)) is not None


def test_entries_may_differ_relative_to_the_largest_unless_all_are_whole() -> None:
    whole, thirds = np.array([[1.0, 3.0]]), np.array([[1.0, 3.5]])
    assert _allowed(whole, Tolerance(0.25), 24) == 0.0
    assert _allowed(thirds, Tolerance(0.25), 24) == 0.875
    assert _allowed(-3 * thirds, Tolerance(0.25), 24) == 2.625


def test_numbers_that_are_integers_because_they_are_large_round_as_fractions_do() -> None:
    # In float32 all numbers above 2**23 are integers.
    large = np.array([[5109792.0, 2.0]])
    assert not is_whole(large, 24)
    assert is_whole(large, 53)
    assert is_whole(np.array([2.0**21]), 24)
    assert not is_whole(np.array([2.0**21 + 1]), 24)
    assert is_whole(2 * large * 2.0**80)
    assert _allowed(large, Tolerance(2.0**-20), 24) == 5109792.0 * 2.0**-20
    assert _allowed(large, Tolerance(2.0**-20), 53) == 0.0


def test_results_of_two_schedules_may_differ_by_both_their_bounds() -> None:
    def differ(by: float) -> bool:
        one, other = InnerProductResult(exact(1), 0.25), InnerProductResult(exact(1 + by), 0.5)
        return one.difference(other) is not None

    assert [differ(0.75), differ(0.76), differ(-0.75), differ(-0.76)] == [False, True, False, True]
    one, other = (MatrixResult(np.array([[1.0, value]]), 0.25) for value in (2.0, 2.5))
    assert one.difference(other) is None
    further = MatrixResult(np.array([[1.0, 2.6]]), 0.25)
    difference = one.difference(further)
    assert difference is not None
    assert difference[:3] == ("row 0, column 1", "2", "2.6")
    assert MatrixResult(np.array([[np.nan]]), 1.0).difference(MatrixResult(np.array([[1.0]]), 1.0))


def test_a_matrix_counts_the_entries_that_both_directions_have() -> None:
    sampled = verdict(MatrixCheck(limit=5), Look("", ring(Ring, shape=(6,)), "", 2))
    assert sampled.figures == {Figure.ENTRIES: 25, Figure.PROVED: "a sample"}


# Limits.


@pytest.mark.parametrize(
    ("check", "cases"),
    [("adjoint", 100), ("matrix", 50), ("specification", 50), ("sequential", 100), ("linearity", 40), ("declared", 40), ("purity", 40), ("reentrancy", 30)],
)  # fmt: skip
def test_each_check_draws_its_part_of_the_cases_of_an_operator(check: str, cases: int) -> None:
    assert check_named(check).cases_of(100, right) == cases
    assert check_named(check).cases_of(1, right) == 1


@pytest.mark.parametrize(
    ("check", "cases"), [("sequential", 40), ("gradients", 70), ("jacobian", 40), ("double_backward", 40)]
)
def test_each_check_draws_its_part_of_the_cases_of_a_layer(check: str, cases: int) -> None:
    assert check_named(check).cases_of(100, linears) == cases
    assert check_named(check).cases_of(1, linears) == 1


def test_a_matrix_of_64_columns_is_probed_for_its_gain_and_one_more_is_not() -> None:
    for side, source in ((32, GainSource.PROBE), (33, GainSource.UNKNOWN)):
        assert context_of(ring(gain=None, shape=(side,)))[3].source is source  # type: ignore[index]


@pytest.mark.parametrize(
    # Half of the bits where the gain leaves no integer: 2**(8 // 2) of bfloat16, a quarter of it where a check enlarges values.
    ("dtype", "shape", "headroom", "bound"),
    [
        ("bfloat16", (40,), 1, 16),
        ("bfloat16", (40,), 4, 4),
        ("float16", (40,), 1, 7),
        ("float16", (40,), 4, 1),
    ],
)
def test_integers_of_an_inexact_operator_have_half_of_the_bits(
    dtype: str, shape: tuple[int, ...], headroom: int, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its operator is one of NumPy.
    monkeypatch.setattr("adjointlab.checks.gain.measured_rounding", lambda context: NOTHING_MEASURED)
    if dtype == "bfloat16":
        pytest.importorskip("torch")

    def integers(rank_context: Any, _: object) -> int:
        make = ring(gain=None, shape=shape, dtype=dtype)
        of = CheckContext(lambda: make(rank_context.comm), InputSetting(), rank_context.comm)
        return of.arithmetic.integers(headroom)

    assert SimulatedWorld(2).run(integers, None, 2).values == (bound, bound)


def test_no_integer_is_exact_under_a_declared_gain_that_is_too_large() -> None:
    def integers(rank_context: Any, _: object) -> int:
        make = ring(gain=2**12, dtype="float16")
        of = CheckContext(lambda: make(rank_context.comm), InputSetting(), rank_context.comm)
        return of.arithmetic.integers()

    (outcome, _) = SimulatedWorld(2).run(integers, None, 2).outcomes
    assert isinstance(outcome, Raised)
    assert outcome.is_a(Inapplicable)
    assert "under a gain of 4096 with 11 bits" in outcome.message


@pytest.mark.parametrize(
    ("dtype", "gain", "tolerance"),
    [
        ("float64", 1, 2.0**-51),
        ("float32", 1, 2.0**-22),
        ("float16", 1, 2.0**-9),
        ("float64", None, 2.0**-45),
        ("float32", None, 2.0**-16),
        ("float16", None, 2.0**-9),
    ],
)
def test_entries_may_be_off_by_two_units_in_the_last_place_and_by_more_where_nothing_is_declared(
    dtype: str, gain: int | None, tolerance: float
) -> None:
    make = ring(dtype=dtype, gain=gain)

    def observed(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm
        return MATRIX.observe(CheckContext(lambda: make(comm), InputSetting(), comm))

    seen = SimulatedWorld(2).run(observed, None, 2).values[0]
    assert (seen.tolerance, seen.gain) == (tolerance, gain or 0)


@pytest.mark.parametrize(
    # As many as 24 basis vectors on either side; more where that is asked for, unless the whole matrix has above 2**22 entries.
    ("shape", "limit", "entries"),
    [
        ((12,), 24, 576),
        ((13,), 24, 576),
        ((13,), 4096, 676),
        ((13,), 5, 25),
        ((1024,), 30, 900),
        ((1025,), 30, 576),
    ],
)
def test_so_many_entries_are_compared(shape: tuple[int, ...], limit: int, entries: int) -> None:
    make, check = ring(shape=shape), MatrixCheck(limit=limit)

    def observed(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm
        seen = check.observe(CheckContext(lambda: make(comm), InputSetting(), comm))
        return len(seen.columns) * len(seen.rows)

    assert SimulatedWorld(2).run(observed, None, 2).values == (entries, entries)
    assert (MATRIX.limit, WITNESS.limit) == (24, 4096)
