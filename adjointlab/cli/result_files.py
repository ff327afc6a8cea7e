"""The files that ``adjointlab check`` writes its results to: JSON, JUnit, and what GitHub Actions reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adjointlab.cli.output import (
    STDOUT,
    Output,
    describe_ranks,
    is_replaceable,
    is_standard_output,
    write_json,
    write_text,
)
from adjointlab.cli.startup import UsageError

if TYPE_CHECKING:
    from adjointlab.session import CheckResult
    from adjointlab.worlds.world import World

__all__ = ["ResultFiles", "folder_of_failures", "target"]


@dataclass(frozen=True)
class RunResults:
    """All that files tell of a run: its results so far, its exit code, and whether it is complete."""

    world: World
    results: Sequence[CheckResult]
    code: int
    asked: int  # checks of subjects
    nameless: Sequence[str]
    complete: bool


@dataclass(frozen=True)
class ResultFiles:
    """The files that a user has asked for, by absolute paths; ``-`` is standard output."""

    json: str | None = None
    junit: str | None = None
    html: str | None = None

    @classmethod
    def checked(cls, *, json: str | None, junit: str | None, html: Path | None) -> ResultFiles:
        """The files of the options. Raises :class:`UsageError` for one that cannot be written, before anything is run."""
        return cls(_target("--json", json), _target("--junit", junit), _target("--html", html))

    @property
    def leave_stdout(self) -> bool:
        """Return True if standard output is not for people."""
        return STDOUT in (self.json, self.junit, self.html)

    def save_so_far(self, run: RunResults) -> None:
        """Write the JSON anew, if it goes to a file that may be written more than once."""
        if self.json is not None and self.json != STDOUT and is_replaceable(self.json):
            _save_json(self.json, run)

    def save(self, run: RunResults) -> None:
        """Write all files, on the leader, of a run that is complete or has been ended."""
        from adjointlab.report.junit import as_junit

        if not run.world.is_leader:
            return
        if self.json is not None:
            _save_json(self.json, run)
        if self.junit is not None:
            write_text(self.junit, as_junit(run.results))
        if self.html is not None:
            _save_html(self.html, run)
        _tell_github(run.results, run.asked)


def _save_json(target: str, run: RunResults) -> None:
    from adjointlab.report.json_report import as_data

    world = run.world
    data = as_data(
        run.results,
        world.name,
        world.ranks,
        run.code,
        run.asked,
        complete=run.complete,
        nameless=run.nameless,
    )
    write_json(target, data)


def _save_html(target: str, run: RunResults) -> None:
    from adjointlab.report.html_report import environment, html_report

    write_text(target, html_report(run.results, environment(ranks=describe_ranks(run.world)), run.nameless))


def _tell_github(results: Sequence[CheckResult], asked: int) -> None:
    """In a job of GitHub Actions, print the annotations and add to the job's summary."""
    from adjointlab.report.github import error_commands, is_github, job_summary
    from adjointlab.report.summary import summary

    if not is_github(os.environ):
        return
    for line in error_commands(results):
        Output(to_stderr=True).line(line)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(job_summary(results, summary(results, asked)))
        except OSError as error:
            Output(to_stderr=True).line(f"adjointlab: the job's summary cannot be written: {error}")


def _target(option: str, file: str | Path | None) -> str | None:
    return None if file is None else target(option, str(file))


def target(option: str, name: str) -> str:
    """The absolute path of a file that an option names, or ``-``. Raises :class:`UsageError` where none can be written."""
    if name == STDOUT or is_standard_output(name):
        return STDOUT
    path = Path(name)
    if not path.resolve().parent.is_dir():
        raise UsageError(f"{option}: the folder of {name} does not exist")
    if path.is_dir():
        raise UsageError(f"{option}: {name} is a folder; name a file in it")
    return str(path.absolute())


def folder_of_failures(folder: Path) -> Path:
    """The absolute path of the folder that ``--folder`` names. Raises :class:`UsageError` for what is there and is no folder."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--folder: {folder} is no folder; failures are stored as files in one")
    return folder.absolute()
