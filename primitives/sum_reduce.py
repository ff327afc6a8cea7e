"""SUMREDUCE [Hewett21, section 3.2.2]: sums a tensor from its partition onto another.

    R_{{k}→a} = D_{k} Σ_{{k}→a} A_a = D_{k} S_{k-1→a} ... S_{1→a} S_{0→a} A_a              (section 2.2.4)
    R*_{{k}→a} = D_a Σ_{a→{k}} A_{k}                                                              (eq. 18)

for each worker a of P_y and the workers {k} of P_x that the broadcasting rules, from P_y to P_x, give it.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjointlab.core.program import Add, Allocate, Buffer, Deallocate, Generator
from adjointlab.primitives.collectives import OneToManyOperator

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

    ``adjoint(y)`` copies back. For both directions and errors see :class:`OneToManyOperator`. Also raises `ValueError` for workers that
    are summed but hold different windows.
    """

    symbol = "R"
    copies = False

    def steps(self, one: Buffer, many: Sequence[Buffer]) -> Sequence[Generator]:
        """Section 2.2.4's R, for a worker of P_y."""
        return sum_reduce_steps(many, one)
