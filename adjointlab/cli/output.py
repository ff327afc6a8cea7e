"""Printing: to standard output or standard error, on rank 0 only; and JSON files that are whole or not there."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from adjointlab.store.atomic import write_atomically
from adjointlab.worlds.launch import launched_rank

if TYPE_CHECKING:
    from rich.console import RenderableType

    from adjointlab.worlds.world import World

__all__ = ["STDOUT", "Output", "describe_ranks", "write_json"]

STDOUT = "-"
"""The file name that stands for standard output."""


@dataclass(frozen=True)
class Output:
    """Prints on rank 0; nothing on the others."""

    to_stderr: bool = False

    @property
    def console(self) -> Console:
        """A console for the stream, made anew at each use because ``sys.stdout`` may be replaced."""
        stream = sys.stderr if self.to_stderr else sys.stdout
        # Without a terminal rich assumes 80 columns, which would break the lines of tables in files and pipes.
        return Console(file=stream, width=None if stream.isatty() else 160, quiet=launched_rank() != 0)

    def line(self, text: str = "") -> None:
        """Print `text` as it is: no markup, no colours, no line breaks added."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, table: RenderableType) -> None:
        """Print a table of rich."""
        self.console.print(table)


def describe_ranks(world: World) -> str:
    """Return e.g. "4 simulated ranks" or "4 ranks under MPI"."""
    noun = "rank" if world.ranks == 1 else "ranks"
    return f"{world.ranks} {noun} under MPI" if world.can_revoke else f"{world.ranks} simulated {noun}"


def write_json(target: str, data: Mapping[str, object]) -> None:
    """Write `data` to the file `target`, or to standard output for ``-``. A reader never sees half a file."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if target == STDOUT:
        sys.stdout.write(text)
        return
    write_atomically(Path(target), text.encode())
