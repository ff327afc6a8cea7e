"""Counts of things, and lists of ranks, for messages."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["counted", "ranks_listed"]


def counted(number: int, noun: str, plural: str = "", *, grouped: bool = False) -> str:
    """Return e.g. "1 rank", "2 ranks" or, with a plural, "2 processes"; `grouped` writes a thousand as "1,000"."""
    return f"{number:{',' if grouped else ''}} {noun if number == 1 else plural or noun + 's'}"


def ranks_listed(ranks: Iterable[int]) -> str:
    """Return e.g. "rank 1" or "ranks 0, 2"."""
    numbers = list(map(str, ranks))
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(numbers)}"
