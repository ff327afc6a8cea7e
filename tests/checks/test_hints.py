"""Hints name a relation that holds, are silent where none does, and are scored on planted bugs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.declarations import _redeclared, declaration_hint
from adjointlab.checks.evidence import ComparedMatrices, Element, Evidence, weight_text
from adjointlab.checks.hints import (
    FaultKind,
    Hint,
    hint_beside_right_entries,
    matrix_hint,
    narrowing_hint,
    value_hint,
)
from adjointlab.checks.told import hints_told
from adjointlab.checks.verdict import unjudged
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.pictures.model import Grid
from adjointlab.typing import NumpyArray
from tests.planted import halos, reductions
from tests.planted.recreated import algebra, calls, memory, sums

pytestmark = pytest.mark.mpi_skip

RANKS = np.array([0, 0, 0, 1, 1, 1])
WANT = np.array([243540, -280552, 607773, -972300, 536855, 1020483])


def kind_of(got: object, want: NumpyArray = WANT) -> FaultKind | None:
    hint = value_hint(np.asarray(got), want, RANKS, 2)
    return None if hint is None else hint.kind


@pytest.mark.parametrize(
    ("got", "kind"),
    [
        (2 * WANT, FaultKind.DOUBLED),
        (WANT / 2, FaultKind.HALVED),
        (-WANT, FaultKind.SIGN),
        (-WANT * (1 - 1e-13), FaultKind.SIGN),
        (-WANT * (1 - 1e-11), None),
        (WANT * (RANKS == 0), FaultKind.ZERO_RANK),
        (WANT * [1, 0, 1, 1, 0, 1], FaultKind.MISSING),
        (WANT[[1, 0, 2, 3, 4, 5]], FaultKind.MISPLACED),
        (WANT[::-1], FaultKind.MISPLACED),
        (WANT + 1e-3 * np.abs(WANT), FaultKind.NARROWED),
        (WANT + 1234567 * (WANT == 607773), None),
        (WANT * [1, 1, 3, 1, 1, 1], None),
        (WANT, None),
        ([1, 0, 2, 0, 1, 1], None),
    ],
)
def test_values_tell_the_relation_that_holds_of_all_that_differ(got: object, kind: FaultKind | None) -> None:
    assert kind_of(got) is kind


@pytest.mark.parametrize(
    ("factor", "kind"),
    [
        (2, FaultKind.DOUBLED),
        (6, FaultKind.TIMES_RANKS),
        (3, FaultKind.MULTIPLE),
        (5, FaultKind.MULTIPLE),
        (1 / 6, FaultKind.BY_RANKS),
        (1 / 3, FaultKind.FRACTION),
        (7, None),
        (1 / 7, None),
        (2 / 3, None),
    ],
)
def test_factors_are_told_up_to_the_number_of_all_ranks(factor: float, kind: FaultKind | None) -> None:
    hint = value_hint(factor * WANT, WANT, RANKS, 2, 1e-6, run_ranks=6)
    assert (None if hint is None else hint.kind) is kind
    alone = kind_of(factor * WANT)
    assert alone is (kind if factor == 2 else None), "others than two need as many ranks"


def test_zeros_on_the_only_rank_are_no_matter_of_the_rank() -> None:
    hint = value_hint(0 * WANT, WANT, 0 * RANKS, 1)
    assert hint is not None
    assert hint.kind is FaultKind.MISSING


def test_what_is_complex_tells_conjugates_and_real_parts() -> None:
    want = WANT + 1j * WANT[::-1]
    assert kind_of(np.conj(want), want) is FaultKind.CONJUGATE
    assert kind_of(want.real, want) is FaultKind.REAL_PART


def test_small_integers_agree_by_chance_and_have_no_hint() -> None:
    want = np.array([1, -2, 3, 1, 0, 2])
    assert kind_of(2 * want, want) is None


@pytest.mark.parametrize(("largest", "kind"), [(999, None), (1000, FaultKind.DOUBLED)])
def test_integers_agree_by_chance_below_a_thousand(largest: int, kind: FaultKind | None) -> None:
    want = np.array([1, -2, 3, 1, 0, -largest])
    assert kind_of(2 * want, want) is kind


@pytest.mark.parametrize("want", [WANT / 7e6, WANT + 1 / 7])
def test_numbers_of_many_digits_do_not_agree_by_chance_however_small(want: NumpyArray) -> None:
    assert kind_of(2 * want, want) is FaultKind.DOUBLED
    assert kind_of(np.round(128 * want) / 64, np.round(128 * want) / 128) is (
        None if np.abs(want).max() < 1000 else FaultKind.DOUBLED
    )


@given(st.lists(st.integers(-(10**6), 10**6), min_size=6, max_size=6, unique=True))
@settings(max_examples=50, deadline=None)
def test_unrelated_values_have_no_hint(values: list[int]) -> None:
    got = np.array(values) * 2 + 10**7 + 1  # neither zero nor any of the others, nor their multiples
    assert kind_of(got) is None


@pytest.mark.parametrize(
    ("got", "kind"),
    [
        ([[1, 0], [0, 0]], FaultKind.ZERO_RANK),
        ([[0, 0], [0, 0]], FaultKind.MISSING),
        ([[1, 0], [0, 2]], FaultKind.DOUBLED),
        ([[0, 1], [1, 0]], FaultKind.MISPLACED),
        ([[1, 1], [0, 1]], FaultKind.EXTRA),
        ([[1, 0], [0, 3]], None),
    ],
)
def test_matrices_tell_the_relation_of_their_entries(got: object, kind: FaultKind | None) -> None:
    hint = matrix_hint(np.asarray(got), np.eye(2), [0, 0], [0, 1])
    assert (None if hint is None else hint.kind) is kind


@pytest.mark.parametrize(
    ("got", "want"), [((1, 2), (2, 2)), ((2, 2), (1, 2)), ((2, 1), (2, 2)), ((2, 2), (2, 1))]
)
def test_matrices_of_two_shapes_have_no_relation(got: tuple[int, int], want: tuple[int, int]) -> None:
    assert matrix_hint(2 * np.ones(got), np.ones(want), [0] * got[0], [0] * got[1]) is None


def test_a_sum_of_which_only_one_term_arrives_is_a_sum_dropped() -> None:
    hint = matrix_hint(np.array([[1, 0], [0, 0]]), np.array([[1, 0], [1, 0]]), [0, 1], [0, 1])
    assert hint is not None
    assert hint.kind is FaultKind.SUM_DROPPED


def test_right_entries_leave_memory_and_the_imaginary_part() -> None:
    strided = hint_beside_right_entries(("row-major", "strided"), is_complex=True)
    assert strided is not None
    assert strided.kind is FaultKind.STRIDES
    assert "strided" in strided.text
    real = hint_beside_right_entries(("row-major", "row-major"), is_complex=True)
    assert real is not None
    assert real.kind is FaultKind.IMAGINARY
    assert hint_beside_right_entries(("row-major", "row-major"), is_complex=False) is None
    assert narrowing_hint(1e-8, 1.0) is not None
    assert narrowing_hint(0.5, 1.0) is None


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(0.0, False), (2.0**-30, True), (2.0**-8 - 2.0**-30, True), (2.0**-8, False), (2.0**-7, False)],
)
def test_a_product_is_narrowed_where_its_error_is_below_that_of_eight_bits(
    error: float, is_told: bool
) -> None:
    for size in (1.0, 64.0):
        assert (narrowing_hint(error * size, size) is not None) is is_told


@pytest.mark.parametrize(
    ("relative", "least", "allowed", "kind"),
    [
        (2.0**-7 - 2.0**-20, 10001, 0.0, FaultKind.NARROWED),
        (2.0**-7, 10240, 0.0, None),
        (2.0**-9, 10000, 0.0, None),  # small integers need no rounding
        (2.0**-9, 10001, 1e-9, None),  # where rounding is allowed for, less precision is no kind
    ],
)
def test_exact_values_are_narrowed_where_all_are_right_to_seven_bits(
    relative: float, least: int, allowed: float, kind: FaultKind | None
) -> None:
    want = np.array([least, -200001.5, 123456, 54321, 98765, 4 * 10**6])

    def found(got: NumpyArray) -> FaultKind | None:
        hint = value_hint(got, want, RANKS, 2, allowed)
        return None if hint is None else hint.kind

    for sign in (1, -1):
        assert found(want * (1 + sign * relative)) is kind
    other = want * (1 + relative)
    other[1] = want[1] / 3
    assert found(other) is None


@pytest.mark.parametrize("value", [1e150, -1e150, np.inf, np.nan])
def test_numbers_that_memory_held_by_chance_have_no_hint(value: float) -> None:
    got = 2.0 * WANT
    got[0] = value
    assert kind_of(got) is None
    beside = 1.0 * WANT
    beside[0] = value
    assert kind_of(2.0 * WANT, beside) is None
    beside[0] = 1e149
    assert kind_of(2 * beside, beside) is FaultKind.DOUBLED


@pytest.mark.parametrize(("allowed", "kind"), [(1.0, FaultKind.DOUBLED), (99.0, None), (1e4, None)])
def test_relations_are_told_of_values_well_above_the_tolerance(
    allowed: float, kind: FaultKind | None
) -> None:
    want = np.array([1100.0, -2300.0, 5700.0])
    hint = value_hint(2 * want + 0.5, want, np.zeros(3, int), 1, allowed)
    assert (None if hint is None else hint.kind) is kind


def test_zeros_on_one_rank_are_told_where_others_are_right_and_it_has_nothing_right() -> None:
    want, ranks = np.array([1001.0, 1002.0, 1003.0, 1004.0]), np.array([0, 0, 1, 1])

    def hint(*zeros: int) -> tuple[FaultKind, str] | None:
        got = want.copy()
        got[list(zeros)] = 0
        found = value_hint(got, want, ranks, 2)
        return None if found is None else (found.kind, found.text)

    assert hint(2, 3) == (FaultKind.ZERO_RANK, "all is zero on rank 1, and right elsewhere")
    assert hint(0, 1) == (FaultKind.ZERO_RANK, "all is zero on rank 0, and right elsewhere")
    assert hint(2) == (FaultKind.MISSING, "zero where another value is expected")
    assert hint(1, 2, 3) == (FaultKind.MISSING, "zero where another value is expected")
    assert hint(0, 1, 2, 3) == (FaultKind.MISSING, "zero where another value is expected")


@pytest.mark.parametrize(
    ("size", "is_irrational"), [(1, False), (2, True), (3, True), (4, False), (5, True), (9, False)]
)
def test_a_root_is_told_where_no_whole_factor_would_be_it(size: int, is_irrational: bool) -> None:
    root = np.sqrt(size)
    for factor, kind in ((root, FaultKind.TIMES_ROOT), (1 / root, FaultKind.BY_ROOT)):
        found = value_hint(factor * WANT, WANT, 0 * RANKS, size)
        assert (found is not None and found.kind is kind) is is_irrational
    if is_irrational:
        for error, told in ((0.99 * 2.0**-20, True), (1.01 * 2.0**-20, False)):
            found = value_hint(root * WANT * (1 + error), WANT, 0 * RANKS, size)
            assert (found is not None and found.kind is FaultKind.TIMES_ROOT) is told


COPIES = al.Space(al.Layout((1,), al.Partition((2,)), axes=[None]))
WHOLE = al.Space(al.Layout((1,), al.Partition((1,))))
ONES, EYE = np.ones((2, 2)), np.eye(2)
Y_COPIES = al.Space(COPIES.tensors[0].layout, name="y")
ANOTHER = al.Tensor(al.Layout((1,), (2,)), name="z")
LAST_OF_LAST, FIRST_OF_FIRST = np.array([[0, 0], [0, 1]]), np.array([[1, 0], [0, 0]])


@pytest.mark.parametrize(
    ("domain", "codomain", "forward", "adjoint", "declaration"),
    [
        (WHOLE, Y_COPIES, np.ones((2, 1)), np.array([[1], [0]]), "y were declared invariant"),
        (COPIES, Y_COPIES, ONES, EYE, "y were declared invariant"),
        (COPIES, Y_COPIES, EYE, ONES, "x were declared invariant"),
        (COPIES, Y_COPIES, EYE, EYE[::-1], ""),  # either could be summed
        (COPIES, Y_COPIES, np.array([[1, 0], [2, 0]]), np.array([[0, 5], [1, 7]]), ""),
        (WHOLE, Y_COPIES, np.ones((2, 1)), np.array([[3], [0]]), ""),
        # Both together, where neither space has another tensor.
        (
            COPIES,
            Y_COPIES,
            LAST_OF_LAST,
            FIRST_OF_FIRST,
            "x were declared replicated and y were declared partial",
        ),
        (
            al.Space(COPIES.tensors[0], ANOTHER),
            Y_COPIES,
            np.pad(LAST_OF_LAST, ((0, 0), (0, 1))),
            np.pad(FIRST_OF_FIRST, ((0, 0), (0, 1))),
            "",
        ),
        (
            COPIES,
            al.Space(Y_COPIES.tensors[0], ANOTHER),
            np.pad(LAST_OF_LAST, ((0, 1), (0, 0))),
            np.pad(FIRST_OF_FIRST, ((0, 1), (0, 0))),
            "",
        ),
    ],
)
def test_the_declaration_that_would_make_a_pair_coherent_is_found(
    domain: al.Space, codomain: al.Space, forward: NumpyArray, adjoint: NumpyArray, declaration: str
) -> None:
    assert declaration_hint(domain, codomain, forward, adjoint) == declaration


@pytest.mark.parametrize(
    ("space", "domain_types", "codomain_types"),
    [
        (COPIES, 2, 2),
        (WHOLE, 0, 0),
        (al.Space(al.Layout((4,), (2,))), 0, 0),
        (al.Space(al.Layout((4,), (1, 2), axes=[1])), 0, 0),  # copies on one rank
        (al.Space(al.Layout((4,), (2, 1), axes=[1])), 2, 2),
        (al.Space(COPIES.tensors[0].layout, types=["invariant"]), 0, 0),
    ],
)
def test_other_types_are_tried_of_varying_tensors_with_copies(
    space: al.Space, domain_types: int, codomain_types: int
) -> None:
    assert len(list(_redeclared(space, True))) == domain_types
    assert len(list(_redeclared(space, False))) == codomain_types


@pytest.mark.parametrize(
    ("weight", "text"),
    [(2, "2"), (-0.25, "-0.25"), (1j, "0+1j"), (0.5 - 2j, "0.5-2j"), (float("nan"), "NaN")],
)
def test_a_weight_is_told_with_both_its_parts(weight: complex, text: str) -> None:
    assert weight_text(weight) == text


def test_a_matrix_beside_others_shows_the_same_window() -> None:
    element = Element(Grid("", "", (), (), ()), "x", 0)
    matrices = ComparedMatrices(
        ("forward", "adjoint"), (1, 2), (0, 3), ((), ()), (), ((), ()), (0, 0), element, element
    )
    matrix = np.arange(16).reshape(4, 4)
    assert matrices.beside("specification", matrix).entries[-1] == (("4", "7"), ("8", "11"))


KINDS: dict[str, set[FaultKind]] = {
    "halo one row too narrow, both ways": {FaultKind.MISSING},
    "left and right width swapped in the adjoint": {FaultKind.MISPLACED},
    "trimmed rows not restored as zero": {FaultKind.EXTRA},
    "adjoint crops, and gives nothing back": {FaultKind.SUM_DROPPED},
    "adjoint takes one of the copies": {FaultKind.SUM_DROPPED},
    "missing sum in a broadcast's adjoint": {FaultKind.SUM_DROPPED},
    "sum doubled": {FaultKind.DOUBLED, FaultKind.HALVED},
    "scaled by the number of ranks": {FaultKind.TIMES_RANKS, FaultKind.DOUBLED},
    "conjugate missing": {FaultKind.CONJUGATE},
    "dtype narrowed": {FaultKind.NARROWED},
    "stale buffer reused": {FaultKind.KEPT},
    "adjoint of an all-gather is a slice": {FaultKind.SUM_DROPPED},
    "gradients averaged over the sequence dimension too": {FaultKind.BY_RANKS, FaultKind.HALVED},
    "gradients summed twice": {FaultKind.TIMES_RANKS, FaultKind.DOUBLED},
    "rank axis merged without moving it": {FaultKind.MISPLACED},
    "raw storage sent": {FaultKind.STRIDES},
    "imaginary part lost": {FaultKind.IMAGINARY, FaultKind.REAL_PART},
    "buffer cleared by subtraction": {FaultKind.KEPT},
    "block of the first ring step in every step": set(),  # nothing is told
}
"""The kinds of fault that a hint may name, of bugs whose kind is known."""


def test_hints_on_planted_bugs_name_their_kind_or_nothing(world: al.SimulatedWorld) -> None:
    planted = [*halos.PLANTED, *reductions.PLANTED]
    planted += [bug for module in (algebra, calls, memory, sums) for bug in module.FAULTS]
    known = {bug.bug: bug for bug in planted if bug.bug in KINDS}
    assert set(known) == set(KINDS)
    told = {}
    for name, bug in known.items():
        verdict = investigate(world, bug.subject, bug.check, Budget(60, 4, seed=1, shrinking=0.5)).verdict
        hint = None if verdict.evidence is None else verdict.evidence.first_hint
        told[name] = None if hint is None else hint.kind
    wrong = {name: kind for name, kind in told.items() if kind is not None and kind not in KINDS[name]}
    silent = [name for name, kind in told.items() if kind is None]
    assert not wrong
    assert len(silent) <= 0.3 * len(told), silent


def test_hints_of_retries_stand_behind_the_one_on_the_numbers() -> None:
    first, other = Hint(FaultKind.DOUBLED, "twice"), Hint(FaultKind.UNEVEN, "uneven")
    assert hints_told(unjudged("", evidence=Evidence(hint=first, retried=(other,)))) == (first, other)
    assert hints_told(unjudged("", evidence=Evidence(hint=first))) == (first,)
    assert hints_told(unjudged("", evidence=Evidence(retried=(other,)))) == (other,)
    assert hints_told(unjudged("", evidence=Evidence())) == ()


def test_a_right_operator_has_no_evidence(world: al.SimulatedWorld) -> None:
    for subject in reductions.RIGHT[:3]:
        verdict = investigate(world, subject, "adjoint", Budget(10, 4, seed=1)).verdict
        assert verdict.evidence in (None, Evidence())
