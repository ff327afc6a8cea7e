"""The plugin's options, on the command line or in the configuration file, and the profile that they make."""

from __future__ import annotations

import os
import secrets
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import pytest

from adjointlab.configuration import configured, key
from adjointlab.options import (
    CASES,
    DEVICE,
    FOLDER,
    HTML,
    PATIENCE,
    RANKS,
    SCHEDULES,
    SEED,
    STRICT,
    WATCHDOG,
    WORLD,
    XFAILS,
    Option,
)
from adjointlab.store.files import why_unusable
from adjointlab.store.outputs import named_twice, refused
from adjointlab.worlds.launch import launched_rank, launched_world
from adjointlab.worlds.world import WorldName

__all__ = ["Profile", "add_options", "read_profile", "unwritable"]

T = TypeVar("T")


_OPTIONS: Final = (
    CASES,
    SEED,
    SCHEDULES,
    RANKS,
    DEVICE,
    WORLD,
    FOLDER,
    STRICT,
    WATCHDOG,
    XFAILS,
    HTML,
    PATIENCE,
)


@dataclass(frozen=True)
class Profile:
    """The options of a session, read and checked."""

    cases: int
    seed: int
    ranks: int
    device: str | None
    schedules: int
    world: WorldName | None  # None: that of the launcher, and simulated without one
    folder: Path
    strict: bool
    watchdog: float | None
    xfails: Path | None
    html: Path | None
    patience: float
    # Names of the settings in a message
    folder_from: str
    xfails_from: str
    html_from: str

    def seed_of(self, subject: str, check: str) -> int:
        """Derive the seed of one coherence test: tests draw independently, and one number repeats the session."""
        return zlib.crc32(f"{self.seed}:{subject}:{check}".encode())


def add_options(parser: pytest.Parser) -> None:
    """Add ``--adjointlab-NAME`` to the command line and ``adjointlab_NAME`` to the configuration file."""
    group = parser.getgroup("adjointlab", "distributed adjoints")
    for option in _OPTIONS:
        shape: dict[str, Any] = {"metavar": option.metavar or option.name.upper()}
        if option.choices:
            shape = {"choices": option.choices}
        # No default here: what the command line leaves out comes from the configuration file.
        group.addoption(f"--adjointlab-{option.name}", default=None, help=option.full_help, **shape)
        parser.addini(f"adjointlab_{option.name}", option.full_help, default="")


def read_profile(config: pytest.Config, session_seed: int | None) -> Profile:
    """Read the options. `session_seed` is that of a supervised session, the same each time its job is started.

    Raises `pytest.UsageError` for a value that is not legal.
    """
    try:
        table = configured(config.rootpath)
    except ValueError as problem:
        raise pytest.UsageError(str(problem)) from None

    def given(option: Option[T]) -> str:
        name = f"adjointlab_{option.name}"
        text: str = config.getoption(name) or config.getini(name)
        return text

    def value(option: Option[T]) -> T:
        text = given(option)
        if not text and option.name in table:
            return cast(T, table[option.name])
        if not text:
            return option.default
        try:
            return option.parse(text)
        except ValueError as problem:
            raise pytest.UsageError(f"--adjointlab-{problem}") from None

    def named_from(option: Option[T]) -> Path:
        """The folder from which the path of an option is taken: the current one for those of the command line, as pytest does."""
        is_of_command = bool(config.getoption(f"adjointlab_{option.name}"))
        return config.invocation_params.dir if is_of_command else config.rootpath

    def said_by(option: Option[T]) -> str:
        """The name of a setting in a message: the key of pyproject.toml where that has set it, else the option."""
        is_of_table = not given(option) and option.name in table
        return key(option.name) if is_of_table else f"--adjointlab-{option.name}"

    world = None if (name := value(WORLD)) == "auto" else WorldName(name)
    if world is WorldName.TORCH and launched_world() != "torch":
        raise pytest.UsageError(
            "--adjointlab-world=torch: start the tests with torchrun, as in torchrun --nproc-per-node 4 -m pytest"
        )
    if world is WorldName.MPI and launched_world() != "mpi":
        raise pytest.UsageError(
            "--adjointlab-world=mpi: start the tests with mpiexec, as in mpiexec -n 4 pytest"
        )
    if (seed := value(SEED)) is None:
        # A worker of pytest-xdist is given its controller's seed, see `pytest_configure_node`.
        seed = getattr(config, "workerinput", {}).get("adjointlab_seed", session_seed)
    xfails, html, folder = value(XFAILS), value(HTML), named_from(FOLDER) / value(FOLDER)
    xml = getattr(config.option, "xmlpath", None)
    page = None if html is None else named_from(HTML) / html
    if page and xml and (twice := named_twice([(said_by(HTML), str(page)), ("--junitxml", xml)])):
        raise pytest.UsageError(twice)
    if os.path.isfile(folder):
        raise pytest.UsageError(f"{said_by(FOLDER)}: {folder} is a file; name a folder")
    return Profile(
        cases=value(CASES),
        seed=secrets.randbits(32) if seed is None else seed,
        ranks=value(RANKS),
        device=value(DEVICE),
        schedules=value(SCHEDULES),
        world=world,
        folder=folder,
        strict=value(STRICT),
        watchdog=value(WATCHDOG),
        xfails=None if xfails is None else named_from(XFAILS) / xfails,
        html=page,
        patience=value(PATIENCE),
        folder_from=said_by(FOLDER),
        xfails_from=said_by(XFAILS),
        html_from=said_by(HTML),
    )


def unwritable(config: pytest.Config, profile: Profile) -> str:
    """Return the reason why this process cannot write what it will have to; empty if it can, or if others write."""
    if launched_rank() != 0 or hasattr(config, "workerinput"):
        return ""
    if profile.html is not None and (problem := refused(str(profile.html))):
        return f"{profile.html_from}: {problem}"
    # As with `adjointlab check`: the folder that nobody has named is needed only where something fails.
    is_named = profile.folder != config.rootpath / FOLDER.default
    problem = why_unusable(profile.folder) if is_named else ""
    return problem and f"{profile.folder_from}: {problem}"
