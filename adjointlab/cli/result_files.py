"""The files that ``adjointlab check`` writes its results to: JSON, JUnit, and what GitHub Actions reads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adjointlab.cli.output import (
    STDOUT,
    Output,
    is_replaceable,
    is_standard_output,
    write_json,
    write_text,
)
from adjointlab.cli.startup import NotLoaded, UsageError
from adjointlab.exit_codes import ExitCode
from adjointlab.options import RANKS
from adjointlab.worlds.launch import launched_rank, launched_world
from adjointlab.worlds.process import signal_of

if TYPE_CHECKING:
    from adjointlab.report.junit import NotJudged
    from adjointlab.session import CheckResult

__all__ = ["ResultFiles", "RunResults", "ended_by", "folder_of_failures", "target"]


@dataclass(frozen=True)
class RunResults:
    """All that files tell of a run: its results so far, its exit code, and why it is not complete; that is empty if it is."""

    world: str
    ranks: int
    where: str  # the ranks, in words
    results: Sequence[CheckResult] = ()
    code: int = ExitCode.UNJUDGED
    asked: int = 0  # checks of subjects
    missing: Sequence[NotJudged] = ()  # those that have no result
    nameless: Sequence[str] = ()
    incomplete: str = ""

    @property
    def notes(self) -> list[str]:
        """Sentences that stand beside the verdicts."""
        return [*filter(None, [self.incomplete]), *self.nameless]


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

    @classmethod
    def named_in(cls, arguments: Sequence[str]) -> ResultFiles:
        """The files that a command line names, by absolute paths, as far as that can be told without understanding it."""
        given: dict[str, str] = {}
        for position, word in enumerate(arguments):
            option, equals, value = word.partition("=")
            if option in ("--json", "--junit", "--html"):
                value = value if equals else "".join(arguments[position + 1 : position + 2])
                if value not in ("", STDOUT) and Path(value).resolve().parent.is_dir():
                    given[option.removeprefix("--")] = str(Path(value).absolute())
        return cls(**given)

    @property
    def leave_stdout(self) -> bool:
        """Return True if standard output is not for people."""
        return STDOUT in (self.json, self.junit, self.html)

    def refuse(self, why: str) -> None:
        """Write that a command was refused before it had results."""
        run = RunResults(launched_world() or "simulated", RANKS.default, "", code=ExitCode.USAGE)
        self.save_so_far(replace(run, incomplete=why))

    @contextmanager
    def until_loaded(self, ranks: int | None) -> Iterator[None]:
        """Context before there are results: the files say so, and why, if it ends with an exception. Those of an earlier run are gone."""
        world, size = launched_world() or "simulated", ranks or RANKS.default
        run = RunResults(world, size, "", incomplete="the subjects have not been loaded")
        self.save_so_far(run)
        try:
            yield
        except BaseException as error:
            code: int = ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.UNJUDGED
            if isinstance(error, KeyboardInterrupt):
                code, why = 128 + signal_of(error), ended_by(signal_of(error))
            else:
                why = str(error) if isinstance(error, UsageError | NotLoaded) else repr(error)
            refused = replace(run, code=code, incomplete=why)
            self.save_so_far(refused)
            if isinstance(error, KeyboardInterrupt) and launched_rank() == 0:
                Output(to_stderr=True).line(f"adjointlab: while the subjects were loaded, {why}")
                _tell_github(refused)  # of other exceptions those are told who catch them
            raise

    def save_so_far(self, run: RunResults) -> None:
        """Write all files anew that may be written more than once: the process may end before the next verdict."""
        names = (self.json, self.junit, self.html)
        ResultFiles(
            *(name if name and name != STDOUT and is_replaceable(name) else None for name in names)
        ).write(run)

    def save(self, run: RunResults, *, is_final: bool = True) -> bool:
        """Write all files and, if it `is_final`, tell GitHub; return False if a file could not be written."""
        written = self.write(run)
        if is_final and launched_rank() == 0:
            _tell_github(run)
        return written

    def write(self, run: RunResults) -> bool:
        """Write all files, on the leader."""
        from adjointlab.report.junit import as_junit

        if launched_rank() != 0:
            return True
        written = []
        if self.junit is not None:
            written.append(write_text(self.junit, as_junit(run.results, run.missing, run.incomplete)))
        if self.html is not None:
            written.append(_save_html(self.html, run))
        # Last, for it holds the exit code.
        if self.json is not None:
            written.append(_save_json(self.json, run, is_whole=all(written)))
        return all(written)


def ended_by(number: int) -> str:
    """A sentence on a run that a signal has ended."""
    return f"the run was ended by {signal.Signals(number).name}, and is not complete"


def _save_json(target: str, run: RunResults, *, is_whole: bool) -> bool:
    from adjointlab.report.json_report import as_data

    code = run.code if is_whole else run.code or ExitCode.UNJUDGED
    data = as_data(
        run.results,
        run.world,
        run.ranks,
        code,
        run.asked,
        complete=not run.incomplete,
        nameless=run.notes,
    )
    return write_json(target, data)


def _save_html(target: str, run: RunResults) -> bool:
    from adjointlab.report.html_report import environment, html_report

    return write_text(target, html_report(run.results, environment(ranks=run.where), run.notes))


def _tell_github(run: RunResults) -> None:
    """In a job of GitHub Actions, print the annotations and add to the job's summary."""
    from adjointlab.report.github import error_commands, failure_rows, job_summary
    from adjointlab.report.github_job import add_to_summary, is_github, run_error
    from adjointlab.report.summary import summary

    if not is_github(os.environ):
        return
    lines = list(error_commands(run.results))
    if run.incomplete:
        lines.append(run_error(run.incomplete))
    for line in lines:
        Output(to_stderr=True).line(line)
    told = "\n\n".join(filter(None, [run.incomplete, summary(run.results, run.asked)]))
    try:
        add_to_summary(job_summary(told, list(failure_rows(run.results))))
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
