"""Preparation of every command: the version, and the defaults of pyproject.toml."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from adjointlab.cli.output import Output
from adjointlab.cli.startup import UsageError
from adjointlab.configuration import configured

__all__ = ["configure"]

_COMMANDS: Final = {
    "check": (
        "cases", "seed", "ranks", "schedules", "device", "watchdog", "strict", "xfails", "folder", "html",
        "max-time",
    ),
    "exhaust": ("device", "folder"),
    "replay": ("ranks", "watchdog", "strict"),
}  # fmt: skip
"""The options of each command that a configuration file may set."""


def _print_version(wanted: bool) -> None:
    if wanted:
        Output().line(f"adjointlab {version('adjointlab')}")
        raise typer.Exit


def configure(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Set the defaults of the commands from ``[tool.adjointlab]``; the command line takes precedence."""
    try:
        table = configured(Path.cwd())
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    except OSError:  # this folder has been removed
        if context.invoked_subcommand == "info":
            return
        # Hypothesis cannot be imported in a removed folder.
        raise UsageError("the current folder has been removed; go to one that exists") from None
    defaults: dict[str, dict[str, Any]] = {
        command: {name.replace("-", "_"): table[name] for name in names if name in table}
        for command, names in _COMMANDS.items()
    }
    context.default_map = defaults
