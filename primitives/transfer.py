"""TRANSFER: a copy of each worker's local tensor in another memory, of the host or of a device.

    M_{a→b} = D_a S_{a→b} A_b            M*_{a→b} = D_b S_{b→a} A_a = M_{b→a}            [Hewett21, eqs. 14, 15]

a lying in one memory and b in the other. The adjoint of a copy from the host to a device is the copy back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adjointlab.core import arrays
from adjointlab.core.arguments import check_argument
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import Program, buffers_by_rank, move_to_new
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives.validation import check_layout
from adjointlab.typing import Array, Communicator

__all__ = ["StartedTransfer", "Transfer"]


@dataclass(frozen=True)
class StartedTransfer:
    """A transfer that may not be complete yet."""

    array: Array
    mark: Any = None

    def result(self) -> Array:
        """Wait until the copy may be used, and return it. On a device it may be used in the current stream at once."""
        if self.mark is not None:
            self.mark.synchronize()
        return self.array


class Transfer(LinearOperator):
    """x in the memory `source`, as y in the memory `target`: each of "numpy", "torch", "cupy" and "torch-cuda".

    `layout` lays x over its workers, and y too. ``forward(x)`` takes this rank's local tensor in the memory `source` and returns
    a fresh, row-major one in `target`; ``adjoint(y)`` the other way round. No messages. With `pinned` copies between the host and
    a device go through page-locked memory: none blocks, a copy to the host lies in page-locked memory, and
    :meth:`start_forward` and :meth:`start_adjoint` return while it is being made. Only torch's memories take bfloat16.

    Raises `ValueError` for an unknown memory, for an element type that a memory does not have, for ranks beyond the
    communicator's, and in a call for an argument that is not a local tensor in its memory.
    """

    symbol = "M"
    batched = True
    is_identity = False

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        source: str,
        target: str,
        *,
        pinned: bool = True,
        dtype: str = "float64",
    ) -> None:
        check_layout("layout", layout, comm)
        for name, memory in (("source", source), ("target", target)):
            if memory not in arrays.MEMORIES:
                raise ValueError(f"{name}: {memory!r} is not one of {', '.join(arrays.MEMORIES)}")
            if not arrays.supports(memory, dtype):
                raise ValueError(f"dtype: {name} is the memory {memory}, which has no {dtype}")
        self.comm, self.source, self.target, self.pinned = comm, source, target, pinned
        self.x, self.y = Tensor(layout, dtype, name="x"), Tensor(layout, dtype, name="y")
        self.domain, self.codomain = Space(self.x), Space(self.y)
        self.gain = self.fan_in = 1
        self._rank = comm.Get_rank()

    def specification(self) -> Program:
        """Eq. 14 on each worker."""
        x, y = buffers_by_rank(self.domain), buffers_by_rank(self.codomain)
        return Program(x.values(), (step for rank in x for step in move_to_new(x[rank], y[rank])))

    def forward(self, x: Array) -> Array:
        """The local tensor of y."""
        return self.start_forward(x).result()

    def adjoint(self, y: Array) -> Array:
        """The local tensor of the cotangent of x."""
        return self.start_adjoint(y).result()

    def start_forward(self, x: Array) -> StartedTransfer:
        """Start the copy to y; the argument may be written to when this returns, on a device in its current stream."""
        return self._start(x, self.x, self.source, self.target)

    def start_adjoint(self, y: Array) -> StartedTransfer:
        """Start the copy to the cotangent of x; see :meth:`start_forward`."""
        return self._start(y, self.y, self.target, self.source)

    def _start(self, array: Array, tensor: Tensor, source: str, target: str) -> StartedTransfer:
        check_argument(tensor, array, self._rank)
        held = arrays.memory_of(array)
        if held != source:
            raise ValueError(
                f"{tensor.name}: lies in the memory {held} on rank {self._rank}, but it is taken from {source}"
            )
        return StartedTransfer(*arrays.start_transfer(array, target, pinned=self.pinned))
