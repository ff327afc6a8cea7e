"""How a job ended before its time: the evidence that its ranks and its launcher have left, put into words."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any, Final

__all__ = ["ExitReport", "exit_report", "stack_of"]

_OWN: Final = str(Path(__file__).parents[1]) + "/"
"""The lab's frames, which are not where a rank died."""

_ABORTS: Final = (
    # MPICH, then Open MPI.
    re.compile(r"application called MPI_Abort\(.*?, (?P<code>-?\d+)\) - process (?P<rank>\d+)"),
    re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+).*?Errorcode: (?P<code>-?\d+)", re.DOTALL),
)
_SIGNALS: Final = {
    signal.SIGSEGV: "died of a segmentation fault",
    signal.SIGBUS: "died of a bus error",
    signal.SIGFPE: "died of an arithmetic error",
    signal.SIGILL: "died of an illegal instruction",
    signal.SIGABRT: "died by abort()",
}
_FROM_OUTSIDE: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Nothing goes wrong in this way: somebody has ended the launcher, or a batch system the job."""

_ENTRIES: Final = ("/site-packages/_pytest/", "/site-packages/pluggy/", "/site-packages/typer/")
"""What calls tests and commands; the user's code is what stands inside of it."""

_LIMIT: Final = 12
"""Lines of a stack that are shown."""


@dataclass(frozen=True)
class ExitReport:
    """The kind of an end, the same for all ranks; what became of which rank; what else explains it."""

    kind: str
    ranks: dict[int, str]
    lines: tuple[tuple[str, str], ...] = ()
    signal: int = 0  # with which somebody outside has ended the job


def exit_report(
    folder: Path, ranks: int, said: str, code: int | None, *, stuck: str = "", simulated: bool = False
) -> ExitReport:
    """What the ranks have left in `folder`, what the launcher `said` and the `code` it ended with, and what follows.

    `stuck` says that, and why, the job was ended from outside. Of `simulated` ranks there is one process for all.
    """
    found = _of_ranks(folder, ranks, said, code, stuck)
    if not simulated or found.signal:
        return found
    lines = [(label.removesuffix(" of rank 0"), text) for label, text in found.lines]
    if not stuck:
        lines = [*(("process", reason) for reason in found.ranks.values()), *lines]
    return ExitReport(found.kind.replace("a rank", "the process of the ranks"), {}, tuple(lines))


def _of_ranks(folder: Path, ranks: int, said: str, code: int | None, stuck: str) -> ExitReport:
    if stuck:
        stacks = [(rank, stack_of(_text(folder / f"rank-{rank}.stacks"))) for rank in range(ranks)]
        places = {rank: f"ended with the job, at {_place(stack)}" for rank, stack in stacks if stack}
        lines = [("because", stuck), *((f"stack of rank {rank}", stack) for rank, stack in stacks if stack)]
        return ExitReport("the job stopped moving", places, tuple(lines))
    aborted = next(filter(None, (mark.search(said) for mark in _ABORTS)), None)
    if aborted is not None:
        told = f"called MPI_Abort({aborted['code']})"
        return ExitReport(f"a rank {told}", {int(aborted["rank"]): f"it {told}"})
    ends = {rank: end for rank in range(ranks) if (end := _json(folder / f"rank-{rank}.ended")) is not None}
    irregular = sorted(
        (rank for rank, end in ends.items() if not end["regular"]), key=lambda rank: ends[rank]["at"]
    )
    if not irregular:
        return ExitReport(f"the launcher ended the job with exit code {code}", {}, _overdue_report(said))
    # The others may have been ended on its account.
    first = irregular[0]
    if -(status := ends[first]["status"]) in _FROM_OUTSIDE:
        return ExitReport("the job was ended from outside", {}, signal=-status)
    how = _how(ends[first]["status"], words := _text(folder / f"rank-{first}.words"))
    stack = stack_of(words) or stack_of(_text(folder / f"rank-{first}.stacks"))
    where = f" at {_place(stack)}" if stack else ""
    shown = ((f"stack of rank {first}", stack),) if stack else ()
    return ExitReport(f"a rank {how}", {first: f"it {how}{where}"}, shown)


def stack_of(text: str) -> str:
    """The innermost frames of the first stack in `text`, outside the lab, innermost first."""
    frames = re.findall(r'  File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)', text)
    if "(most recent call first)" not in text:
        frames.reverse()
    if "Current thread" in text or "Thread 0x" in text:
        frames = _of_user_thread(text) or frames
    # The user's code is what the lab calls, though it may itself have called the lab.
    rest = list(dropwhile(_is_own, frames))
    outside = list(takewhile(lambda frame: not (_is_own(frame) or _is_entry(frame)), rest))
    if len(outside) == len(rest) < len(frames):
        return ""  # nothing but the program that has started the lab
    return "\n".join(f"{_short(file)}:{line} in {name}" for file, line, name in outside[:_LIMIT])


def _of_user_thread(text: str) -> list[tuple[str, str, str]]:
    """The frames of the thread that died, else of the one that has most to do with the user's code."""
    found = []
    for part in re.split(r"(?m)^(?=(?:Current thread|Thread) 0x)", text):
        frames = re.findall(r'  File "([^"]+)", line (\d+),? in (\S+)', part)
        if part.startswith("Current thread") and "Fatal Python error" in text:
            return frames
        found.append(frames)
    # A thread that is at work itself, rather than waiting for others in the lab.
    return max(
        found,
        key=lambda frames: (
            bool(frames) and not _is_plumbing(frames[0][0]),
            sum(not _is_plumbing(file) for file, _, _ in frames),
        ),
        default=[],
    )


def _is_own(frame: tuple[str, str, str]) -> bool:
    return frame[0].startswith((_OWN, "<"))


def _is_entry(frame: tuple[str, str, str]) -> bool:
    return any(entry in frame[0] for entry in _ENTRIES)


def _is_plumbing(file: str) -> bool:
    return file.startswith((_OWN, "<")) or "/lib/python3" in file


def _short(file: str) -> str:
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _place(stack: str) -> str:
    """The innermost frame of the user's own, of a library otherwise."""
    frames = stack.splitlines()
    return next((frame for frame in frames if "/lib/python3" not in frame), frames[0])


def _how(status: int, words: str) -> str:
    if words:
        return f"left by {words.splitlines()[0]}"
    if status >= 0:
        return f"left with exit code {status}, without a word (os._exit or exit() in a library?)"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"was ended by signal {-status}"
    if number is signal.SIGKILL:
        return "was killed (SIGKILL, as the system does when memory runs out)"
    return f"{_SIGNALS.get(number, 'was ended by a signal')} ({number.name})"


def _overdue_report(said: str) -> tuple[tuple[str, str], ...]:
    lines = [line for line in said.splitlines() if line.strip()]
    return (("last words", "\n".join(lines[-_LIMIT:])),) if lines else ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
