"""One run of a supervised job: starts its processes, watches them, and ends all of them.

::

    adjointlab run                      the supervisor, which adopts orphans (processes.adopt_orphans)
    └── mpiexec -n 2                    in a new session; without a launcher this level is missing
        ├── rank.py FOLDER pytest ...   the wrapper of rank 0, which waits for its rank and records how it ended
        │   └── pytest ...              rank 0
        └── rank.py FOLDER pytest ...
            └── pytest ...              rank 1

MPICH's launcher adds a proxy between itself and the wrappers. Ranks and supervisor communicate only through files
(:mod:`adjointlab.supervisor.rank_files`), signals, and the pipes of the launcher.
"""

from __future__ import annotations

import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adjointlab.store.running_case import NAME
from adjointlab.supervisor.exit_hooks import STACKS_SIGNAL
from adjointlab.supervisor.job_output import Output
from adjointlab.supervisor.launcher import Launcher
from adjointlab.supervisor.processes import descendants, die_with_parent, kill_descendants
from adjointlab.supervisor.rank_files import RankFiles
from adjointlab.supervisor.shared_memory import SharedMemory
from adjointlab.supervisor.stop_signals import StopSignals

__all__ = ["Job", "JobEnd"]

_WRAPPER: Final = Path(__file__).with_name("rank.py")
_TICK: Final = 0.05
_LOOK: Final = 0.25
"""Seconds between two checks for shared memory of the ranks, until they have some."""
_GRACE: Final = 5.0
"""Seconds for the launcher to end the job itself once a rank has died."""
_STOP_GRACE: Final = 3.5
"""Seconds for ranks to end after the supervisor was asked to; with the launcher's, less than the 5 s after which SIGKILL may follow."""
_LAUNCHER_GRACE: Final = 1.0
"""Seconds for the launcher to end its ranks after SIGTERM."""
_OUTSIDE_CASES: Final = 10
"""Factor on the patience outside cases, such as during imports and in ordinary tests."""


@dataclass(frozen=True)
class JobEnd:
    """End of a job: in order, with its exit code; by a crash; or by the supervisor, because it was stuck."""

    exit_code: int | None
    in_order: bool
    stderr_tail: str
    stuck_reason: str = ""
    unkillable: int = 0  # number of processes that could not be ended


class _Ending:
    """The ending phase of a job: when it began, and how long it may take."""

    def __init__(self) -> None:
        self._since, self._grace = math.inf, 0.0

    @property
    def has_begun(self) -> bool:
        return self._since < math.inf

    def begin(self, now: float, grace: float) -> None:
        self._since, self._grace = now, grace

    def is_overdue(self, now: float) -> bool:
        return now - self._since > self._grace


class _Progress:
    """The last time that a job made progress: when its files changed, or when it printed something, if that counts."""

    def __init__(self, now: float, files: dict[str, tuple[int, int]]) -> None:
        self._last, self._files = now, files

    def note(self, now: float, files: dict[str, tuple[int, int]], *, has_printed: bool) -> None:
        if has_printed or files != self._files:
            self._last, self._files = now, files

    def seconds_since(self, now: float) -> float:
        return now - self._last


class Job:
    """A command on `ranks` ranks of a launcher, or in one process without one; its files are in `folder`."""

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        launcher: Launcher | None,
        folder: Path,
        output: Output,
        before_stop: Callable[[int], None] = lambda number: None,
    ) -> None:
        before = [] if launcher is None else launcher.command(ranks)
        self._command = [*before, sys.executable, "-I", "-S", str(_WRAPPER), str(folder), *command]
        self._environment = {**_terminal(), **({} if launcher is None else launcher.environment)}
        self._folder, self._output, self._before_stop = folder, output, before_stop
        self._ranks = [RankFiles(folder, rank) for rank in range(ranks)]
        self._memory = SharedMemory()
        # Earlier children of the supervisor do not belong to the job and are left alone.
        self._unrelated = frozenset(descendants())

    def run(self, patience: float, signals: StopSignals) -> JobEnd:
        """Run the job to its end. None of its processes is left afterwards, even if this raises.

        The job is ended when a rank has died, after `patience` seconds without progress, or upon one of `signals`.
        """
        for path in self._folder.glob("rank-*"):
            if path.suffix != ".tests":  # this file accumulates the results of all jobs
                path.unlink()
        process = self._started()
        try:
            with selectors.DefaultSelector() as pipes:
                for pipe, is_error in ((process.stdout, False), (process.stderr, True)):
                    assert pipe is not None
                    pipes.register(pipe, selectors.EVENT_READ, (pipe, is_error))
                stuck_reason = self._watch(process, pipes, patience, signals)
                self._memory.look(self._processes(self._ranks), again=True)
                exit_code = self._end(process, pipes)
        finally:
            unkillable = kill_descendants(self._unrelated)
            process.poll()
            self._memory.clear()
        ends = [rank.last_end for rank in self._ranks]
        in_order = not stuck_reason and all(end is not None and end.regular for end in ends)
        if in_order:
            # The launcher's own code is useless: it follows from the wrappers' codes, which are 0 for orderly ends (rank.py).
            exit_code = max(end.status for end in ends if end is not None)
            self._output.release()
        return JobEnd(exit_code, in_order, self._output.tail, stuck_reason, unkillable)

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A terminal sends Ctrl-C to its whole foreground group. Only the supervisor should get it: a
            # launcher would kill ranks that are just storing a failure.
            start_new_session=True,
            # If the supervisor is killed, the launcher gets SIGTERM and ends its ranks. (Running Python in a child forked from a
            # process with threads may deadlock on a lock. The only other thread here, a Deadline's, waits in a read and holds none.)
            preexec_fn=die_with_parent,
        )

    def _end(self, process: subprocess.Popen[bytes], pipes: selectors.BaseSelector) -> int | None:
        """End what is left of the job, and pass on the rest of its output; return its exit code, or None if it cannot be ended."""
        if process.poll() is None:
            # First the launcher, because only it can end ranks on other machines; then all that is left here.
            with suppress(PermissionError):  # with sudo it may belong to another user
                process.terminate()
            self._pump_until(lambda: process.poll() is not None, pipes, _LAUNCHER_GRACE)
        exit_code = process.poll()
        kill_descendants(self._unrelated)
        # Only now, because any live descendant would hold the pipes open. With a time limit, because a process
        # that is not a descendant may hold them, too.
        self._pump_until(lambda: not pipes.get_map(), pipes, 1.0)
        return exit_code

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        pipes: selectors.BaseSelector,
        patience: float,
        signals: StopSignals,
    ) -> str:
        """Return when the job has ended or is to be ended; if it is stuck, return the reason, else an empty string."""
        forwarded, looked = 0, 0.0
        ending, progress = _Ending(), _Progress(time.monotonic(), self._state_of_files())
        while process.poll() is None:
            has_printed = self._pump(pipes)
            self._output.release_when_due()
            now = time.monotonic()
            # Output counts as progress only until a rank is hooked. From then on ranks write to files at each new
            # case or test, while a rank in an endless loop may print all the time.
            has_begun = any(rank.is_hooked for rank in self._ranks)
            progress.note(now, self._state_of_files(), has_printed=has_printed and not has_begun)
            if now - looked > _LOOK:
                looked = now
                self._memory.look(self._processes(self._ranks))
            if signals.count > forwarded:
                forwarded = signals.count
                if forwarded > 1:
                    return ""
                self._forward_stop(signals.first)
                ending.begin(now, _STOP_GRACE)
            elif not ending.has_begun:
                self._begin_if_due(ending, now, patience)
            if ending.has_begun:
                # This also handles launchers that do not detect that their ranks are gone.
                if ending.is_overdue(now):
                    return ""
            elif reason := self._stuck_reason(progress.seconds_since(now), patience):
                # Only to hooked ranks, because the signal would kill any other process.
                self._signal([rank for rank in self._ranks if rank.is_hooked], STACKS_SIGNAL)
                self._pump_until(lambda: False, pipes, 0.5)
                return reason
        return ""

    def _forward_stop(self, number: int) -> None:
        """Ask the ranks to stop, because the supervisor has received the signal `number`.

        The ranks rather than the launcher get a signal, so that they store their results and end together. A rank whose process id is
        not known yet misses it, and is ended after the grace period. The signal is always SIGINT, whichever the supervisor has
        received: any other one would kill a rank, because a supervised rank takes it to be from someone else.
        """
        self._before_stop(number)
        self._signal(self._ranks, signal.SIGINT)

    def _begin_if_due(self, ending: _Ending, now: float, patience: float) -> None:
        """Begin the ending phase if the job is ending."""
        if self._is_ending():
            ending.begin(now, _GRACE)
            self._memory.look(self._processes(self._ranks), again=True)
        elif self._has_nothing_left():
            # They may never return from MPI_Finalize, for example if user code has closed their connections.
            ending.begin(now, patience)

    def _stuck_reason(self, idle: float, patience: float) -> str:
        """Message for a job that has made no progress for too long; empty otherwise."""
        in_case = (self._folder / NAME).exists()
        limit = patience if in_case else patience * _OUTSIDE_CASES
        stage = "in one case" if in_case else "between cases"
        return f"nothing has happened for {limit:.0f} s {stage}" if idle > limit else ""

    def _is_ending(self) -> bool:
        """Return True if some rank has died, or all have ended."""
        return any(rank.has_died for rank in self._ranks) or all(rank.end for rank in self._ranks)

    def _has_nothing_left(self) -> bool:
        """Return True if some rank has ended, and every other one has reached the end of its interpreter.

        A rank that still works is not limited as long as it makes progress: with simulated tests, ranks are independent.
        """
        ends = [rank.end is not None for rank in self._ranks]
        return any(ends) and all(
            has_ended or rank.is_finished for has_ended, rank in zip(ends, self._ranks, strict=True)
        )

    def _processes(self, ranks: Sequence[RankFiles]) -> Iterator[int]:
        """The processes of those of `ranks` that run on this machine."""
        for rank in ranks:
            process = rank.process
            # The id of a process that has ended may have been reused.
            if rank.end is None and process is not None and process.host == os.uname().nodename:
                yield process.pid

    def _signal(self, ranks: Sequence[RankFiles], number: int) -> None:
        """Send a signal to those of `ranks` that run on this machine."""
        for process in self._processes(ranks):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)

    def _pump(self, pipes: selectors.BaseSelector) -> bool:
        """Pass on the job's output of one tick; return True if there was any."""
        if not pipes.get_map():  # select() would return at once and the caller's loop spin
            time.sleep(_TICK)
            return False
        has_printed = False
        for key, _ in pipes.select(_TICK):
            pipe, is_error = key.data
            # Not pipe.read(), which would wait for the full number of bytes.
            if data := os.read(key.fd, 1 << 16):
                self._output.write(data, is_error=is_error)
                has_printed = True
            else:
                pipes.unregister(pipe)
                pipe.close()
        return has_printed

    def _pump_until(self, done: Callable[[], bool], pipes: selectors.BaseSelector, seconds: float) -> None:
        """Pass on output until `done`, for `seconds` at the most."""
        until = time.monotonic() + seconds
        while not done() and time.monotonic() < until:
            self._pump(pipes)

    def _state_of_files(self) -> dict[str, tuple[int, int]]:
        """Return time and size of the job's files, which change at each new case or test."""
        state: dict[str, tuple[int, int]] = {}
        # User code may remove the whole folder, and the job then makes it again.
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):  # removed since it was listed
                    stat = entry.stat()
                    state[entry.name] = (stat.st_mtime_ns, stat.st_size)
        return state


def _terminal() -> dict[str, str]:
    """Return the environment variables that describe the supervisor's terminal to the job.

    The job cannot detect it from its own standard output, which is a pipe, or with Open MPI a pseudo-terminal.
    """
    variables = {"COLUMNS": str(shutil.get_terminal_size((160, 24)).columns)}
    if sys.stdout is None or not sys.stdout.isatty():
        variables |= {"TERM": "dumb", "NO_COLOR": "1", "PY_COLORS": "0"}
    return variables
