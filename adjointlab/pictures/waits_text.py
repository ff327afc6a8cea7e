"""Ranks that wait for each other, as characters: the cycle, and the lines of code where they wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from adjointlab.pictures.lines import Block, Line, Style, line
from adjointlab.pictures.model import Waiting, Waits
from adjointlab.quantities import ranks_listed

__all__ = ["waits_block"]


def waits_block(waits: Waits, width: int) -> Block:
    """Return the lines of the diagram."""
    return tuple(_lines(waits, width))


def _lines(waits: Waits, width: int) -> Iterator[Line]:
    blocked = {each.rank: each for each in waits.waiting if each.is_blocked}
    if waits.cycle:
        yield from _cycle(waits.cycle, width)
    for each in waits.waiting:
        if each.rank not in waits.cycle and each.is_blocked:
            yield _edges(each, blocked)
    for ranks, each in _by_place(waits):
        who = ranks_listed(ranks)
        yield ((f"{who}  ", Style.BOLD), (each.call, Style.PLAIN), (f"  {each.where}", Style.DIM))
        if each.code:
            yield (("    │ ", Style.DIM), (each.code[: max(20, width - 6)], Style.PLAIN))
    if waits.left_out:
        yield line(f"{waits.left_out} more ranks are left out", Style.DIM)


def _cycle(cycle: tuple[int, ...], width: int) -> Iterator[Line]:
    """Draw the ranks of a cycle from left to right, with an arrow back from the last to the first."""
    names = [f"rank {rank}" for rank in cycle]
    text = " ──▶ ".join(names)
    if len(text) > width:
        yield line(" → ".join(map(str, (*cycle, cycle[0]))), Style.WRONG)
        return
    last = text.rindex(names[-1]) + len(names[-1]) // 2
    yield line(text, Style.WRONG)
    if len(cycle) == 1:
        return
    yield line("  ▲".ljust(last) + "│", Style.WRONG)
    yield line("  └".ljust(last, "─") + "┘", Style.WRONG)


def _edges(each: Waiting, blocked: dict[int, Waiting]) -> Line:
    targets = ", ".join(
        f"rank {rank}" + ("" if rank in blocked else " (does not wait)") for rank in each.waits_for[:6]
    )
    more = f" and {len(each.waits_for) - 6} more" if len(each.waits_for) > 6 else ""
    return line(f"rank {each.rank} ──▶ {targets or 'nobody in particular'}{more}", Style.WRONG)


def _by_place(waits: Waits) -> list[tuple[list[int], Waiting]]:
    """Group the ranks that wait in the same call at the same line; its arguments are left out if they differ."""
    found: dict[tuple[str, str], list[Waiting]] = {}
    for each in waits.waiting:
        name = each.call.partition("(")[0] if each.where else each.call
        found.setdefault((name, each.where), []).append(each)
    return [([each.rank for each in group], _in_common(name, group)) for (name, _), group in found.items()]


def _in_common(name: str, group: list[Waiting]) -> Waiting:
    is_alike = all(each.call == group[0].call for each in group)
    return group[0] if is_alike else replace(group[0], call=f"{name}(…)")
