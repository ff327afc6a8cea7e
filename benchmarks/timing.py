"""What the benchmarks share: interleaved timings and tables of ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["interleaved", "print_table"]


def interleaved(
    contestants: dict[str, Callable[[], object]],
    repeats: int,
    rounds: int = 15,
    meet: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Seconds for one call of each contestant: the median over rounds in which all of them run side by side.

    `meet` is called before each timing, so that ranks start together.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            meet()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            samples[name].append((time.perf_counter() - start) / repeats)
    return {name: statistics.median(taken) for name, taken in samples.items()}


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output."""
    table = Table(title=title)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
