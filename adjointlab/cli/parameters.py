"""The shared settings as typer's parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from adjointlab import options
from adjointlab.options import Option

T = TypeVar("T")


def _as_typer(option: Option[T]) -> object:
    """Return typer's declaration of `option`; its default stands in the help, so typer need not show it again."""
    return typer.Option(
        f"--{option.name}",
        min=option.least,
        help=option.full_help,
        metavar=option.metavar,
        show_default=False,
    )


Subjects = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SUBJECT]...",
        help="package.module:name, path/to/file.py:name, or the name of an installed subject. Default: all installed.",
        show_default=False,
    ),
]
Ranks = Annotated[int | None, _as_typer(options.RANKS)]
Device = Annotated[str | None, _as_typer(options.DEVICE)]
Cases = Annotated[int, _as_typer(options.CASES)]
Seed = Annotated[int | None, _as_typer(options.SEED)]
Schedules = Annotated[int, _as_typer(options.SCHEDULES)]
Shrinking = Annotated[float, _as_typer(options.SHRINKING)]
Xfails = Annotated[Path | None, _as_typer(options.XFAILS)]
Strict = Annotated[bool, typer.Option("--strict", help=options.STRICT.help)]
Watchdog = Annotated[float | None, _as_typer(options.WATCHDOG)]
Folder = Annotated[Path, _as_typer(options.FOLDER)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print failures only.")]
