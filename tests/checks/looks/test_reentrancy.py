"""Looks of the check of reentrancy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from adjointlab.checks.reentrancy import REENTRANCY
from tests.checks.looks.harness import Look, assert_seen, each_of
from tests.checks.looks.operators import Ring, filled_with, on, ring, where

CALLS = 4


def on_call(direction: str, number: int) -> Any:
    """True in the call of that number, counted from 1: the calls on NaN count too, and the first adjoint of all."""
    return lambda operator, _: len(operator.seen[direction]) == number - 1


class KeepsItsResult(Ring):
    """Returns the same memory from each call of one direction."""

    def __init__(self, comm: Any, direction: str, rank: int, **given: Any) -> None:
        super().__init__(comm, **given)
        self.kept: Any = None
        self.direction, self.of_rank = direction, rank % self.size

    def applied(self, direction: str, step: int, x: Any) -> Any:
        result = super().applied(direction, step, x)
        if direction != self.direction or self.rank != self.of_rank:
            return result
        self.kept = result if self.kept is None else self.kept
        self.kept[...] = result
        return self.kept


class SharesItsState(KeepsItsResult):
    """Wrong where another instance was called since its own last call."""

    last: ClassVar[dict[int, Any]] = {}

    def applied(self, direction: str, step: int, x: Any) -> Any:
        result = Ring.applied(self, direction, step, x)
        if direction != self.direction or self.rank != self.of_rank:
            return result
        is_first = len(self.seen[direction]) == 1
        other_has_come, self.last[self.rank] = self.last.get(self.rank) is not self, self
        return 2 * result if other_has_come and not is_first else result


class SharesItsMemory(KeepsItsResult):
    """Adds what the argument that any instance had last differs by from its own last one."""

    last: ClassVar[dict[int, Any]] = {}

    def applied(self, direction: str, step: int, x: Any) -> Any:
        result = Ring.applied(self, direction, step, x)
        if direction != self.direction or self.rank != self.of_rank or np.isnan(x).any():
            return result
        if self.kept is not None:
            result = result + (self.last[self.rank] - self.kept)
        self.kept = self.last[self.rank] = np.array(x)
        return result


class ClearsByArithmetic(Ring):
    """Keeps 0 times its last argument in what it adds to the next result."""

    def __init__(self, comm: Any, direction: str, rank: int, **given: Any) -> None:
        super().__init__(comm, **given)
        self.direction, self.of_rank, self.rest = direction, rank % self.size, 0.0

    def applied(self, direction: str, step: int, x: Any) -> Any:
        result = super().applied(direction, step, x)
        if direction == self.direction and self.rank == self.of_rank:
            result = result + self.rest
            self.rest = 0 * np.array(x)
        return result


class ServedByForward(Ring):
    """Its adjoint receives what a forward has sent beside its own messages: each has its own where forward comes first."""

    def applied(self, direction: str, step: int, x: Any) -> Any:
        result = super().applied(direction, step, x)
        if direction == "forward":
            self.comm.bsend(None, (self.rank + 1) % self.size, 1)
        else:
            self.comm.recv(source=(self.rank - 1) % self.size, tag=1)
        return result


def both(direction: str) -> list[Look]:
    """The looks of a direction."""
    wrong, later = (
        f"{direction} depends on earlier calls",
        f"a later call changes what {direction} has returned",
    )
    before = int(direction == "adjoint")  # the adjoint that comes before any forward

    def on_the(number: int, rank: int = -1) -> Any:
        return ring(**{direction: on(rank, where(on_call(direction, before + number)))})

    return [
        Look(f"{direction}, the second call on rank 0", on_the(2, 0), f"2 of {CALLS}, on return", 3),
        Look(f"{direction}, the second call on the last rank", on_the(2), f"2 of {CALLS}, on return", 3),
        Look(f"{direction}, the third call", on_the(3), f"3 of {CALLS}, on return", 3),
        Look(f"{direction}, the call after NaN", on_the(5), f"4 of {CALLS} (after one with NaN), on return", 3),
        Look(f"{direction}, later calls on rank 0", ring(KeepsItsResult, direction=direction, rank=0), later, 3),
        Look(f"{direction}, later calls on the last rank", ring(KeepsItsResult, direction=direction, rank=-1), later, 3),
        Look(f"{direction}, another instance", ring(SharesItsState, direction=direction, rank=-1), wrong, 3),
        Look(f"{direction}, the data of another instance", ring(SharesItsMemory, direction=direction, rank=-1), wrong, 3),
        Look(f"{direction}, what NaN leaves on rank 0", ring(ClearsByArithmetic, direction=direction, rank=0), "after one with NaN", 3),
        Look(f"{direction}, what NaN leaves on the last rank", ring(ClearsByArithmetic, direction=direction, rank=-1), "after one with NaN", 3),
        Look(f"{direction}, NaN in every instance", ring(**{direction: on(1, filled_with(np.nan))}), f"{direction} returned nan on rank 1"),
    ]  # fmt: skip


LOOKS = [
    *both("forward"),
    *both("adjoint"),
    Look("an adjoint that waits for what a forward sends", ring(ServedByForward), "deadlock"),
    Look("an operator that keeps nothing", ring(), "", 3),
    Look("integers, which have no NaN", ring(dtype="int64"), ""),
]


@each_of(LOOKS)
def test_a_look_of_reentrancy(look: Look) -> None:
    assert_seen(REENTRANCY, look)
