"""Looks at what calls leave behind: a communicator that each call makes and none frees."""

from __future__ import annotations

from typing import Any

from adjointlab.checks.purity import PURITY
from tests.checks.looks.harness import Look, assert_seen, each_of
from tests.checks.looks.operators import Ring, ring

LEAK = "communicators are made in calls and never freed"
SEVERAL_DRAWS = {"dtype": "int32", "gain": 2**20}


class Opens(Ring):
    """Makes communicators in the calls of some directions, as many calls as it is told, and keeps them."""

    def __init__(self, comm: Any, calls: dict[str, int], frees: bool = False, **given: Any) -> None:
        super().__init__(comm, **given)
        self.calls, self.frees, self.open = calls, frees, list[Any]()

    def applied(self, direction: str, step: int, x: Any) -> Any:
        if len(self.seen[direction]) < self.calls.get(direction, 0):
            self.open.append(self.comm.Dup())
            if self.frees:
                self.open.pop().Free()
        return super().applied(direction, step, x)


class OpensOnTheLast(Opens):
    """All ranks but the last free what they make."""

    def __init__(self, comm: Any, **given: Any) -> None:
        super().__init__(comm, frees=comm.Get_rank() < comm.Get_size() - 1, **given)


class OpensAtFirst(Opens):
    """Has one from its constructor on."""

    def __init__(self, comm: Any, **given: Any) -> None:
        super().__init__(comm, calls={}, **given)
        self.open.append(comm.Dup())


EVERY = 10

LOOKS = [
    Look("each forward leaves one", ring(Opens, calls={"forward": EVERY}, **SEVERAL_DRAWS), LEAK),
    Look("each adjoint leaves one", ring(Opens, calls={"adjoint": EVERY}, **SEVERAL_DRAWS), LEAK),
    Look("the last rank leaves one", ring(OpensOnTheLast, calls={"forward": EVERY}, **SEVERAL_DRAWS), "rank     2", 3),
    Look("the first forward keeps one", ring(Opens, calls={"forward": 1}, **SEVERAL_DRAWS), ""),
    Look("the first call of either direction keeps one", ring(Opens, calls={"forward": 1, "adjoint": 1}, **SEVERAL_DRAWS), ""),
    Look("the constructor keeps one", ring(OpensAtFirst, **SEVERAL_DRAWS), ""),
    Look("each call frees its own", ring(Opens, calls={"forward": EVERY, "adjoint": EVERY}, frees=True, **SEVERAL_DRAWS), ""),
]  # fmt: skip


@each_of(LOOKS)
def test_a_look_at_communicators(look: Look) -> None:
    assert_seen(PURITY, look)
