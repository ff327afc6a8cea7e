from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce


def test_it_is_its_own_adjoint(spmd: Any) -> None:
    """Eq. 20."""

    def body(comm: Any) -> Any:
        return AllSumReduce(comm, Layout([5], Partition([2, 3], [5, 3, 1, 0, 2, 4]), axes=[0]), [1]).matrix()

    for matrix in spmd(6, body):
        np.testing.assert_array_equal(matrix, matrix.T)


def test_it_is_a_sum_reduction_and_a_broadcast(spmd: Any) -> None:
    """Eq. 19: A = B R, in any order of the dimensions and over any worker as the intermediate."""

    def body(comm: Any) -> Any:
        whole, one = Partition([2, 3]), Partition([2, 1], [4, 1])
        layout = Layout([4, 3], whole, axes=[0, None])
        sum_reduce = SumReduce(comm, layout, one)
        broadcast = Broadcast(comm, sum_reduce.codomain.tensors[0].layout, whole)
        return AllSumReduce(comm, layout, [1]).matrix(), broadcast.matrix() @ sum_reduce.matrix()

    for all_sum_reduce, composed in spmd(6, body):
        np.testing.assert_array_equal(all_sum_reduce, composed)


def test_over_no_dimensions_it_is_the_identity(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        return AllSumReduce(comm, Layout([5], Partition([3])), []).matrix()

    np.testing.assert_array_equal(spmd(3, body)[0], np.eye(5))


@pytest.mark.parametrize(("dims", "message"), [([1], "dims"), ([0, 0], "dims"), ([0], "different windows")])
def test_dimensions_that_cannot_be_summed_over_are_refused(dims: list[int], message: str, spmd: Any) -> None:
    with pytest.raises(ValueError, match=message):
        spmd(2, lambda comm: AllSumReduce(comm, Layout([4], Partition([2])), dims))
