"""Matrices that were probed: which entries are drawn, what is judged of them, and the pictures beside a specification."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks import matrix, probed_matrices
from adjointlab.checks.check import BothDirections, Spaces
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.elements import Difference
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.layers.own_part import _rounding
from adjointlab.checks.matrix import (
    MATRIX,
    WITNESS,
    MatrixCheck,
    _active,
    _declaration,
    _largest_row_sum,
    beside_specification,
    find_witness,
)
from adjointlab.checks.probed_matrices import ProbedMatrices, Repeated, _chosen
from adjointlab.checks.schedule_invariant import MatrixResult
from adjointlab.checks.verdict import Figure, MatrixEntry
from adjointlab.core.program import Program
from tests.checks.looks.harness import WORLD
from tests.checks.looks.operators import Ring, ring

pytestmark = pytest.mark.mpi_skip

EYE = np.eye(2)
PAIR = Spaces(al.Space(al.Layout((2,), (2,))), al.Space(al.Layout((2,), (2,)), name="y"))


def probed(forward: Any, adjoint: Any = None, **given: Any) -> ProbedMatrices:
    """Matrices (row, column), the adjoint's transposed and conjugate; all columns and rows, unless others are given."""
    forward = np.asarray(forward)
    adjoint = forward if adjoint is None else np.asarray(adjoint)
    defaults: dict[str, Any] = {
        "columns": tuple(range(forward.shape[1])),
        "rows": tuple(range(adjoint.shape[0])),
        "tolerance": 0.25,
        "gain": 0,
    }
    return ProbedMatrices(matrices=BothDirections(forward, adjoint), **defaults | given)


def observed(make: Any, check: MatrixCheck = MATRIX, seed: int = 3, ranks: int = 2) -> Any:
    def observe(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm
        return check.observe(CheckContext(partial(make, comm), InputSetting(seed), comm))

    return WORLD.run(observe, None, ranks).values


# What is drawn.


def test_as_many_basis_vectors_are_drawn_as_the_limit_says_each_of_them_by_some_seed() -> None:
    for dimension, limit in ((3, 4), (4, 4), (0, 4)):
        assert _chosen(dimension, limit, 0) == tuple(range(dimension))
    drawn = [_chosen(5, 4, seed) for seed in range(40)]
    assert set(drawn) == {tuple(sorted({0, 1, 2, 3, 4} - {left_out})) for left_out in range(5)}


@pytest.mark.parametrize(("kept", "columns"), [(2**24, 8), (2 * 8 * 5, 5), (2 * 8 * 5 - 1, 4), (0, 1)])
def test_of_a_large_matrix_so_many_columns_are_probed_as_all_ranks_may_keep(
    kept: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probed_matrices, "_KEPT", kept)
    assert [len(seen.columns) for seen in observed(ring(shape=(4,)))] == [8, 8]  # not as large
    monkeypatch.setattr(probed_matrices, "_DENSE", 63)
    for seen in observed(ring(shape=(4,))):
        assert len(seen.columns) == len(seen.rows) == columns
        assert seen.matrices.forward.shape == (8, columns)


def test_rows_are_drawn_apart_from_columns() -> None:
    for seed in (3, 4):
        for seen in observed(ring(shape=(10,)), MatrixCheck(limit=4), seed):
            assert seen.columns == _chosen(20, 4, seed)
            assert seen.rows == _chosen(20, 4, seed + 1)
            assert seen.matrices.forward.shape == (20, 4)
            assert seen.matrices.adjoint.shape == (4, 20)
            assert (seen.tolerance, seen.gain) == (2.0**-51, 1)
            assert seen.alone.forward.positions == seen.alone.adjoint.positions == ()
            assert (seen.without_graph, seen.programs) == ((), None)
    assert all(seen.gain == 0 for seen in observed(ring(gain=None)))


def test_of_a_batch_the_column_of_the_seed_is_applied_alone() -> None:
    class InBatches(Ring):
        batched = True

    def alone(seed: int) -> list[Any]:
        vectors: list[Any] = []

        def noted(operator: Any, x: Any, result: Any) -> Any:
            if x.ndim == 1 and operator.rank == 0:
                vectors.append(np.flatnonzero(x).tolist())
            return result

        observed(ring(InBatches, forward=noted, shape=(5,)), MatrixCheck(limit=24), seed)
        return vectors

    # Of ten columns rank 0 has the first five.
    assert [alone(seed) for seed in (0, 3, 4, 5, 10, 13)] == [[[0]], [[3]], [[4]], [[]], [[0]], [[3]]]


def test_the_witness_has_the_specification_on_rank_0_alone() -> None:
    first, second = observed(ring(is_specified=True), WITNESS)
    assert first.programs is not None
    assert second.programs is None


# What is judged.


def test_the_first_entry_by_column_that_differs_is_the_witness() -> None:
    adjoint = np.add(EYE, [[0, 0], [3, 0]])
    seen = probed(EYE, adjoint)
    verdict = MATRIX.judge(PAIR, [seen, probed(0 * EYE)])
    assert verdict.headline == "adjoint is not the transpose of forward"
    assert verdict.lines == (
        ("forward", "moves x[0] (rank 0) to y[1] (rank 1) with weight 0"),
        ("adjoint", "gives that entry weight 3"),
    )
    assert (verdict.entry, verdict.kind) == (MatrixEntry(0, 1), "matrix")
    assert verdict.figures == {Figure.ENTRIES: 4, Figure.PROVED: "all entries"}


def test_of_a_sample_the_rows_and_columns_that_both_have_are_compared() -> None:
    whole = np.arange(12.0).reshape(3, 4)
    spaces = Spaces(al.Space(al.Layout((4,), (1,))), al.Space(al.Layout((3,), (1,)), name="y"))
    seen = probed(whole[:, [0, 3]], whole[[1, 2], :], columns=(0, 3), rows=(1, 2))
    assert find_witness(spaces, [seen]) is None
    assert MATRIX.judge(spaces, [seen]).figures == {Figure.ENTRIES: 4, Figure.PROVED: "a sample"}
    wrong = whole + 100 * (whole == 11)
    seen = probed(whole[:, [0, 3]], wrong[[1, 2], :], columns=(0, 3), rows=(1, 2))
    witness = find_witness(spaces, [seen])
    assert witness is not None
    assert (witness.column, witness.row, witness.first, witness.second) == (3, 2, 11, 111)
    assert (witness.source, witness.target) == ("x[3] (rank 0)", "y[2] (rank 0)")


@pytest.mark.parametrize(
    ("gain", "entries", "says"),
    [
        (3, [[1.0, 2], [0, 0]], ""),
        (2, [[1.0, 2], [0, 0]], "3"),
        (2, [[1.0, 0], [-2, 0]], "3"),
        (2, [[1.0 + 1.5j, 0], [0, 0]], "2.5"),
        (0, [[1.0, 2], [0, 0]], ""),
    ],
)
def test_a_gain_that_is_smaller_than_a_row_sum_is_wrong(gain: int, entries: Any, says: str) -> None:
    verdict = MATRIX.judge(PAIR, [probed(entries, gain=gain, tolerance=2.0**-51)])
    assert verdict.is_coherent == (not says)
    if says:
        assert verdict.headline == "the declared gain is too small, so exact tests would not be exact"
        assert verdict.lines[:2] == (("declared", str(gain)), ("row sum", says))
        assert "another name" in dict(verdict.lines)["advice"]


@pytest.mark.parametrize(
    ("entries", "row_sum"),
    [([[0.25]], 0.25), ([[0.0]], 0.0), (np.zeros((0, 2)), 0.0), (np.zeros((2, 0)), 0.0)],
)
def test_the_largest_row_sum_may_be_below_one(entries: Any, row_sum: float) -> None:
    assert _largest_row_sum([probed(entries)]) == row_sum


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("value", "name"), [(np.nan, "nan"), (-np.inf, "inf")])
def test_a_result_that_is_not_finite_is_told_with_its_direction_rank_and_place(
    rank: int, value: float, name: str
) -> None:
    wrong = np.add(EYE, [[0, 0], [value, 0]])
    for seen, direction, place in (
        (probed(wrong, EYE), "forward", "y[1] (rank 1)"),
        (probed(EYE, wrong), "adjoint", "x[0] (rank 0)"),
    ):
        both = [probed(EYE), probed(EYE)]
        both[rank] = seen
        verdict = MATRIX.judge(PAIR, both)
        assert verdict.headline == f"{direction} returned {name} on rank {rank}"
        assert dict(verdict.lines)["element"] == place


@pytest.mark.parametrize("rank", [0, 1])
def test_a_batch_that_is_another_than_its_members_is_told_with_its_rank(rank: int) -> None:
    def alone(difference: float) -> BothDirections[Repeated]:
        right, wrong = np.zeros((2, 1)), np.array([[0.0], [difference]])
        return BothDirections(Repeated((1,), right), Repeated((1,), wrong))

    both = [probed(EYE, alone=alone(0.0)), probed(EYE, alone=alone(0.0))]
    both[rank] = probed(EYE, alone=alone(1.0))
    verdict = MATRIX.judge(PAIR, both)
    assert verdict.headline == "adjoint gives something else for a batch than for its members one by one"
    assert verdict.lines == (("rank", str(rank)),)


def test_no_schedule_may_change_a_matrix_beyond_its_tolerance() -> None:
    ranks = [probed(EYE, 3 * EYE), probed(EYE, 0.5 * EYE)]
    found = MATRIX.schedule_invariants(PAIR, ranks)
    assert list(found) == ["the matrix of forward", "the matrix of adjoint"]
    forward, adjoint = found.values()
    assert isinstance(forward, MatrixResult)
    assert isinstance(adjoint, MatrixResult)
    assert (forward.matrix.tolist(), forward.within) == ((2 * EYE).tolist(), 0.0)
    assert (adjoint.matrix.tolist(), adjoint.within) == ((3.5 * EYE).tolist(), 0.875)


def test_matrices_of_other_shapes_differ_whichever_is_larger() -> None:
    one, other = MatrixResult(np.zeros((2, 3)), 0.0), MatrixResult(np.zeros((2, 4)), 0.0)
    assert one.difference(other) == Difference("shape", "(2, 3)", "(2, 4)")
    assert other.difference(one) == Difference("shape", "(2, 4)", "(2, 3)")


# Beside the specification.


def test_a_declaration_is_looked_for_in_whole_matrices_of_some_size(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = al.Layout((1,), (2,), axes=[None])
    spaces = Spaces(al.Space(al.Layout((1,), (1,))), al.Space(copies, name="y"))
    forward, adjoint = np.ones((2, 1)), np.array([[1.0], [0.0]])
    assert _declaration(spaces, [probed(forward, adjoint)]) == "y were declared invariant"
    assert _declaration(spaces, [probed(forward, adjoint[:1])]) == ""
    assert _declaration(spaces, [probed(forward[:1], adjoint)]) == ""
    monkeypatch.setattr(matrix, "_SPECIFIED", 2)
    assert _declaration(spaces, [probed(forward, adjoint)])
    monkeypatch.setattr(matrix, "_SPECIFIED", 1)
    assert _declaration(spaces, [probed(forward, adjoint)]) == ""


def programs(swapped: bool = False) -> tuple[Program, Program]:
    """Those of a ring of two ranks with one element each; x[0] goes to y[1]."""
    (first, _) = observed(ring(shape=(1,), is_specified=True), WITNESS)
    forward, adjoint = first.programs
    return (adjoint, forward) if swapped else (forward, adjoint)


SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])


def test_of_directions_that_are_adjoint_the_one_that_is_not_as_specified_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown(forward: Any, adjoint: Any, given: Any) -> tuple[Any, Any] | None:
        found = beside_specification(None, PAIR, [probed(forward, adjoint, programs=given)])
        return None if found is None else (found.names, None if found.hint is None else found.hint.kind)

    both = programs()
    assert shown(SWAP, SWAP, both) is None
    assert shown(2 * SWAP, SWAP, None) is None
    assert shown(2 * SWAP, SWAP, both) == (("forward", "specification"), FaultKind.DOUBLED)
    assert shown(SWAP, 2 * SWAP, both) == (("adjoint, transposed", "specification"), FaultKind.DOUBLED)
    root = 2**0.5
    assert shown(root * SWAP, root * SWAP, both) == (("forward", "specification"), FaultKind.TIMES_ROOT)
    # A sample, and programs between other buffers, are not compared.
    sample = probed(2 * SWAP[:, :1], SWAP, programs=both, columns=(0,))
    assert beside_specification(None, PAIR, [sample]) is None
    assert shown(2 * SWAP, SWAP, programs(swapped=True)) is None
    for most, is_shown in ((4, True), (3, False)):
        monkeypatch.setattr(matrix, "_SPECIFIED", most)
        assert (shown(2 * SWAP, SWAP, both) is not None) == is_shown


@pytest.mark.parametrize(
    ("forward", "adjoint", "keeps_hint"), [(SWAP, 2 * SWAP, True), (2 * SWAP, SWAP, False)]
)
def test_matrices_that_differ_are_shown_beside_the_specified_one_and_the_hint_is_adjoints(
    forward: Any, adjoint: Any, keeps_hint: bool
) -> None:
    seen = [probed(forward, adjoint, programs=programs())]
    verdict = WITNESS.judge(PAIR, seen)
    assert verdict.evidence is not None
    matrices = verdict.evidence.matrices
    assert matrices is not None
    assert matrices.names == ("forward", "adjoint, transposed", "specification")
    assert matrices.entries[-1] == (("0", "1"), ("1", "0"))
    assert (matrices.hint is not None) == keeps_hint
    witness = find_witness(PAIR, seen)
    assert witness is not None
    beside = beside_specification(Evidence(matrices=witness.matrices), PAIR, seen)
    assert beside == matrices


def test_ranks_that_hold_a_tensor_of_either_side_are_counted_once() -> None:
    assert _active(PAIR) == 2
    other = al.Space(al.Layout((3,), al.Partition((2,), ranks=(1, 2))))
    assert _active(Spaces(PAIR.domain, other)) == 3
    assert _active(Spaces(other, PAIR.domain)) == 3


# What else is told of memory and of rounding.


@pytest.mark.parametrize("primal", ["row-major", "column-major", "strided", "offset", "reversed"])
@pytest.mark.parametrize("dual", ["row-major", "column-major", "strided"])
def test_a_setting_with_other_memory_orders_has_a_plainer_one(primal: str, dual: str) -> None:
    setting = InputSetting(5, "numpy", primal, dual)
    found = [(hint.text, plainer) for hint, plainer in MATRIX.plainer_settings(setting)]
    orders = [order for order in dict.fromkeys((primal, dual)) if order != "row-major"]
    text = f"right where the argument is row-major in memory, and wrong where it is {' or '.join(orders)}"
    assert found == ([(text, InputSetting(5, "numpy"))] if orders else [])


@pytest.mark.parametrize(
    ("dtype", "rounding"), [("float64", 2.0**-41), ("float32", 2.0**-12), ("float16", 0.0), ("bfloat16", 0.0)]
)
def test_what_is_the_same_but_for_rounding_has_as_many_bits_as_the_element_type(
    dtype: str, rounding: float
) -> None:
    (tensor,) = al.Space(al.Layout((2,), (1,)), dtype=dtype).tensors
    assert _rounding(tensor) == rounding


def test_an_entry_may_be_off_relative_to_its_row_or_its_column_whichever_is_smaller() -> None:
    forward = np.array([[1000.5, 0.5], [0.0, 0.0]])
    # By a quarter of a half, and not of a thousand.
    for adjoint, is_wrong in ((0.5, False), (0.6, False), (0.7, True)):
        other = forward.copy()
        other[0, 1] = adjoint
        assert (find_witness(PAIR, [probed(forward, other)]) is not None) is is_wrong
        assert (find_witness(PAIR, [probed(forward.T, other.T)]) is not None) is is_wrong
