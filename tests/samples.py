"""Small operators as users write them: one right, one wrong, one that raises, one that never comes back."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjointlab as al


class RingShift(al.LinearOperator):
    """Moves every worker's block one worker to the right; all blocks are equal in size."""

    gain = fan_in = 1

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout)

    def forward(self, x: Any) -> Any:
        return self.shifted(x, 1)

    def adjoint(self, y: Any) -> Any:
        return self.shifted(y, -1)

    def shifted(self, x: Any, step: int) -> Any:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        result = np.empty(x.shape, x.dtype)
        self.comm.Sendrecv(np.ascontiguousarray(x), (rank + step) % size, 0, result, (rank - step) % size, 0)
        return result


class WrongShift(RingShift):
    """Loses, in the adjoint, the last element that the second rank should get."""

    def adjoint(self, y: Any) -> Any:
        result = self.shifted(y, -1)
        if self.comm.Get_rank() == 1:
            result[-1:] = 0
        return result


class Raising(RingShift):
    """Fails on its second rank."""

    def forward(self, x: Any) -> Any:
        if self.comm.Get_rank() == 1:
            raise RuntimeError("the second rank has had enough")
        return self.shifted(x, 1)


class Hanging(RingShift):
    """Waits for a message that nobody sends."""

    def forward(self, x: Any) -> Any:
        result = np.array(x)
        if self.comm.Get_size() > 1:
            self.comm.Recv(result, (self.comm.Get_rank() + 1) % self.comm.Get_size(), 7)
        return result

    def adjoint(self, y: Any) -> Any:
        return np.array(y)


def equal_blocks(draw: Any, ranks: int) -> dict[str, Any]:
    width = draw(al.strategies.shapes(1, 3))[0]
    return {"layout": al.Layout((ranks * width,), al.Partition((ranks,)))}


@al.subject(RingShift)
def right(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(WrongShift)
def wrong(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(Raising)
def raising(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(Hanging)
def hanging(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(RingShift, name="Undrawable")
def undrawable(draw: Any, ranks: int) -> dict[str, Any]:
    raise ZeroDivisionError("the strategy itself is at fault")


@al.subject(RingShift, name="Incomplete")
def incomplete(draw: Any, ranks: int) -> Any:
    return None


not_a_subject = 3
