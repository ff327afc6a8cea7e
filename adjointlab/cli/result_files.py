"""The files that ``adjointlab check`` writes its results to: JSON, JUnit, and what GitHub Actions reads."""

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
    seconds: float | None = None  # that it took, where those are not the sum over the checks
    shard: str = ""  # the part K/N of all checks

    @property
    def notes(self) -> list[str]:
        """Sentences that stand beside the verdicts."""
        return [*filter(None, [self.incomplete]), *self.nameless]

    @property
    def heading(self) -> str:
        """The ranks and the part of the checks, which tell the runs of one job of CI apart."""
        return ", ".join(filter(None, [self.where, self.shard and f"shard {self.shard}"]))


@dataclass(frozen=True)
class ResultFiles:
    """The files that a user has asked for, by absolute paths; ``-`` is standard output."""

    json: str | None = None
    junit: str | None = None
    html: str | None = None

    @classmethod
    def checked(
        cls, *, json: str | None, junit: str | None, html: Path | None, html_option: str = "--html"
    ) -> ResultFiles:
        """The files of the options. Raises :class:`UsageError` for one that cannot be written, before anything is run."""
        files = cls(_target("--json", json), _target("--junit", junit), _target(html_option, html))
        if problem := named_twice(files._given()):
            raise UsageError(problem)
        return files

    @classmethod
    def named_in(cls, arguments: Sequence[str]) -> ResultFiles:
        """The files that a command line names, by absolute paths, as far as that can be told without understanding it."""
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
        """Return True if there is any file to write."""
        return bool(self._given())

    @property
    def leave_stdout(self) -> bool:
        """Return True if standard output is not for people."""
        return STDOUT in (self.json, self.junit, self.html)

    def refuse(self, why: str) -> None:
        """Write that a command was refused before it had results."""
        if not self.are_asked_for:  # else the engine would be imported in vain
            return
        run = RunResults(launched_world() or "simulated", RANKS.default, "", code=ExitCode.USAGE)
        self.save_so_far(replace(run, incomplete=why))

    @contextmanager
    def until_loaded(self, ranks: int | None) -> Iterator[None]:
        """Context before there are results: the files say so, and why, if it ends with an exception. Those of an earlier run are gone."""
        world, size = launched_world() or "simulated", ranks or RANKS.default
        run = RunResults(world, size, "", incomplete="the subjects have not been loaded")
        try:
            # Within: it imports the engine, and an interrupt that comes meanwhile would else leave an earlier run's files.
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
                tell_of_run(refused)  # of other exceptions those are told who catch them
            raise

    def save_so_far(self, run: RunResults) -> list[str]:
        """As :meth:`write`, all files that may be written more than once: the process may end before the next verdict."""
        again = {option: name for option, name in self._given() if name != STDOUT and is_replaceable(name)}
        return ResultFiles(again.get("--json"), again.get("--junit"), again.get("--html")).write(run)

    def save(self, run: RunResults, *, is_final: bool = True) -> bool:
        """Write all files and, if it `is_final`, tell GitHub; return False if a file could not be written, and say why."""
        problems = self.write(run)
        for problem in problems:
            Output(to_stderr=True).line(f"adjointlab: {problem}")
        if is_final and launched_rank() == 0:
            tell_of_run(run, problems)
        return not problems

    def write(self, run: RunResults) -> list[str]:
        """Write all files, on the leader; return a sentence on each that could not be written."""
        from adjointlab.report.junit import as_junit

        if launched_rank() != 0:
            return []
        problems = []
        if self.junit is not None:
            text = as_junit(run.results, run.missing, run.incomplete, run.nameless)
            problems.append(_naming("--junit", write_text(self.junit, text)))
        if self.html is not None:
            problems.append(_naming("--html", _save_html(self.html, run)))
        # Last, for it holds the exit code.
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
    """In a job of GitHub Actions, tell of a run; `problems` are sentences on what is wrong with it, beside its being incomplete."""
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
    """Print to standard error on this rank, which may be the only one that knows."""
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
    """The absolute path of a file that an option names, or ``-``. Raises :class:`UsageError` where none can be written."""
    if name == STDOUT or is_standard_output(name):
        if is_standard_output_closed():
            raise UsageError(f"{option}: {CLOSED}")
        return STDOUT
    if problem := refused(name):
        raise UsageError(f"{option}: {problem}")
    return str(Path(name).absolute())


def _ending_signal(interrupt: KeyboardInterrupt) -> int:
    """The signal that ends the run. A supervisor, whichever it was sent, sends its job SIGINT."""
    if SUPERVISED not in os.environ:  # else the engine would be imported in vain
        return signal_of(interrupt)
    from adjointlab.store.job_log import stopped_by

    return stopped_by() or signal_of(interrupt)


def folder_of_failures(folder: Path, option: str = "--folder") -> Path:
    """The absolute path of the folder that `option` names. Raises :class:`UsageError` where no failure can be stored there.

    Of the folder that nobody has named only what is there and is not a folder: where all is coherent nothing is stored.
    """
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{option}: {folder} is not a folder; failures are stored as files in one")
    # The first process alone writes, and its folders may not be those of processes on other machines.
    if folder != FOLDER.default and launched_rank() == 0 and (problem := why_unusable(folder)):
        raise UsageError(f"{option}: {problem}")
    return folder.absolute()
