"""Tools of the benchmarks: interleaved timings, tables of ratios, and the smallest sizes for trial runs."""

from __future__ import annotations

import os
import statistics
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

__all__ = ["SMOKE", "interleaved", "is_smoke", "least", "print_table", "seconds_per_rank", "words"]

Sized = TypeVar("Sized", int, tuple[Any, ...], list[Any], dict[Any, Any])

SMOKE = "ADJOINTLAB_BENCHMARKS_SMOKE"
"""Set in the environment, it has every script run each of its contestants once, with the least sizes: figures mean nothing then."""

WIDTH = 140
"""Columns of a table: no name of a row is broken into two lines."""


def is_smoke() -> bool:
    """Return True if the script runs only to test that it works."""
    return bool(os.environ.get(SMOKE))


def least(sizes: Sized) -> Sized:
    """Return `sizes`, or in a trial run the first of them alone (1 for a number)."""
    if not is_smoke():
        return sizes
    if isinstance(sizes, int):
        return 1
    if isinstance(sizes, dict):
        return dict(list(sizes.items())[:1])
    return sizes[:1]


def words(description: str | None, legal: Collection[str] = ()) -> list[str]:
    """Return the command-line words, each of which must be among `legal`. ``--help`` prints the description; other words end the script."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    if legal:
        parser.add_argument("words", nargs="*", default=[], metavar=" | ".join(legal))
    given: list[str] = vars(parser.parse_args()).get("words", [])
    for word in given:
        if word not in legal:
            parser.error(f"{word!r} is none of {', '.join(legal)}")
    return given


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    repeats: int,
    rounds: int = 15,
    meet: Callable[[], object] = lambda: None,
    summary: Callable[[list[float]], float] = statistics.median,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds for one call of each contestant: the median over rounds in which all run in turn.

    `summary` may be another than the median, and `clock` the processor's. `meet` is called before each timing, so that ranks start together.
    """
    repeats, rounds = least(repeats), least(rounds)
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            meet()
            start = clock()
            for _ in range(repeats):
                call()
            samples[name].append((clock() - start) / repeats)
    return {name: summary(taken) for name, taken in samples.items()}


def seconds_per_rank(
    runs: dict[int, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Seconds per rank of the fastest run, by number of ranks.

    In a round each number has as many ranks in all, so a round takes all of them about as long, and what else the
    machine does, which only adds, hits none more than another.
    """
    most = max(runs)

    def repeated(run: Callable[[], object], ranks: int) -> None:
        for _ in range(most // ranks):
            run()

    contestants = {str(ranks): partial(repeated, run, ranks) for ranks, run in runs.items()}
    for run in contestants.values():
        run()  # starts the threads
    taken = interleaved(contestants, 1, rounds, summary=min, clock=clock)
    return {ranks: taken[str(ranks)] / (most // ranks * ranks) for ranks in runs}


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as plain text: Open MPI gives the ranks a terminal, and tables are also written to files."""
    table = Table(title=title)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=WIDTH, color_system=None).print(table)
