"""Send-receive between two workers [Hewett21, section 2.2.1].

    copy   C_{a→b} = S_{a→b} A_b            C*_{a→b} = D_b S_{b→a}                               (eqs. 11, 10)
    move   M_{a→b} = D_a S_{a→b} A_b        M*_{a→b} = D_b S_{b→a} A_a = M_{b→a}                 (eqs. 14, 15)

a and b being local tensors on different workers, out of place.
"""

from __future__ import annotations

from typing import Any, Literal

from adjointlab.core import arrays
from adjointlab.core.arguments import check_argument, check_arguments
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import Program, buffers, copy_to_new, move_to_new
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives.validation import check_layout, single_worker

__all__ = ["SendReceive"]

_TAG = 0
"""Of every message: what a caller sends with another tag is the caller's."""


class SendReceive(LinearOperator):
    """The local tensor x of one worker, sent to the worker `destination`, which holds it as y.

    `layout` lays x over a partition of one worker, the source. In the form "copy" x stays: ``forward(x)`` returns
    (x, y) and ``adjoint(x, y)`` returns x + y on the source. In the form "move" x goes: ``forward(x)`` returns y and
    ``adjoint(y)`` sends it back. Wherever a worker holds none of a tensor, it takes or returns one of zero volume.
    All results are fresh arrays.

    Raises `ValueError` for a layout over several workers, an unknown form, ranks beyond the communicator's, and in a
    call, before its message, for a local tensor that is not what the layout says.
    """

    batched = True

    def __init__(
        self,
        comm: Any,
        layout: Layout,
        destination: int,
        *,
        form: Literal["copy", "move"] = "copy",
        dtype: str = "float64",
    ) -> None:
        check_layout("layout", layout, comm.Get_size())
        if layout.partition.size != 1:
            raise ValueError(
                f"layout: lies over the {layout.partition.size} workers of {layout.partition}; send-receive has one "
                "source (Broadcast and SumReduce move tensors between partitions)"
            )
        if form not in ("copy", "move"):
            raise ValueError(f"form: {form!r} is neither 'copy' nor 'move'")
        there = single_worker("destination", destination, layout.partition.order, comm.Get_size())
        arrival = Layout(layout.shape, there, layout.windows, layout.axes)
        self.comm = comm
        self.source, self.destination = layout.partition.ranks[0], destination
        self.x, self.y = Tensor(layout, dtype, name="x"), Tensor(arrival, dtype, name="y")
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

    def forward(self, x: Any) -> Any:
        """(x, y) of a copy, y of a move: local tensors."""
        batch = check_argument(self.x, x, self._rank)
        y = self._carry(x, self.x, self.y, batch)
        return (arrays.copy(x), y) if self.stays else y

    def adjoint(self, *tensors: Any) -> Any:
        """The local tensor of C* (x, y) or M* y, on the source."""
        batch = check_arguments(self.codomain.tensors, tensors, self._rank)
        x = self._carry(tensors[-1], self.y, self.x, batch)
        if self.stays and self._rank == self.source:
            arrays.add_into(x, tensors[0])
        return x

    def _carry(self, array: Any, departure: Tensor, arrival: Tensor, batch: tuple[int, ...]) -> Any:
        """The local tensor of `arrival`, brought from the worker of `departure` by one message."""
        source, target = departure.layout.partition.ranks[0], arrival.layout.partition.ranks[0]
        if source == target == self._rank:
            return arrays.copy(array)
        travels = arrival.layout.local_size(target) > 0
        if travels and self._rank == source:
            self.comm.Send(arrays.message(array), dest=target, tag=_TAG)
        result = arrays.empty((*arrival.layout.local_shape(self._rank), *batch), arrival.dtype, array)
        if travels and self._rank == target:
            self.comm.Recv(arrays.message(result), source=source, tag=_TAG)
        return result
