"""BROADCAST [Hewett21, section 3.2.1]: copies a tensor from its partition onto another.

    B_{a→{k}} = D_a Σ_{a→{k}} A_{k} = D_a S_{a→k-1} ... S_{a→1} S_{a→0} A_{k}                      (eq. 16)
    B*_{a→{k}} = D_{k} Σ_{{k}→a} A_a                                                              (eq. 17)

for each worker a of P_x and the workers {k} of P_y that the broadcasting rules give it.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjointlab.core.program import Add, Allocate, Buffer, Deallocate, Generator
from adjointlab.primitives.collectives import OneToManyOperator

__all__ = ["Broadcast", "broadcast_steps"]


def broadcast_steps(one: Buffer, many: Sequence[Buffer]) -> tuple[Generator, ...]:
    """B_{a→{k}} from the buffer a to new buffers {k} (eq. 16)."""
    return (
        *(Allocate(copy) for copy in many),
        *(Add(one.whole, copy.whole) for copy in many),
        Deallocate(one),
    )


class Broadcast(OneToManyOperator):
    """B from P_x onto P_y: every worker of P_y gets a copy of a local tensor of x.

    `layout` lays x over P_x; `partition` is P_y. In each dimension the sides of P_x and P_y must be equal, or that of
    P_x must be 1, which is copied. `transpose_src` and `transpose_dest` read the shape of P_x and P_y reversed; P_x
    is then promoted by leading ones to the order of P_y. The tensor's own dimensions stay as they are: in the
    codomain each lies along the dimension of P_y that its dimension of P_x is matched with.

    ``adjoint(y)`` sums back. For both directions and errors see :class:`OneToManyOperator`.
    """

    symbol = "B"
    copies = True

    def steps(self, one: Buffer, many: Sequence[Buffer]) -> Sequence[Generator]:
        """Eq. 16, for a worker of P_x."""
        return broadcast_steps(one, many)
