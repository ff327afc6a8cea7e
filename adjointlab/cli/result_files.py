"""The files that ``adjointlab check`` writes its results to: JSON, JUnit, HTML, and the files of GitHub Actions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from adjointlab.cli.output import (
    CLOSED,
    STDOUT,
    Output,
    is_standard_output,
    is_standard_output_closed,
    write_json,
    write_text,
)
from adjointlab.cli.startup import NotLoaded, UsageError
from adjointlab.exit_codes import ExitCode
from adjointlab.options import FOLDER, RANKS
from adjointlab.report.github_job import is_github, tell_github
from adjointlab.store.files import printable, why_unusable
from adjointlab.store.outputs import is_replaceable, is_source, named_twice, refused
from adjointlab.variables import SUPERVISED
from adjointlab.worlds.interrupts import ended_by, signal_of
from adjointlab.worlds.launch import launched_rank, launched_world

if TYPE_CHECKING:
    from adjointlab.check_result import CheckResult
    from adjointlab.report.junit import NotJudged

__all__ = ["ResultFiles", "RunResults", "folder_of_failures", "target", "tell_of_run"]


@dataclass(frozen=True)
class RunResults:
    """The contents of result files: the results so far, the exit code, and the reason if the run is not complete (else empty)."""

    world: str
    ranks: int
    where: str  # description of the ranks
    results: Sequence[CheckResult] = ()
    code: int = ExitCode.UNJUDGED
    asked: int = 0  # number of checks
    missing: Sequence[NotJudged] = ()  # the checks without a result
    nameless: Sequence[str] = ()
    incomplete: str = ""
    seconds: float | None = None  # the duration, if it is not the sum over the checks
    shard: str = ""  # the part K/N of all checks

    @property
    def notes(self) -> list[str]:
        """Sentences that are written beside the verdicts."""
        return [*filter(None, [self.incomplete]), *self.nameless]

    @property
    def heading(self) -> str:
        """The ranks and the shard, which distinguish the runs of one CI job."""
        return ", ".join(filter(None, [self.where, self.shard and f"shard {self.shard}"]))


@dataclass(frozen=True)
class ResultFiles:
    """The files that a user has requested, as absolute paths; ``-`` is standard output."""

    json: str | None = None
    junit: str | None = None
    html: str | None = None

    @classmethod
    def checked(
        cls, *, json: str | None, junit: str | None, html: Path | None, html_option: str = "--html"
    ) -> ResultFiles:
        """Return the files that the options name. Raises :class:`UsageError`, before anything runs, if one cannot be written."""
        files = cls(_target("--json", json), _target("--junit", junit), _target(html_option, html))
        if problem := named_twice(files._given()):
            raise UsageError(problem)
        return files

    @classmethod
    def named_in(cls, arguments: Sequence[str]) -> ResultFiles:
        """Return the files that a command line names, as absolute paths, as far as they can be found without parsing it."""
        given: dict[str, str] = {}
        for word, following in pairwise((*arguments, "")):
            option, equals, value = word.partition("=")
            is_of_results = option in ("--json", "--junit", "--html")
            if is_of_results and (file := _writable(value if equals else following)):
                given[option.removeprefix("--")] = file
        files = cls(**given)
        return cls() if named_twice(files._given()) else files

    @property
    def are_asked_for(self) -> bool:
        """Return True if there is a file to write."""
        return bool(self._given())

    @property
    def leave_stdout(self) -> bool:
        """Return True if standard output is reserved for results."""
        return STDOUT in (self.json, self.junit, self.html)

    def refuse(self, why: str) -> None:
        """Write that a command was rejected before it had results."""
        if not self.are_asked_for:  # returns early, because the rest imports the engine
            return
        run = RunResults(launched_world() or "simulated", RANKS.default, "", code=ExitCode.USAGE)
        self.save_so_far(replace(run, incomplete=why))

    @contextmanager
    def until_loaded(self, ranks: int | None) -> Iterator[None]:
        """Context for loading the subjects. It first overwrites the files of an earlier run; if it ends with an exception, they say why."""
        world, size = launched_world() or "simulated", ranks or RANKS.default
        run = RunResults(world, size, "", incomplete="the subjects have not been loaded")
        try:
            # Within the `try`, because this imports the engine, and an interrupt during the import must not leave an earlier run's files.
            if problems := self.save_so_far(run):
                raise UsageError(problems[0])
            yield
        except BaseException as error:
            code: int = ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.UNJUDGED
            if isinstance(error, KeyboardInterrupt):
                number = _ending_signal(error)
                code, why = 128 + number, ended_by(number)
            else:
                why = str(error) if isinstance(error, UsageError | NotLoaded) else repr(error)
            refused = replace(run, code=code, incomplete=why)
            self.save_so_far(refused)
            if isinstance(error, KeyboardInterrupt) and launched_rank() == 0:
                Output(to_stderr=True).line(f"adjointlab: while the subjects were loaded, {why}")
                tell_of_run(refused)  # the code that catches other exceptions reports them
            raise

    def save_so_far(self, run: RunResults) -> list[str]:
        """Call :meth:`write` for the files that can be written more than once: the process may end before the next verdict."""
        again = {option: name for option, name in self._given() if name != STDOUT and is_replaceable(name)}
        return ResultFiles(again.get("--json"), again.get("--junit"), again.get("--html")).write(run)

    def save(self, run: RunResults, *, is_final: bool = True) -> bool:
        """Write all files and, if `is_final`, report to GitHub. If a file cannot be written, print the reason and return False."""
        problems = self.write(run)
        for problem in problems:
            Output(to_stderr=True).line(f"adjointlab: {problem}")
        if is_final and launched_rank() == 0:
            tell_of_run(run, problems)
        return not problems

    def write(self, run: RunResults) -> list[str]:
        """Write all files, on the leader; return an error message for each that could not be written."""
        from adjointlab.report.junit import as_junit

        if launched_rank() != 0:
            return []
        problems = []
        if self.junit is not None:
            text = as_junit(run.results, run.missing, run.incomplete, run.nameless)
            problems.append(_naming("--junit", write_text(self.junit, text)))
        if self.html is not None:
            problems.append(_naming("--html", _save_html(self.html, run)))
        # Last, because it contains the exit code, which depends on the other files.
        if self.json is not None:
            problems.append(_naming("--json", _save_json(self.json, run, is_whole=not any(problems))))
        return [problem for problem in problems if problem]

    def _given(self) -> list[tuple[str, str]]:
        options = (("--json", self.json), ("--junit", self.junit), ("--html", self.html))
        return [(option, name) for option, name in options if name is not None]


def _naming(option: str, problem: str) -> str:
    return problem and f"{option}: {problem}"


def _save_json(target: str, run: RunResults, *, is_whole: bool) -> str:
    from adjointlab.report.json_report import as_data

    code = run.code if is_whole else run.code or ExitCode.UNJUDGED
    data = as_data(
        run.results, run.world, run.ranks, code, run.asked, complete=not run.incomplete, nameless=run.notes
    )
    return write_json(target, data)


def _save_html(target: str, run: RunResults) -> str:
    from adjointlab.report.html_report import environment, html_report

    return write_text(target, html_report(run.results, environment(ranks=run.where), run.notes))


def tell_of_run(run: RunResults, problems: Sequence[str] = ()) -> None:
    """In a job of GitHub Actions, report a run; `problems` are messages about faults of the run, in addition to `run.incomplete`."""
    from adjointlab.report.github import error_commands, failure_rows, failures
    from adjointlab.report.summary import summary

    if is_github(os.environ):
        failed = failures(run.results)
        tell_github(
            _say,
            run.heading,
            [(each,) for each in (run.incomplete, *problems) if each],
            summary(run.results, run.asked, run.seconds),
            list(error_commands(failed)),
            list(failure_rows(failed)),
        )


def _say(line: str) -> None:
    """Print to standard error on this rank, which may be the only one that has the message."""
    if launched_rank() == 0:
        Output(to_stderr=True).line(line)
    else:
        with suppress(OSError):
            os.write(2, f"{printable(line)}\n".encode(errors="backslashreplace"))


def _writable(file: str) -> str | None:
    """The absolute path of a file that results may be written to; None for standard output too."""
    with suppress(OSError):  # the current folder has been removed
        folder = os.path.dirname(os.path.realpath(file))
        if file not in ("", STDOUT) and os.path.isdir(folder) and not is_source(file):
            return str(Path(file).absolute())
    return None


def _target(option: str, file: str | Path | None) -> str | None:
    return None if file is None else target(option, str(file))


def target(option: str, name: str) -> str:
    """Return the absolute path of the file that an option names, or ``-``. Raises :class:`UsageError` if it cannot be written."""
    if name == STDOUT or is_standard_output(name):
        if is_standard_output_closed():
            raise UsageError(f"{option}: {CLOSED}")
        return STDOUT
    if problem := refused(name):
        raise UsageError(f"{option}: {problem}")
    return str(Path(name).absolute())


def _ending_signal(interrupt: KeyboardInterrupt) -> int:
    """Return the signal that ends the run. A supervisor always sends its job SIGINT, and records the signal that it received itself."""
    if SUPERVISED not in os.environ:  # returns early, because the rest imports the engine
        return signal_of(interrupt)
    from adjointlab.store.job_log import stopped_by

    return stopped_by() or signal_of(interrupt)


def folder_of_failures(folder: Path, option: str = "--folder") -> Path:
    """Return the absolute path of the folder that `option` names. Raises :class:`UsageError` if no failure can be stored there.

    The default folder is only rejected if it exists and is not a folder: a run without a failure stores nothing there.
    """
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{option}: {folder} is not a folder; failures are stored as files in one")
    # Only the first process writes to the folder, and the file systems of other machines may differ.
    if folder != FOLDER.default and launched_rank() == 0 and (problem := why_unusable(folder)):
        raise UsageError(f"{option}: {problem}")
    return folder.absolute()
