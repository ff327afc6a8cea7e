"""Typer's command classes, changed to print their help through :class:`~adjointlab.cli.output.Output`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from adjointlab.cli.output import Output

__all__ = ["Command", "CommandGroup"]


def _print_help(context: Any, _parameter: object, is_wanted: bool) -> None:
    # Typer's own printing raises if the reader is gone or the disk is full, and prints on every rank.
    if is_wanted and not context.resilient_parsing:
        Output().line(context.get_help())
        context.exit()


def _printing(option: Any) -> Any:
    if option is not None:
        option.callback = _print_help
    return option


class Command(TyperCommand):
    """A command."""

    def get_help_option(self, ctx: Any) -> Any:
        return _printing(super().get_help_option(ctx))


class CommandGroup(TyperGroup):
    """The program, a group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        return _printing(super().get_help_option(ctx))
