"""Send-receive between two workers [Hewett21, section 2.2.1].

    copy   C_{a→b} = S_{a→b} A_b            C*_{a→b} = D_b S_{b→a}                               (eqs. 11, 10)
    move   M_{a→b} = D_a S_{a→b} A_b        M*_{a→b} = D_b S_{b→a} A_a = M_{b→a}                 (eqs. 14, 15)

a and b being local tensors on different workers, out of place.
"""

from __future__ import annotations

from typing import Literal

from adjointlab.core import arrays, transport
from adjointlab.core.arguments import check_argument, check_arguments
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator, Result
from adjointlab.core.program import Program, buffers, copy_to_new, move_to_new
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives.validation import check_layout, single_worker
from adjointlab.typing import Array, Communicator

__all__ = ["SendReceive"]

_TAG = 0
"""The tag of every message. Callers may send other messages on the same communicator with any other tag."""


class SendReceive(LinearOperator):
    """The local tensor x of one worker, sent to the worker `destination`, which holds it as y.

    `layout` lays x over a partition of one worker, the source. In the form "copy" x stays: ``forward(x)`` returns
    (x, y) and ``adjoint(x, y)`` returns x + y on the source. In the form "move" x goes: ``forward(x)`` returns y and
    ``adjoint(y)`` sends it back. A worker that holds nothing of a tensor takes or returns one of zero volume.
    All results are fresh arrays.

    Raises `ValueError` for a layout over several workers, an unknown form, ranks beyond the communicator's, and in a
    call, before its message, for a local tensor that does not match the layout.
    """

    batched = True

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        destination: int,
        *,
        form: Literal["copy", "move"] = "copy",
        dtype: str = "float64",
    ) -> None:
        check_layout("layout", layout, comm)
        if layout.partition.size != 1:
            raise ValueError(
                f"layout: lies over the {layout.partition.size} workers of {layout.partition}; send-receive has one "
                "source (Broadcast and SumReduce move tensors between partitions)"
            )
        if form not in ("copy", "move"):
            raise ValueError(f"form: {form!r} is neither 'copy' nor 'move'")
        target = single_worker("destination", destination, layout.partition.order, comm)
        target_layout = Layout(layout.shape, target, layout.windows, layout.axes)
        self.comm = comm
        self.source, self.destination = layout.partition.ranks[0], destination
        self.x, self.y = Tensor(layout, dtype, name="x"), Tensor(target_layout, dtype, name="y")
        self.stays = form == "copy"
        self.symbol = "C" if self.stays else "M"
        self.domain = Space(self.x)
        self.codomain = Space(self.x, self.y) if self.stays else Space(self.y)
        self.gain = self.fan_in = 2 if self.stays else 1
        self._rank = comm.Get_rank()

    def specification(self) -> Program:
        """Eq. 11 or eq. 14."""
        (a,) = buffers(Space(self.x))
        (b,) = buffers(Space(self.y))
        return Program([a], copy_to_new(a.whole, b) if self.stays else move_to_new(a, b))

    def forward(self, x: Array) -> Result:
        """(x, y) of a copy, y of a move: local tensors."""
        batch = check_argument(self.x, x, self._rank)
        y = self._carry(x, self.x, self.y, batch)
        return (arrays.copy(x), y) if self.stays else y

    def adjoint(self, *tensors: Array) -> Array:
        """The local tensor of C* (x, y) or M* y, on the source."""
        batch = check_arguments(self.codomain.tensors, tensors, self._rank)
        x = self._carry(tensors[-1], self.y, self.x, batch)
        if self.stays and self._rank == self.source:
            arrays.add_into(x, tensors[0])
        return x

    def _carry(self, array: Array, sent: Tensor, received: Tensor, batch: tuple[int, ...]) -> Array:
        """Return the local tensor of `received`, which the worker of `sent` sends in one message."""
        source, target = sent.layout.partition.ranks[0], received.layout.partition.ranks[0]
        if source == target == self._rank:  # MPI need not buffer a Send to oneself, so it could block forever
            return arrays.copy(array)
        is_message = received.layout.local_size(target) > 0  # follows from the layout, so both workers agree
        if is_message and self._rank == source:
            transport.over(self.comm, array).Send(arrays.message(array), dest=target, tag=_TAG)
        result = arrays.empty((*received.layout.local_shape(self._rank), *batch), received.dtype, array)
        if is_message and self._rank == target:
            transport.over(self.comm, array).Recv(arrays.message(result), source=source, tag=_TAG)
        return result
