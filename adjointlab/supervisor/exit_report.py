"""Explains why a job ended abnormally, from the evidence that its ranks and its launcher have left."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Final, NamedTuple

from adjointlab.supervisor.job import JobEnd
from adjointlab.supervisor.rank_files import RankFiles

__all__ = ["ExitReport", "exit_report", "stack_of"]

_PACKAGE: Final = str(Path(__file__).parents[1]) + "/"

_ABORTS: Final = (
    # First our own communicator's message, which has the code that user code gave; then MPICH's, and Open MPI's. MPI_Abort kills all
    # ranks, so the ends of their processes do not show which one called it.
    re.compile(r"adjointlab: rank (?P<rank>\d+) called Abort\((?P<code>-?\d+)\)"),
    re.compile(r"application called MPI_Abort\(.*?, (?P<code>-?\d+)\) - process (?P<rank>\d+)"),
    re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+).*?Errorcode: (?P<code>-?\d+)", re.DOTALL),
)
_CRASHES: Final[Mapping[signal.Signals, str]] = {
    signal.SIGSEGV: "died of a segmentation fault",
    signal.SIGBUS: "died of a bus error",
    signal.SIGFPE: "died of an arithmetic error",
    signal.SIGILL: "died of an illegal instruction",
    signal.SIGABRT: "died by abort()",
}
_REQUESTS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that faults of a program do not raise. If the launcher has sent one, a user or a batch system has ended the job."""

_RUNNERS: Final = ("/site-packages/_pytest/", "/site-packages/pluggy/", "/site-packages/typer/")
"""Code that calls tests and commands, and so is outside of the user's code on a stack."""

_MOST_LINES: Final = 12
"""Lines of a stack, or of the launcher's output, that are shown."""


@dataclass(frozen=True)
class ExitReport:
    """The end of a job.

    `kind` describes it independently of the rank; `ranks` describes the ends of individual ranks, as far as known; `lines`
    are further evidence, with labels.
    """

    kind: str
    ranks: dict[int, str]
    lines: tuple[tuple[str, str], ...] = ()
    signal: int = 0  # the signal by which the job was ended from outside; then no subject is to blame


class _Frame(NamedTuple):
    """A frame of a stack as Python prints it."""

    file: str
    line: str
    function: str

    @property
    def is_ours(self) -> bool:
        """True for frames of this package, and of code without a file such as ``<frozen runpy>``."""
        return self.file.startswith((_PACKAGE, "<"))

    @property
    def is_runner(self) -> bool:
        return any(part in self.file for part in _RUNNERS)

    @property
    def is_users(self) -> bool:
        """True if it is neither ours nor in the standard library or an installed package."""
        return not self.is_ours and "/lib/python3" not in self.file

    def __str__(self) -> str:
        path, here = Path(self.file), Path.cwd()
        shown = str(path.relative_to(here)) if path.is_relative_to(here) else self.file
        return f"{shown}:{self.line} in {self.function}"


def exit_report(folder: Path, ranks: int, end: JobEnd, *, simulated: bool = False) -> ExitReport:
    """Explain the `end` of a job on `ranks` ranks, whose files are in `folder`. `simulated` ranks share one process."""
    report = _report_of_ranks(folder, ranks, end)
    if not simulated or report.signal:
        return report
    lines = [(label.removesuffix(" of rank 0"), text) for label, text in report.lines]
    if not end.stuck_reason:
        lines = [*(("process", reason) for reason in report.ranks.values()), *lines]
    return ExitReport(report.kind.replace("a rank", "the process of the ranks"), {}, tuple(lines))


def _report_of_ranks(folder: Path, ranks: int, job_end: JobEnd) -> ExitReport:
    files = [RankFiles(folder, rank) for rank in range(ranks)]
    # The order matters: when a job was stuck, or after MPI_Abort, ranks were ended by others, so the ends in the
    # ranks' own files are irrelevant.
    if job_end.stuck_reason:
        stacks = {file.rank: stack for file in files if (stack := stack_of(file.text("stacks")))}
        where = {rank: f"ended with the job, at {_location(stack)}" for rank, stack in stacks.items()}
        lines = [("because", job_end.stuck_reason)]
        lines += [(f"stack of rank {rank}", stack) for rank, stack in stacks.items()]
        return ExitReport("the job got stuck", where, tuple(lines))
    for pattern in _ABORTS:
        if abort := pattern.search(job_end.stderr_tail):
            how = f"called MPI_Abort({abort['code']})"
            return ExitReport(f"a rank {how}", {int(abort["rank"]): f"it {how}"})
    ends = {file.rank: end for file in files if (end := file.end) is not None and not end.regular}
    if not ends:
        output = [line for line in job_end.stderr_tail.splitlines() if line.strip()]
        shown = (("last output", "\n".join(output[-_MOST_LINES:])),) if output else ()
        return ExitReport(f"the launcher ended the job with exit code {job_end.exit_code}", {}, shown)
    # Once one rank is gone, the launcher kills the others: only the first end shows the cause.
    first = min(ends, key=lambda rank: ends[rank].at)
    status, asked_by = ends[first].status, ends[first].asked_by
    if asked_by in _REQUESTS:
        return ExitReport("the job was ended from outside", {}, signal=asked_by)
    exit_call = files[first].text("exit")
    how = _describe(status, exit_call)
    stack = stack_of(exit_call) or stack_of(files[first].text("stacks"))
    location = f" at {_location(stack)}" if stack else ""
    evidence = ((f"stack of rank {first}", stack),) if stack else ()
    return ExitReport(f"a rank {how}", {first: f"it {how}{location}"}, evidence)


def stack_of(text: str) -> str:
    """Return the frames outside this package of the most relevant stack in `text`, innermost first.

    `text` is the output of Python's ``faulthandler`` or ``traceback``, for one thread or all of them.
    """
    frames = _frames(text)
    if "(most recent call first)" not in text:
        frames.reverse()  # traceback's order; faulthandler's is innermost first
    if "Current thread" in text or "Thread 0x" in text:
        frames = _frames_of_telling_thread(text) or frames
    # From the inside out: our frames (an operator's code may have called us), then the user's, then ours or a test
    # runner's again, which called the user's code.
    rest = list(dropwhile(lambda frame: frame.is_ours, frames))
    outside = list(takewhile(lambda frame: not (frame.is_ours or frame.is_runner), rest))
    if len(outside) == len(rest) < len(frames):
        return ""  # no user code below us: these frames are the program that called us
    return "\n".join(map(str, outside[:_MOST_LINES]))


def _frames_of_telling_thread(text: str) -> list[_Frame]:
    """Return the frames of the thread that crashed; without a crash, of the one that is running user code.

    Each simulated rank has a thread, and all but one of them wait in our code for their turn.
    """
    threads = []
    for part in re.split(r"(?m)^(?=(?:Current thread|Thread) 0x)", text):
        frames = _frames(part)
        if part.startswith("Current thread") and "Fatal Python error" in text:
            return frames
        threads.append(frames)
    return max(
        threads,
        key=lambda frames: (bool(frames) and frames[0].is_users, sum(frame.is_users for frame in frames)),
        default=[],
    )


def _frames(text: str) -> list[_Frame]:
    # traceback writes a comma after the line number, faulthandler does not.
    return [_Frame(*found) for found in re.findall(r'  File "([^"]+)", line (\d+),? in (\S+)', text)]


def _location(stack: str) -> str:
    """Return the innermost frame of the user's own code, else the innermost of a library."""
    frames = stack.splitlines()
    return next((frame for frame in frames if "/lib/python3" not in frame), frames[0])


def _describe(status: int, exit_call: str) -> str:
    """Verb phrase for the end of a process."""
    if exit_call:
        return f"left by {exit_call.splitlines()[0]}"
    if status >= 0:
        return (
            f"left with exit code {status}, without running exit handlers (os._exit or exit() in a library?)"
        )
    try:
        number = signal.Signals(-status)
    except ValueError:  # a real-time signal: only the first and the last have names
        return f"was ended by signal {-status}"
    if number is signal.SIGKILL:
        return "was killed (SIGKILL, as the system does when memory runs out)"
    return f"{_CRASHES.get(number, 'was ended by a signal')} ({number.name})"
