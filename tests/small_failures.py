"""A search that ends at the first failure on few ranks, since tests of planted bugs ask for no more."""

from __future__ import annotations

from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.worlds.world import World

__all__ = ["first_small_failure"]


class _SmallEnough(KeyboardInterrupt):
    """Ends a search at once, as an interrupt does."""

    def __init__(self, result: SearchResult) -> None:
        super().__init__()
        self.result = result


def first_small_failure(
    world: World, subject: Subject, check: str, budget: Budget, most_ranks: int
) -> SearchResult:
    """The first failure on `most_ranks` at most, as it was found; the result of the whole search where it comes to none."""

    def found(result: SearchResult) -> None:
        if result.case is not None and result.case.ranks <= most_ranks:
            raise _SmallEnough(result)

    try:
        return investigate(world, subject, check, budget, on_failure=found)
    except _SmallEnough as small:
        return small.result
