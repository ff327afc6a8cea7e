"""The plugin's options, from the command line or the configuration file, as a profile."""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Mapping
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
from adjointlab.pytest.xdist import is_worker
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
    world: WorldName | None  # None: the launcher's world; simulated without a launcher
    folder: Path
    strict: bool
    watchdog: float | None
    xfails: Path | None
    html: Path | None
    patience: float
    # Names of these settings in messages
    folder_from: str
    xfails_from: str
    html_from: str

    def seed_of(self, subject: str, check: str) -> int:
        """Derive the seed of one coherence test, so that tests draw independently, and one number repeats the session."""
        return zlib.crc32(f"{self.seed}:{subject}:{check}".encode())


def add_options(parser: pytest.Parser) -> None:
    """Add ``--adjointlab-NAME`` to the command line and ``adjointlab_NAME`` to the configuration file."""
    group = parser.getgroup("adjointlab", "distributed adjoints")
    for option in _OPTIONS:
        shape: dict[str, Any] = {"metavar": option.metavar or option.name.upper()}
        if option.choices:
            shape = {"choices": option.choices}
        # No default here, so that options that are not on the command line come from the configuration file.
        group.addoption(f"--adjointlab-{option.name}", default=None, help=option.full_help, **shape)
        parser.addini(_attribute(option), option.full_help, default="")


@dataclass(frozen=True)
class _Settings:
    """The values of options: from the command line, else pytest's configuration file, else the table of pyproject.toml."""

    config: pytest.Config
    table: Mapping[str, object]

    def value(self, option: Option[T]) -> T:
        """Return the value of an option, or its default. Raises `pytest.UsageError` for an illegal value."""
        text = self._text(option)
        if not text and option.name in self.table:
            return cast(T, self.table[option.name])
        if not text:
            return option.default
        try:
            return option.parse(text)
        except ValueError as problem:
            raise pytest.UsageError(f"--adjointlab-{problem}") from None

    def path(self, option: Option[T]) -> Path | None:
        """Return the path of an option, None without one. From the command line it is relative to the current folder, as pytest does."""
        if (named := self.value(option)) is None:
            return None
        is_of_command = bool(self.config.getoption(_attribute(option)))
        return (self.config.invocation_params.dir if is_of_command else self.config.rootpath) / str(named)

    def name_of(self, option: Option[T]) -> str:
        """Return the name of a setting in messages: the key of pyproject.toml if its value comes from there, else the option."""
        is_of_table = not self._text(option) and option.name in self.table
        return key(option.name) if is_of_table else f"--adjointlab-{option.name}"

    def _text(self, option: Option[T]) -> str:
        text: str = self.config.getoption(_attribute(option)) or self.config.getini(_attribute(option))
        return text


def _attribute(option: Option[Any]) -> str:
    return f"adjointlab_{option.name}"


def read_profile(config: pytest.Config, session_seed: int | None) -> Profile:
    """Read the options. `session_seed` is the seed of a supervised session, which is the same in every restart of its job.

    Raises `pytest.UsageError` for an illegal value.
    """
    try:
        settings = _Settings(config, configured(config.rootpath))
    except ValueError as problem:
        raise pytest.UsageError(str(problem)) from None
    if (seed := settings.value(SEED)) is None:
        # A worker of pytest-xdist gets the controller's seed: see `pytest_configure_node`.
        seed = getattr(config, "workerinput", {}).get("adjointlab_seed", session_seed)
    return Profile(
        cases=settings.value(CASES),
        seed=secrets.randbits(32) if seed is None else seed,
        ranks=settings.value(RANKS),
        device=settings.value(DEVICE),
        schedules=settings.value(SCHEDULES),
        world=_world(settings),
        folder=_folder(settings),
        strict=settings.value(STRICT),
        watchdog=settings.value(WATCHDOG),
        xfails=settings.path(XFAILS),
        html=_page(settings),
        patience=settings.value(PATIENCE),
        folder_from=settings.name_of(FOLDER),
        xfails_from=settings.name_of(XFAILS),
        html_from=settings.name_of(HTML),
    )


def _world(settings: _Settings) -> WorldName | None:
    if (name := settings.value(WORLD)) == "auto":
        return None
    world = WorldName(name)
    if world is WorldName.TORCH and launched_world() != "torch":
        raise pytest.UsageError(
            "--adjointlab-world=torch: start the tests with torchrun, as in torchrun --nproc-per-node 4 -m pytest"
        )
    if world is WorldName.MPI and launched_world() != "mpi":
        raise pytest.UsageError(
            "--adjointlab-world=mpi: start the tests with mpiexec, as in mpiexec -n 4 pytest"
        )
    return world


def _page(settings: _Settings) -> Path | None:
    page, xml = settings.path(HTML), getattr(settings.config.option, "xmlpath", None)
    if page and xml and (twice := named_twice([(settings.name_of(HTML), str(page)), ("--junitxml", xml)])):
        raise pytest.UsageError(twice)
    return page


def _folder(settings: _Settings) -> Path:
    folder = settings.path(FOLDER)
    assert folder is not None  # it has a default
    if os.path.isfile(folder):
        raise pytest.UsageError(f"{settings.name_of(FOLDER)}: {folder} is a file; name a folder")
    return folder


def unwritable(config: pytest.Config, profile: Profile) -> str:
    """Return the reason why this process cannot write its results; empty if it can, or if another process writes them."""
    if launched_rank() != 0 or is_worker(config):
        return ""
    if profile.html is not None and (problem := refused(str(profile.html))):
        return f"{profile.html_from}: {problem}"
    # As in `adjointlab check`, the default folder is not checked, because it is needed only if something fails.
    is_named = profile.folder != config.rootpath / FOLDER.default
    problem = why_unusable(profile.folder) if is_named else ""
    return problem and f"{profile.folder_from}: {problem}"
