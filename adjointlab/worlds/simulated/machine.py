"""The machine that the ranks of a run seem to be on: which of them share a node, and in which order a library would place them.

MPI leaves both to its library and to whoever starts the job [MPI41, sections 7.4.2 and 8.5]. On most desks there is one node, and most
libraries leave ranks in their order where they may reorder them; so code that relies on either fails elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjointlab.worlds.simulated.schedules.strategy import Strategy

__all__ = ["Machine"]


class Machine:
    """The machine of one run of `size` ranks. What it is like is decided when it is first asked for, and stays so."""

    def __init__(self, size: int, strategy: Strategy) -> None:
        self._size, self._strategy = size, strategy
        self._nodes: list[int] = []
        self._places: list[int] = []

    @property
    def nodes(self) -> Sequence[int]:
        """Number of the node of each rank of the run."""
        if not self._nodes:
            has_several = self._strategy.deviates()
            for _ in range(self._size):
                options = list(range(max(self._nodes, default=-1) + 2))
                self._nodes.append(self._strategy.choose(options) if has_several else 0)
        return self._nodes

    def in_order(self, members: Sequence[int]) -> tuple[int, ...]:
        """`members`, ranks of the run, in the order of their places."""
        if not self._places:
            left, is_reordered = list(range(self._size)), self._strategy.deviates()
            while left:
                self._places.append(left[0] if not is_reordered else self._strategy.choose(left))
                left.remove(self._places[-1])
        return tuple(sorted(members, key=self._places.__getitem__))
