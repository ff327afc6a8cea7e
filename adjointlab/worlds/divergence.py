"""The first collective that ranks called from different places of user code.

Such a collective is legal: the branches of an ``if`` may call it from different lines. But if one rank calls a collective too often, the
extra call may match the next one of the other ranks, and so on, so that only the last call of the run hangs or does not match, at a
line without a fault. So reports of such runs name the collective at which the call sites first differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from adjointlab.quantities import ranks_listed

__all__ = ["Divergence", "Divergences", "Place", "divergence_lines"]


class Place(NamedTuple):
    """The line of user code, as ``file:line``, that called a collective, perhaps in a backward pass of torch."""

    where: str
    in_backward: bool = False

    def __str__(self) -> str:
        return f"{self.where}{' in backward' if self.in_backward else ''}"


class Divergence(NamedTuple):
    """A collective that ranks called from different places: its index on the communicator, and the places by rank of the run."""

    position: int  # counted from 0
    of_ranks: str  # " of ranks 0, 2"; empty for a communicator of all ranks
    places: Callable[[], Mapping[int, Place]]  # looked up only for a report
    is_of_passes: bool  # some ranks were in a backward pass, and others were not

    def __str__(self) -> str:
        ranks: dict[Place, list[int]] = {}
        for rank, place in self.places().items():
            ranks.setdefault(place, []).append(rank)
        listed = (f"{ranks_listed(by)} at {place}" for place, by in ranks.items())
        return f"collective {self.position + 1}{self.of_ranks} was called from different places: {'; '.join(listed)}"


class Divergences:
    """The divergences of a run that may be reported: the first one, and the first between forward and backward."""

    def __init__(self) -> None:
        self._first: Divergence | None = None
        self._first_of_passes: Divergence | None = None

    def wants(self, *, of_passes: bool) -> bool:
        """Return True if a further divergence would be kept."""
        return self._first_of_passes is None and (of_passes or self._first is None)

    def note(self, divergence: Divergence) -> None:
        """Keep `divergence` if it is the first of its kind."""
        self._first = self._first or divergence
        if divergence.is_of_passes:
            self._first_of_passes = self._first_of_passes or divergence

    def lines(self) -> tuple[str, ...]:
        """Line of a report; none if all ranks called from the same places.

        A collective that joins forward and backward has priority: code with a branch for the root has other divergences in every run.
        """
        found = self._first_of_passes or self._first
        return () if found is None else (f"  {found}",)


def divergence_lines(calls: Iterable[tuple[int, str, Mapping[int, Place]]]) -> tuple[str, ...]:
    """Line of a report on `calls`, each with its position, its ranks as in :class:`Divergence`, and the places by rank of the run."""
    found = Divergences()
    for position, of_ranks, places in calls:
        if len(set(places.values())) > 1:
            is_of_passes = len({place.in_backward for place in places.values()}) > 1
            found.note(Divergence(position, of_ranks, lambda places=places: places, is_of_passes))  # type: ignore[misc]
    return found.lines()
