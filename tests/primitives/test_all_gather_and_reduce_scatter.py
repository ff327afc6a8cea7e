"""AllGather, ReduceScatter and Discard: what they are to each other, layouts, local types, element types, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.checks.memory_orders import ORDERS
from adjointlab.core import arrays
from adjointlab.core.bases import basis_vector
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.discard import Discard
from adjointlab.primitives.reduce_scatter import ReduceScatter

DTYPES = ("float16", "float32", "float64", "complex64", "complex128", "int32", "int64")

# Six workers in any order; the second dimension of the tensor is cut unevenly along three of them, one holds nothing.
GRID = Partition([2, 3], [5, 3, 1, 0, 2, 4])
CUT = (0, 1, 1, 5)
NARROW = Layout.cut([3, 5, 2], GRID, [(0, 2, 3), CUT, None], axes=[0, 1, None])
WIDE = Layout.cut([3, 5, 2], GRID, [(0, 2, 3), None, None], axes=[0, None, None])


def test_every_worker_of_a_segment_gets_the_whole_dimension(spmd: Any) -> None:
    whole = np.arange(30.0).reshape(3, 5, 2)

    def body(comm: Any) -> Any:
        window = NARROW.window(comm.Get_rank())
        assert window is not None
        x = whole[tuple(slice(*interval) for interval in window)]
        return AllGather(comm, NARROW, 1).forward(x)

    for rank, y in enumerate(spmd(6, body)):
        np.testing.assert_array_equal(y, whole[:2] if GRID.index(rank)[0] == 0 else whole[2:])


def test_every_worker_is_left_with_its_part_of_the_sum_of_its_segment(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        x = 10.0**rank * np.arange(1, 1 + WIDE.local_size(rank)).reshape(WIDE.local_shape(rank))
        return ReduceScatter(comm, WIDE, 1, 1, cut=CUT).forward(x)

    for rank, y in enumerate(spmd(6, body)):
        i, j = GRID.index(rank)
        shape = WIDE.local_shape(rank)
        factor = sum(10.0**other for other in GRID.ranks if GRID.index(other)[0] == i)
        total = factor * np.arange(1, 1 + np.prod(shape)).reshape(shape)
        np.testing.assert_array_equal(y, total[:, CUT[j] : CUT[j + 1]])


@pytest.mark.parametrize(
    "make",
    [
        lambda comm: AllGather(comm, Layout.cut([2, 5], Partition([1, 3]), [None, CUT]), 1),
        lambda comm: ReduceScatter(comm, Layout([2, 5], Partition([3]), axes=[None, None]), 1, 0, cut=CUT),
        lambda comm: Discard(comm, Layout([2, 5], Partition([3]), axes=[None, None]), 1, 0, cut=CUT),
    ],
    ids=["AllGather", "ReduceScatter", "Discard"],
)
def test_each_is_its_program_as_a_matrix(make: Any, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        operator = make(comm)
        return operator.matrix(), operator.H.matrix(), operator.specification()

    for forward, adjoint, program in spmd(3, body):
        np.testing.assert_array_equal(forward, program.matrix())
        np.testing.assert_array_equal(adjoint, program.adjoint().matrix())


def test_reduce_scatter_is_the_adjoint_of_all_gather(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        all_gather = AllGather(comm, NARROW, 1)
        reduce_scatter = ReduceScatter(comm, all_gather.codomain.tensors[0].layout, 1, 1, cut=CUT)
        assert reduce_scatter.codomain == all_gather.domain
        return all_gather.matrix(), reduce_scatter.matrix()

    for all_gather, reduce_scatter in spmd(6, body):
        np.testing.assert_array_equal(reduce_scatter, all_gather.T)


@pytest.mark.parametrize("cut", [None, CUT])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(cut: Any, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        reduce_scatter = ReduceScatter(comm, WIDE, 1, 1, cut=cut)
        all_gather = AllGather(comm, reduce_scatter.codomain.tensors[0].layout, 1)
        return AllSumReduce(comm, WIDE, [1]).matrix(), (all_gather @ reduce_scatter).matrix()

    for all_reduce, composed in spmd(6, body):
        np.testing.assert_array_equal(all_reduce, composed)


@pytest.mark.parametrize("copies", ["replicated", "invariant"])
def test_to_discard_and_to_gather_again_changes_nothing(copies: Any, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        layout = Layout([5], Partition([3], [2, 0, 1]), axes=[None])
        discard = Discard(comm, layout, 0, 0, cut=CUT, copies=copies)
        all_gather = AllGather(comm, discard.codomain.tensors[0].layout, 0, copies=copies)
        there, back = all_gather @ discard, discard @ all_gather
        assert there.codomain == discard.domain
        return there.matrix(), there.H.matrix(), back.matrix()

    copied = np.kron(np.ones((3 if copies == "replicated" else 1, 1)), np.eye(5))
    for there, adjoint, back in spmd(3, body):
        np.testing.assert_array_equal(there, copied)
        np.testing.assert_array_equal(adjoint, copied.T)
        np.testing.assert_array_equal(back, np.eye(5))


def test_of_invariant_copies_discard_is_the_adjoint_of_all_gather_and_the_inverse(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        all_gather = AllGather(comm, NARROW, 1, copies="invariant")
        discard = Discard(comm, all_gather.codomain.tensors[0].layout, 1, 1, cut=CUT, copies="invariant")
        assert discard.domain == all_gather.codomain.dual
        assert discard.codomain == all_gather.domain.dual
        return all_gather.H.matrix(), discard.matrix(), all_gather.matrix()

    for adjoint, discard, all_gather in spmd(6, body):
        np.testing.assert_array_equal(adjoint, discard)
        np.testing.assert_array_equal(discard @ all_gather, np.eye(30))


def test_what_is_local_needs_no_other_worker(spmd: Any) -> None:
    """One rank alone applies it; if others had to take part the run would hang, which is found."""

    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        discards = [Discard(comm, WIDE, 1, 1, cut=CUT, copies=copies) for copies in ("replicated", "varying")]
        all_gather = AllGather(comm, NARROW, 1, copies="invariant")
        if rank == 2:
            wide, narrow = np.ones(WIDE.local_shape(rank)), np.ones(NARROW.local_shape(rank))
            for discard in discards:
                np.testing.assert_array_equal(discard.forward(wide), narrow)
                assert discard.adjoint(narrow).sum() == narrow.size
            np.testing.assert_array_equal(all_gather.adjoint(wide), narrow)

    spmd(6, body)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_any_dimension_is_gathered_and_scattered_from_any_memory_order(
    dim: int, library: str, order: str, apply_both: Any
) -> None:
    axes: list[int | None] = [None, None, None]
    axes[dim] = 0
    shape, ends = [3, 2, 4], [(0, 1, 1, 3), (0, 0, 0, 2), (0, 3, 3, 4)]
    partition = Partition([3], [2, 3, 0])
    cuts = [ends[k] if k == dim else None for k in range(3)]
    narrow, wide = Layout.cut(shape, partition, cuts, axes), Layout(shape, partition, axes=[None] * 3)
    apply_both(4, lambda comm: AllGather(comm, narrow, dim), library, order)
    apply_both(4, lambda comm: ReduceScatter(comm, wide, dim, 0, cut=ends[dim]), library, order)
    apply_both(4, lambda comm: Discard(comm, wide, dim, 0, cut=ends[dim]), library, order)
    apply_both(4, lambda comm: Discard(comm, wide, dim, 0, copies="invariant"), library, order)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_every_element_type_is_gathered_and_summed(dtype: str, library: str, apply_both: Any) -> None:
    if not arrays.supports(library, dtype):
        pytest.skip(f"{library} has no {dtype}")
    apply_both(6, lambda comm: AllGather(comm, NARROW, 1, dtype=dtype), library)
    apply_both(6, lambda comm: ReduceScatter(comm, WIDE, 1, 1, dtype=dtype), library)
    apply_both(6, lambda comm: AllGather(comm, Layout([7], Partition([6])), 0, dtype=dtype), library)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_single_and_rounded_once(dtype: str, dim: int, spmd: Any) -> None:
    """Half precision alone would lose the ones: 2048 + 1 + ... + 1 rounds to 2048 each time."""
    large = {"float16": 2048.0, "bfloat16": 256.0}[dtype]

    def body(comm: Any) -> Any:
        operator = ReduceScatter(comm, Layout([5, 5], Partition([5]), axes=[None, None]), dim, 0, dtype=dtype)
        summand = np.full((5, 5), large if comm.Get_rank() == 0 else 1.0, np.float32)
        return arrays.to_numpy(operator.forward(arrays.from_numpy(summand, dtype, "torch")))

    for y in spmd(5, body):
        np.testing.assert_array_equal(y.ravel(), np.full(5, large + 4))


def test_the_memory_of_packed_blocks_is_used_again_and_never_handed_out(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        operator = AllGather(comm, Layout([2, 4], Partition([1, 2])), 1)
        first = operator.forward(np.full((2, 2), 1.0 + rank))
        second = operator.forward(np.full((2, 2), 10.0 + rank))
        third = operator.adjoint(np.full((2, 4), 1.0))
        return first, second, third

    for first, second, third in spmd(2, body):
        np.testing.assert_array_equal(first, [[1, 1, 2, 2]] * 2)
        np.testing.assert_array_equal(second, [[10, 10, 11, 11]] * 2)
        np.testing.assert_array_equal(third, np.full((2, 2), 2.0))


def test_windows_and_copies_in_other_dimensions_stay_as_they_are(apply_both: Any) -> None:
    """Halos along one dimension of the grid, summands along another."""
    partition = Partition([2, 2, 2])
    layout = Layout([4, 3], partition, [[(-1, 3), (1, 5)], [(0, 1), (1, 3)]], axes=[1, 2])
    types = ("partial", "varying", "varying")
    made = apply_both(8, lambda comm: AllGather(comm, layout, 1, types=types, copies="replicated"))
    y = made[0].codomain.tensors[0]
    assert y.layout.windows == (layout.windows[0], ((0, 3),))
    assert [entry.value for entry in y.types] == ["partial", "varying", "replicated"]


def test_a_whole_dimension_may_lie_along_the_partition_in_copies(apply_both: Any) -> None:
    layout = Layout([4, 3], Partition([2, 3]), [[(0, 4)] * 2, [(0, 3)] * 3])
    made = apply_both(6, lambda comm: ReduceScatter(comm, layout, 0, 1, cut=(0, 1, 4, 4)))
    y = made[0].codomain.tensors[0].layout
    assert y.axes == (1, None)
    assert y.ends(0) == (0, 1, 4, 4)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dim", [0, 1])
def test_results_go_into_given_memory(dim: int, library: str, dtype: str, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        wide = Layout([4, 3], Partition([2]), axes=[None, None])
        reduce_scatter = ReduceScatter(comm, wide, dim, 0, dtype=dtype)
        narrow = reduce_scatter.codomain.tensors[0].layout
        for operator in (
            reduce_scatter,
            AllGather(comm, narrow, dim, dtype=dtype),
            Discard(comm, wide, dim, 0, dtype=dtype),
            Discard(comm, wide, dim, 0, dtype=dtype, copies="invariant"),
        ):
            for apply, source, target in (
                (operator.forward, operator.domain, operator.codomain),
                (operator.adjoint, operator.codomain.dual, operator.domain.dual),
            ):
                x = basis_vector(source, 2, rank, library)
                out = arrays.empty(target.tensors[0].layout.local_shape(rank), dtype, library)
                given = apply(*x, out=out)
                assert given is out
                np.testing.assert_array_equal(arrays.to_numpy(given), arrays.to_numpy(apply(*x)))

    spmd(2, body)


COPIED = Layout([4, 6], Partition([2]), axes=[None, None])
HALVED = Layout([4, 6], Partition([2]), axes=[0, None])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda comm: AllGather(comm, COPIED, 1), "dim: dimension 1 .* lies along no dimension"),
        (lambda comm: AllGather(comm, COPIED, 2), "dim: 2 is not a dimension of the tensor .* has 0 to 1"),
        (lambda comm: AllGather(comm, COPIED, -1), "dim: -1 is not a dimension"),
        (
            lambda comm: AllGather(comm, Layout([4], Partition([2]), [[(0, 3), (2, 4)]]), 0),
            r"dim: dimension 0 .* lies in windows \(\(0, 3\), \(2, 4\)\); it must be cut",
        ),
        (
            lambda comm: AllGather(comm, HALVED, 0, copies="partial"),  # type: ignore[arg-type]
            "copies: 'partial' is not one of varying, replicated, invariant",
        ),
        (lambda comm: AllGather(comm, HALVED, 0, types=["replicated"]), "types: .*replicated"),
        (
            lambda comm: AllGather(comm, Layout([4], Partition([1])), 0, types=["partial"]),
            "types: along dimension 0 of the partition the tensor is cut",
        ),
        (lambda comm: ReduceScatter(comm, COPIED, 0, 1), "along: 1 is not a dimension of the partition"),
        (lambda comm: ReduceScatter(comm, HALVED, 0, 0), "dim: dimension 0 .* must hold it whole, 0:4"),
        (lambda comm: ReduceScatter(comm, HALVED, 1, 0), "along: the workers .* hold different windows"),
        (lambda comm: Discard(comm, COPIED, 1, 0, cut=(0, 6)), "^cut: .* dimension 1, .* along 2 workers"),
        (lambda comm: Discard(comm, COPIED, 1, 0, cut=(0, 7, 6)), "^cut: .* dimension 1 decrease"),
        (
            lambda comm: ReduceScatter(comm, COPIED, 1, 0, summands="invariant"),  # type: ignore[arg-type]
            "summands: 'invariant' is not one of varying, partial",
        ),
        (lambda comm: Discard(comm, Layout([4], Partition([3])), 0, 0), r"layout: .* ranks \[2\]"),
    ],
)
def test_what_cannot_be_gathered_or_cut_is_refused_alike_on_all_ranks(
    make: Any, message: str, spmd: Any
) -> None:
    def body(comm: Any) -> Any:
        with pytest.raises(ValueError, match=message) as raised:
            make(comm)
        return str(raised.value)

    assert len(set(spmd(2, body))) == 1


def test_a_wrong_argument_is_named_before_the_first_message(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        operator = AllGather(comm, HALVED, 0)
        with pytest.raises(ValueError, match=r"x: shape \(4, 6\) on rank"):
            operator.forward(np.zeros((4, 6)))
        with pytest.raises(ValueError, match=r"y: float32 on rank"):
            operator.adjoint(np.zeros((4, 6), np.float32))
        with pytest.raises(ValueError, match=r"out: an array on rank . is not in row-major order"):
            operator.forward(np.zeros((2, 6)), out=np.zeros((6, 4)).T)

    spmd(2, body)
