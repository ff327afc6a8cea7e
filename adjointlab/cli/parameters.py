"""The shared settings as typer parameters."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from adjointlab import options
from adjointlab.configuration import key
from adjointlab.options import Option

T = TypeVar("T")


def _as_typer(option: Option[T]) -> object:
    """Return typer's declaration of `option`. The help contains the default, so typer must not add it again."""

    def refused(problem: ValueError) -> typer.BadParameter:
        return typer.BadParameter(str(problem).removeprefix(f"{option.name}: "))

    def checked(value: T) -> T:
        # typer's own bounds let infinity through.
        try:
            if value is not None:
                option.check(value)
        except ValueError as problem:
            raise refused(problem) from None
        return value

    def parsed(given: str | T) -> T:
        """Parse a path. (typer would accept an empty text as the current folder.)"""
        try:
            return option.parse(given) if isinstance(given, str) else given
        except ValueError as problem:
            raise refused(problem) from None

    return typer.Option(
        f"--{option.name}",
        min=option.least,
        max=option.most if option.most < math.inf else None,
        help=option.full_help,
        metavar=option.metavar or ("<dir>" if option.is_path else None),
        show_default=False,
        callback=checked,
        parser=parsed if option.is_path else None,
    )


def is_configured(context: typer.Context, name: str) -> bool:
    """Return True if the value of the parameter `name` comes from pyproject.toml."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT_MAP"


def option_of(context: typer.Context, name: str) -> str:
    """Return the prefix of a message about an argument: its option, or the key of pyproject.toml if its value comes from there."""
    return key(name) if is_configured(context, name) else f"--{name}"


_COLOUR_VARIABLES: Final = {"always": "FORCE_COLOR", "never": "NO_COLOR", "auto": ""}


def _set_colour(when: str) -> str:
    """Switch rich's colours on or off in this process and those that it starts, through the environment variables that users may also set."""
    if when not in _COLOUR_VARIABLES:
        raise typer.BadParameter(f"{when!r} is not one of {', '.join(_COLOUR_VARIABLES)}")
    if variable := _COLOUR_VARIABLES[when]:
        for each in filter(None, _COLOUR_VARIABLES.values()):
            os.environ.pop(each, None)
        os.environ[variable] = "1"
    return when


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

# The same options with another help text, for commands that draw no cases.
RanksOfReplay = Annotated[
    int | None,
    _as_typer(
        replace(options.RANKS, help="Simulated ranks, at least those of the case.", default_text="as many")
    ),
]
DeviceOfReplay = Annotated[
    str | None,
    _as_typer(
        replace(
            options.DEVICE,
            help="Put the tensors into host memory (cpu), or CUDA device memory (cuda).",
            default_text="as stored",
        )
    ),
]
DeviceOfProofs = Annotated[
    str | None,
    _as_typer(
        replace(
            options.DEVICE,
            help="Use tensors in host memory (cpu), or in CUDA device memory (cuda).",
            default_text="NumPy arrays",
        )
    ),
]
FolderOfProofs = Annotated[Path, _as_typer(replace(options.FOLDER, help="Folder where failures are stored."))]
FolderOfSupervision = Annotated[
    Path,
    _as_typer(replace(options.FOLDER, help="Folder where the supervisor keeps its own files while it runs.")),
]
Cases = Annotated[int, _as_typer(options.CASES)]
Seed = Annotated[int | None, _as_typer(options.SEED)]
Schedules = Annotated[int, _as_typer(options.SCHEDULES)]
Shrinking = Annotated[float, _as_typer(options.SHRINKING)]
Xfails = Annotated[Path | None, _as_typer(options.XFAILS)]
Strict = Annotated[bool, typer.Option("--strict", help=options.STRICT.help)]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="K/N",
        help="Run only the K-th of N parts of the checks; the N parts together are all checks.",
        show_default=False,
    ),
]
Junit = Annotated[
    str | None,
    typer.Option("--junit", metavar="FILE", help="Write the verdicts as a JUnit file.", show_default=False),
]
MaxTime = Annotated[float | None, _as_typer(options.MAX_TIME)]
Watchdog = Annotated[float | None, _as_typer(options.WATCHDOG)]
Folder = Annotated[Path, _as_typer(options.FOLDER)]
Html = Annotated[Path | None, _as_typer(options.HTML)]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print failures only; warn on standard error of what looks like a subject and is not checked.",
    ),
]
Colour = Annotated[
    str,
    typer.Option(
        "--color",
        metavar="WHEN",
        callback=_set_colour,
        is_eager=True,
        help="always, never, or auto: on a terminal, unless NO_COLOR is set.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Print every failure in full, even if an earlier check of the subject has found it too.",
    ),
]
