"""A few ranks without a world: threads that meet at a barrier, for tests of what lies below the worlds."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest


class Ranks:
    """The communicator of one rank: as much of mpi4py's names as the core uses."""

    def __init__(self, rank: int, board: list[Any], barrier: Barrier) -> None:
        self._rank, self._board, self._barrier = rank, board, barrier

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return len(self._board)

    def allgather(self, value: Any) -> list[Any]:
        self._board[self._rank] = value
        self._barrier.wait(timeout=10)
        values = list(self._board)
        self._barrier.wait(timeout=10)
        return values


def run_on_ranks(size: int, body: Callable[[Ranks], Any]) -> list[Any]:
    """Return the results of `body` on each of `size` ranks."""
    board: list[Any] = [None] * size
    barrier = Barrier(size)

    def run(rank: int) -> Any:
        try:
            return body(Ranks(rank, board, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.fixture(scope="session")
def on_ranks() -> Callable[[int, Callable[[Ranks], Any]], list[Any]]:
    return run_on_ranks
