"""The two operators of ``adjointlab demo``: a shift around the ring of ranks, and one whose adjoint goes the wrong way."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab import MPI
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.engine.subject_decorators import subject
from adjointlab.typing import Communicator, NumpyArray

__all__ = ["RightShift", "WrongShift", "right", "wrong"]


class RightShift(LinearOperator):
    """Shifts a vector with `cells` elements on each rank by one rank to the right: y on a rank is x of the previous rank."""

    gain = 1

    def __init__(self, comm: Communicator, cells: int) -> None:
        self.comm, size = comm, comm.Get_size()
        layout = Layout.cut((cells * size,), Partition((size,)), [[cells * rank for rank in range(size + 1)]])
        self.domain, self.codomain = Space(layout), Space(layout, name="y")

    def _sent(self, x: NumpyArray, step: int) -> NumpyArray:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        received = np.empty_like(x, order="C")
        sent = np.ascontiguousarray(x)
        request = self.comm.Irecv(received, (rank - step) % size)
        MPI.Request.Waitall([request, self.comm.Isend(sent, (rank + step) % size)])
        return received

    def forward(self, x: NumpyArray) -> NumpyArray:
        """Send to the right."""
        return self._sent(x, +1)

    def adjoint(self, y: NumpyArray) -> NumpyArray:
        """Send back to the left."""
        return self._sent(y, -1)


class WrongShift(RightShift):
    """The same with a forgotten sign. On two ranks both neighbours are the same rank, so a test on two ranks passes."""

    def adjoint(self, y: NumpyArray) -> NumpyArray:
        """Send to the right again, which is wrong."""
        return self._sent(y, +1)


@subject.operator(RightShift)
def right(draw: DrawFn, ranks: int) -> dict[str, int]:
    """The arguments of one case."""
    return {"cells": draw(st.integers(1, 3))}


@subject.operator(WrongShift)
def wrong(draw: DrawFn, ranks: int) -> dict[str, int]:
    """The arguments of one case."""
    return {"cells": draw(st.integers(1, 3))}
