"""SUMREDUCE [Hewett21, section 3.2.2]: sums a tensor from its partition onto another.

    R_{{k}→a} = D_{k} Σ_{{k}→a} A_a = D_{k} S_{k-1→a} ... S_{1→a} S_{0→a} A_a              (section 2.2.4)
    R*_{{k}→a} = D_a Σ_{a→{k}} A_{k}                                                              (eq. 18)

for each worker a of P_y and the workers {k} of P_x that the broadcasting rules, from P_y to P_x, give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.program import Add, Allocate, Buffer, Deallocate, Generator, Program, buffers
from adjointlab.core.space import Space
from adjointlab.primitives.broadcast_rules import broadcast_pattern, summed_layout
from adjointlab.primitives.collectives import OneToManyOperator
from adjointlab.primitives.validation import check_layout, check_ranks
from adjointlab.typing import Array, Communicator

__all__ = ["SumReduce", "sum_reduce_steps"]


def sum_reduce_steps(many: Sequence[Buffer], one: Buffer) -> tuple[Generator, ...]:
    """R_{{k}→a} from the buffers {k} to a new buffer a (section 2.2.4)."""
    return (
        Allocate(one),
        *(Add(summand.whole, one.whole) for summand in many),
        *(Deallocate(summand) for summand in many),
    )


class SumReduce(OneToManyOperator):
    """R from P_x onto P_y: every worker of P_y gets the sum of local tensors of x.

    `layout` lays x over P_x; `partition` is P_y. The rules are those of Broadcast from P_y to P_x: in each dimension
    the sides must be equal, or that of P_y must be 1, which is summed over; `transpose_src` reads the shape of P_x
    reversed and `transpose_dest` that of P_y, which is then promoted by leading ones to the order of P_x. Workers
    that are summed hold the same window of x, each with its own values.

    ``forward(x)`` takes the local tensor of x and returns a fresh local tensor of y; outside P_x it takes, and
    outside P_y it returns, a tensor of zero volume, which keeps the first dimension of the input with
    `preserve_batch` (shape (b, 0, ..., 0), of order 2 at least). A worker in neither returns a copy of its input.
    ``adjoint(y)`` copies back. A worker that gets a local tensor may give the memory for it as `out` (row-major,
    sharing no memory with the argument).

    Raises `ValueError` for a partition that does not broadcast to P_x, for workers that are summed but hold different
    windows, for ranks beyond the communicator's, and in a call, before its first message, for a local tensor that
    is not what the layout says.
    """

    symbol = "R"

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        partition: Partition,
        *,
        dtype: str = "float64",
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        check_layout("layout", layout, comm.Get_size())
        check_ranks("partition", partition, comm.Get_size())
        pattern = broadcast_pattern(
            partition, layout.partition, transpose_one=transpose_dest, transpose_many=transpose_src
        )
        self.domain = Space(layout, dtype=dtype, name="x")
        self.codomain = Space(summed_layout(layout, pattern), dtype=dtype, name="y")
        (x,), (y,) = self.domain.tensors, self.codomain.tensors
        super().__init__(comm, pattern, y, x, preserve_batch)

    def specification(self) -> Program:
        """Section 2.2.4's R for each worker of P_y."""
        x = {buffer.rank: buffer for buffer in buffers(self.domain)}
        y = {buffer.rank: buffer for buffer in buffers(self.codomain)}
        groups = self.pattern.groups
        return Program(
            x.values(),
            (
                step
                for group in groups
                for step in sum_reduce_steps([x[rank] for rank in group.many], y[group.one])
            ),
        )

    def forward(self, x: Array, out: Array | None = None) -> Any:
        """The local tensor of y = R x, in `out` if given."""
        return self.sum_to_one(x, out)

    def adjoint(self, y: Array, out: Array | None = None) -> Any:
        """The local tensor of R* y, in `out` if given."""
        return self.copy_to_many(y, out)
