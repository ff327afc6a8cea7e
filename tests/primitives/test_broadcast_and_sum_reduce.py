"""Broadcast and SumReduce: layouts, zero-volume tensors, element types, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core import arrays
from adjointlab.core.bases import basis_vector
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce

DTYPES = ("float16", "float32", "float64", "complex64", "complex128", "int32", "int64")


def test_the_example_of_distdl_makes_four_copies_of_each_local_tensor(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        layout = Layout([7, 15], Partition([1, 3]))
        operator = Broadcast(comm, layout, Partition([4, 3]), preserve_batch=False)
        rank = comm.Get_rank()
        return operator.forward(np.full(layout.local_shape(rank), 10.0 + rank))

    for rank, y in enumerate(spmd(12, body)):
        np.testing.assert_array_equal(y, np.full((7, 5), 10.0 + rank % 3))


def test_the_tensors_dimensions_lie_along_the_matched_dimensions_of_the_destination(spmd: Any) -> None:
    x = Layout.cut([5, 7], Partition([1, 3]), [None, (0, 1, 3, 7)])

    def body(comm: Any) -> Any:
        return Broadcast(comm, x, Partition([3, 2]), transpose_src=True).codomain.tensors[0].layout

    y = spmd(6, body)[0]
    assert y.axes == (None, 0)
    assert y.windows == x.windows
    assert [y.local_shape(rank) for rank in range(6)] == [(5, 1), (5, 1), (5, 2), (5, 2), (5, 4), (5, 4)]


def test_sum_reduce_is_the_adjoint_of_broadcast(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        one, many = Partition([3], [2, 0, 1]), Partition([2, 3], [5, 4, 3, 2, 1, 0])
        broadcast = Broadcast(comm, Layout([4], one), many)
        sum_reduce = SumReduce(comm, broadcast.codomain.tensors[0].layout, one)
        assert sum_reduce.codomain == broadcast.domain
        return broadcast.matrix(), sum_reduce.matrix()

    for broadcast, sum_reduce in spmd(6, body):
        np.testing.assert_array_equal(sum_reduce, broadcast.T)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_every_element_type_is_copied_and_summed(dtype: str, library: str, apply_both: Any) -> None:
    if not arrays.supports(library, dtype):
        pytest.skip(f"{library} has no {dtype}")
    layout = Layout.cut([3, 4], Partition([1, 2], [2, 1]), [None, (0, 1, 4)])
    apply_both(4, lambda comm: Broadcast(comm, layout, Partition([2, 2]), dtype=dtype), library)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_single_and_rounded_once(dtype: str, spmd: Any) -> None:
    """Half precision alone would lose the ones: 2048 + 1 + ... + 1 rounds to 2048 each time."""
    large = {"float16": 2048.0, "bfloat16": 256.0}[dtype]

    def body(comm: Any) -> Any:
        operator = SumReduce(comm, Layout([2], Partition([5]), axes=[None]), Partition([1]), dtype=dtype)
        summand = np.full(2, large if comm.Get_rank() == 0 else 1.0, np.float32)
        return arrays.to_numpy(operator.forward(arrays.from_numpy(summand, dtype, "torch")))

    np.testing.assert_array_equal(spmd(5, body)[0], np.full(2, large + 4))


@pytest.mark.parametrize("preserve_batch", [False, True])
def test_idle_workers_hold_zero_volume_that_keeps_the_batch_if_asked(preserve_batch: bool, spmd: Any) -> None:
    """Rank 0 is the source alone, rank 1 a destination alone, rank 2 in neither."""

    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        layout = Layout([4, 3, 2], Partition([1, 1, 1], [0]))
        operator = Broadcast(comm, layout, Partition([1, 1, 1], [1]), preserve_batch=preserve_batch)
        x = np.ones({0: (4, 3, 2), 1: (0, 0, 0), 2: (9, 0)}[rank])
        y = np.ones({0: (0, 0, 0), 1: (4, 3, 2), 2: (0, 8)}[rank])
        return operator.forward(x).shape, operator.adjoint(y).shape

    idle = (4, 0, 0) if preserve_batch else (0, 0, 0)
    assert spmd(3, body) == ((idle, (4, 3, 2)), ((4, 3, 2), idle), ((9, 0), (0, 8)))


@pytest.mark.parametrize("preserve_batch", [False, True])
def test_the_batch_of_a_vector_is_kept_in_a_tensor_of_order_2(preserve_batch: bool, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        layout = Layout([4], Partition([2]), axes=[None])
        operator = SumReduce(comm, layout, Partition([1], [1]), preserve_batch=preserve_batch)
        return operator.forward(np.ones(4)).shape

    assert spmd(2, body) == ((4, 0) if preserve_batch else (0,), (4,))


def test_a_tensor_of_order_0_has_no_batch_to_keep(apply_both: Any) -> None:
    layout = Layout([], Partition([1], [1]), axes=[])
    apply_both(3, lambda comm: Broadcast(comm, layout, Partition([2], [2, 0])))
    apply_both(3, lambda comm: SumReduce(comm, Layout([], Partition([2]), axes=[]), Partition([1], [2])))


def test_empty_local_tensors_are_skipped_by_their_whole_group(apply_both: Any) -> None:
    layout = Layout.cut([3, 2], Partition([3, 1], [4, 0, 2]), [(0, 0, 3, 3), None])
    apply_both(6, lambda comm: Broadcast(comm, layout, Partition([3, 2])))


def test_inactive_arguments_may_be_of_any_zero_volume_shape_and_type(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        operator = Broadcast(comm, Layout([3], Partition([1], [1])), Partition([3]))
        x = np.arange(3.0) if comm.Get_rank() == 1 else np.zeros((5, 0, 2), np.float32)
        return operator.forward(x)

    for y in spmd(3, body):
        np.testing.assert_array_equal(y, np.arange(3.0))
        assert y.dtype == np.float64


@pytest.mark.parametrize("operator", [Broadcast, SumReduce])
def test_ranks_beyond_the_communicator_are_named(operator: Any, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        return operator(comm, Layout([4], Partition([1], [0])), Partition([1], [3]))

    with pytest.raises(
        ValueError, match=r"partition: .* uses ranks \[3\], but the communicator has ranks 0 to 1"
    ):
        spmd(2, body)


def test_a_partition_that_does_not_broadcast_raises_on_every_rank_alike(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        with pytest.raises(ValueError, match="1x3 does not broadcast to 3x1") as raised:
            Broadcast(comm, Layout([4, 6], Partition([1, 3])), Partition([3, 1]))
        return str(raised.value)

    assert len(set(spmd(3, body))) == 1


def test_summing_over_workers_with_different_windows_is_refused(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        return SumReduce(comm, Layout([4], Partition([2])), Partition([1]))

    with pytest.raises(ValueError, match="dimension 0 of the partition 2 is summed over"):
        spmd(2, body)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), r"x: shape \(3,\) on rank 0, but the layout .* gives it \(4,\)"),
        (np.zeros(4, np.float32), "x: float32 on rank 0, but the operator was made for float64"),
        ([0.0] * 4, "x: a list on rank 0, not a NumPy, torch or CuPy array"),
    ],
)
def test_a_wrong_argument_is_named_before_the_first_message(x: Any, message: str, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        operator = Broadcast(comm, Layout([4], Partition([1])), Partition([1]))
        return operator.forward(x)

    with pytest.raises((ValueError, TypeError), match=message):
        spmd(1, body)


def test_an_inactive_worker_with_elements_is_refused(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        return Broadcast(comm, Layout([4], Partition([1], [1])), Partition([1], [1])).forward(np.zeros(4))

    with pytest.raises(ValueError, match=r"x: shape \(4,\) on rank 0, which is inactive"):
        spmd(2, body)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_go_into_given_memory(library: str, dtype: str, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        operators = (
            Broadcast(comm, Layout([4], Partition([1])), Partition([2]), dtype=dtype),
            SumReduce(comm, Layout([4], Partition([2]), axes=[None]), Partition([1]), dtype=dtype),
            AllSumReduce(comm, Layout([4], Partition([2]), axes=[None]), [0], dtype=dtype),
        )
        for operator in operators:
            for apply, source, target in (
                (operator.forward, operator.domain, operator.codomain),
                (operator.adjoint, operator.codomain, operator.domain),
            ):
                x = basis_vector(source, 2, rank, library)
                out = arrays.empty(target.tensors[0].layout.local_shape(rank), dtype, library)
                given = apply(*x, out=out)
                assert (given is out) == target.tensors[0].layout.partition.is_active(rank)
                np.testing.assert_array_equal(arrays.to_numpy(given), arrays.to_numpy(apply(*x)))

    spmd(2, body)


def test_memory_for_results_must_fit_and_be_row_major(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        operator = Broadcast(comm, Layout([4, 2], Partition([1, 1])), Partition([1, 1]))
        with pytest.raises(ValueError, match=r"out: shape \(2, 4\) on rank 0"):
            operator.forward(np.zeros((4, 2)), out=np.zeros((2, 4)))
        with pytest.raises(ValueError, match="out: an array on rank 0 is not in row-major order"):
            operator.forward(np.zeros((4, 2)), out=np.zeros((2, 4)).T)

    spmd(1, body)
