"""Report lines on stuck runs that the worlds share, and the search for a cycle of ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = [
    "POLLING",
    "UNBUFFERED_SENDS",
    "cycle_line",
    "find_cycle",
    "heading",
    "is_synchronous",
    "waits_for_text",
]

POLLING: Final = "these ranks poll again and again without progress"
UNBUFFERED_SENDS: Final = "  (a send may wait until it is received: MPI promises no buffering)"


def is_synchronous(call: str) -> bool:
    """Return True for the name of a call that sends a message and always waits until it is received."""
    return call.lower().removeprefix("i").startswith("ss")


def heading(blocked: int, ranks: int) -> str:
    """First line of the report of a deadlock."""
    return f"{blocked} of {ranks} ranks wait, and none can proceed"


def waits_for_text(ranks: Sequence[int], ended: Sequence[bool]) -> str:
    """Return ", waits for rank 1, rank 2 (which has ended)"; empty if there is nobody to wait for."""
    listed = (f"rank {rank}" + (" (which has ended)" if ended[rank] else "") for rank in ranks)
    return f", waits for {', '.join(listed)}" if ranks else ""


def cycle_line(waits_for: Mapping[int, Sequence[int]]) -> tuple[str, ...]:
    """Line of the report that shows the cycle in `waits_for`, as by :func:`find_cycle`; no line if there is none."""
    cycle = find_cycle(waits_for)
    return ("  cycle: " + " → ".join(f"rank {rank}" for rank in [*cycle, cycle[0]]),) if cycle else ()


def find_cycle(waits_for: Mapping[int, Sequence[int]]) -> list[int]:
    """Return ranks each of which waits for the next, and the last for the first; empty if there are none.

    `waits_for` maps each blocked rank to the ranks that it waits for; ranks that are not keys are not blocked. The cycle
    begins at its lowest rank.
    """
    finished: set[int] = set()  # no cycle is reached from these
    # A rank that waits for several may need one of them or all, which is unknown here. So the search starts from ranks
    # that wait for one only, whose cycles are certain.
    for start in sorted(waits_for, key=lambda rank: len(waits_for[rank])):
        # Depth first, with an explicit stack: a cycle of a thousand ranks would exceed Python's recursion limit.
        path, branches = [start], [iter(waits_for[start])]
        while branches:
            rank = next(branches[-1], None)
            if rank is None:
                finished.add(path.pop())
                branches.pop()
            elif rank in path:
                cycle = path[path.index(rank) :]
                lowest = cycle.index(min(cycle))
                return cycle[lowest:] + cycle[:lowest]
            elif rank in waits_for and rank not in finished:
                path.append(rank)
                branches.append(iter(waits_for[rank]))
    return []
