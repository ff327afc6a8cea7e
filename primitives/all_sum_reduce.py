"""ALLSUMREDUCE [Hewett21, section 3.2.3]: sums a tensor along dimensions of its partition, for every worker.

    𝒜_{{k}→{k}} = B_{a→{k}} R_{{k}→a}                                                            (eq. 19)
    𝒜* = R* B* = B R = 𝒜                                                                          (eq. 20)

for the workers {k} of each sub-partition along the listed dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from adjointlab.core import arrays, transport
from adjointlab.core.arguments import check_argument
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import integers
from adjointlab.core.program import Buffer, Generator, Program, buffers_by_rank
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives import groups
from adjointlab.primitives.broadcast import broadcast_steps
from adjointlab.primitives.collectives import result_array, sum_into
from adjointlab.primitives.sum_reduce import sum_reduce_steps
from adjointlab.primitives.validation import check_layout, check_summed
from adjointlab.typing import Array, Communicator

__all__ = ["AllSumReduce"]


class AllSumReduce(LinearOperator):
    """𝒜 over dimensions `dims` of P_x: every worker gets the sum of the local tensors along them.

    `layout` lays x over P_x; y has the same layout. Workers that are summed hold the same window of x, each with its own
    values. ``forward(x)`` and ``adjoint(y)`` take the local tensor and return a fresh one, or `out` (row-major, sharing
    no memory with the argument); a worker outside P_x returns a copy of its tensor of zero volume.

    Raises `ValueError` for dimensions that the partition does not have, for workers that are summed but hold different
    windows, for ranks beyond the communicator's, and in a call, before its first message, for a local tensor that
    does not match the layout.
    """

    symbol = "𝒜"
    batched = True

    def __init__(
        self, comm: Communicator, layout: Layout, dims: Iterable[int], *, dtype: str = "float64"
    ) -> None:
        check_layout("layout", layout, comm)
        along = integers("dims", dims)
        self.groups = layout.partition.subpartitions(along)
        check_summed("dims", layout, along, axes="the layout's `axes`")
        self.comm = comm
        self.domain = Space(layout, dtype=dtype, name="x")
        self.codomain = Space(layout, dtype=dtype, name="y")
        self.gain = self.fan_in = self.groups[0].size
        self._rank = comm.Get_rank()
        self._is_active = layout.partition.is_active(self._rank)
        self._workers: Communicator | None = None  # no messages
        # All members have the same window, so they agree on whether there is anything to sum.
        if self._is_active and self.gain > 1 and layout.local_size(self._rank) > 0:
            members = layout.partition.subpartition(along, self._rank)
            self._workers = groups.communicator(comm, members.ranks)

    def specification(self) -> Program:
        """Eq. 19 for each sub-partition."""
        x = buffers_by_rank(self.domain)
        y = buffers_by_rank(self.codomain)
        steps: list[Generator] = []
        for group in self.groups:
            first = x[group.ranks[0]]
            total = Buffer(first.rank, "sum", first.shape, first.dtype)
            steps += sum_reduce_steps([x[rank] for rank in group.ranks], total)
            steps += broadcast_steps(total, [y[rank] for rank in group.ranks])
        return Program(x.values(), steps)

    def forward(self, x: Array, out: Array | None = None) -> Array:
        """The local tensor of y = 𝒜 x, in `out` if given."""
        return self._sum(self.domain.tensors[0], x, out)

    def adjoint(self, y: Array, out: Array | None = None) -> Array:
        """The local tensor of 𝒜* y = 𝒜 y, in `out` if given."""
        return self._sum(self.codomain.tensors[0], y, out)

    def _sum(self, tensor: Tensor, array: Array, out: Array | None) -> Array:
        batch = check_argument(tensor, array, self._rank)
        if not self._is_active:
            return arrays.copy(array)
        result = result_array(tensor, array, out, self._rank, batch)
        if self._workers is None:
            arrays.copy_into(result, array)
        else:
            workers = transport.over(self._workers, array)
            sum_into(result, partial(workers.Allreduce, arrays.summable(array)))
        return result
