"""The simulated machine of a run: which ranks share a node, and the order in which a library would place ranks.

MPI leaves both to the implementation and to the launcher [MPI41, sections 7.4.2 and 8.5]. Most developers have a single node, and most
libraries do not reorder ranks even if allowed; so code that relies on either fails elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjointlab.worlds.simulated.schedules.strategy import Strategy

__all__ = ["Machine"]


class Machine:
    """The machine of one run of `size` ranks. Its properties are chosen at the first access, and then fixed."""

    def __init__(self, size: int, strategy: Strategy) -> None:
        self._size, self._strategy = size, strategy
        self._nodes: list[int] = []
        self._places: list[int] = []

    @property
    def nodes(self) -> Sequence[int]:
        """The node number of each rank of the run."""
        if not self._nodes:
            has_several = self._strategy.deviates()
            for _ in range(self._size):
                options = list(range(max(self._nodes, default=-1) + 2))
                self._nodes.append(self._strategy.choose(options) if has_several else 0)
        return self._nodes

    def in_order(self, members: Sequence[int]) -> tuple[int, ...]:
        """Return `members`, ranks of the run, in the order in which the library places them."""
        if not self._places:
            left, is_reordered = list(range(self._size)), self._strategy.deviates()
            while left:
                self._places.append(left[0] if not is_reordered else self._strategy.choose(left))
                left.remove(self._places[-1])
        return tuple(sorted(members, key=self._places.__getitem__))
