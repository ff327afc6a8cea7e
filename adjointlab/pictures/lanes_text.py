"""Sequence diagrams as characters: a lane for each rank, with time running downwards.

::

    rank 0   1   2
         ├──▶│   │   S(x@0 → y@1)
         │   ├──▶│   S(y@1 → y@2)
"""

from __future__ import annotations

from collections.abc import Iterator

from adjointlab.pictures.lines import Block, Line, Style, line
from adjointlab.pictures.model import Event, Lanes

__all__ = ["lanes_block"]


def lanes_block(lanes: Lanes, width: int) -> Block:
    """Return the lines of the diagram."""
    return tuple(_lines(lanes, width))


def _lines(lanes: Lanes, width: int) -> Iterator[Line]:
    if lanes.title:
        yield line(lanes.title, Style.BOLD)
    step = max(4, max((len(str(rank)) for rank in lanes.ranks), default=1) + 3)
    heading = "".join(str(rank).ljust(step) for rank in lanes.ranks)
    yield (("rank ", Style.DIM), (heading, Style.BOLD))
    for event in lanes.events:
        style = Style.WRONG if event.is_marked else Style.PLAIN
        room = max(10, width - 5 - step * len(lanes.ranks))
        yield (
            (" " * 5, Style.PLAIN),
            (_lane_signs(lanes, event, step), style),
            (event.label if len(event.label) <= room else f"{event.label[: room - 1]}…", style),
        )
    if lanes.left_out:
        yield line(f"     {lanes.left_out} more steps are left out", Style.DIM)


def _lane_signs(lanes: Lanes, event: Event, step: int) -> str:
    signs = list("".join("│".ljust(step) for _ in lanes.ranks))
    places = {rank: number * step for number, rank in enumerate(lanes.ranks)}
    target, source = (
        places.get(event.target),
        places.get(event.target if event.source is None else event.source),
    )
    if target is None or source is None:
        return "".join(signs)
    if source == target:
        signs[target] = "●"
        return "".join(signs)
    low, high = sorted((source, target))
    for place in range(low + 1, high):
        signs[place] = "─"
    if source < target:
        signs[source], signs[target - 1] = "├", "▶"
    else:
        signs[source], signs[target + 1] = "┤", "◀"
    return "".join(signs)
