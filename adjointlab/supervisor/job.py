"""One run of a supervised job: its processes are started, watched, and ended to the last.

::

    adjointlab run                      the supervisor, to which orphans are handed (processes.adopt_orphans)
    └── mpiexec -n 2                    in a session of its own; without a launcher this level is missing
        ├── rank.py FOLDER pytest ...   the wrapper of rank 0, which waits for its rank and records how it ended
        │   └── pytest ...              rank 0
        └── rank.py FOLDER pytest ...
            └── pytest ...              rank 1

MPICH's launcher adds a proxy between itself and the wrappers. Ranks and supervisor have no connection but files
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
"""Seconds between two looks at the memory that ranks share, until they have some."""
_GRACE: Final = 5.0
"""Seconds that the launcher gets to end the job itself once a rank has died."""
_STOP_GRACE: Final = 3.5
"""Seconds that ranks get once the supervisor is told to end; with the launcher's less than the 5 s after which SIGKILL may come."""
_LAUNCHER_GRACE: Final = 1.0
"""Seconds that the launcher gets to end its ranks once it is told to end."""
_OUTSIDE_CASES: Final = 10
"""Factor on the patience outside cases: during imports, in ordinary tests."""


@dataclass(frozen=True)
class JobEnd:
    """End of a job: in order, with its exit code; or by a crash; or by the supervisor, because it was stuck."""

    exit_code: int | None
    in_order: bool
    stderr_tail: str
    stuck_reason: str = ""
    unkillable: int = 0  # processes that are still there


class _Ending:
    """The end of a job: since when it is on its way, and how long it may take."""

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
    """The last time that a job made progress: that its files changed, or that something was printed where that counts."""

    def __init__(self, now: float, files: dict[str, tuple[int, int]]) -> None:
        self._last, self._files = now, files

    def note(self, now: float, files: dict[str, tuple[int, int]], *, has_printed: bool) -> None:
        if has_printed or files != self._files:
            self._last, self._files = now, files

    def seconds_since(self, now: float) -> float:
        return now - self._last


class Job:
    """A command on `ranks` ranks of a launcher, or in one process without; its files stand in `folder`."""

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
        # Children that the supervisor had before are none of the job's and are left alone.
        self._unrelated = frozenset(descendants())

    def run(self, patience: float, signals: StopSignals) -> JobEnd:
        """Run the job to its end. Whatever happens, also an exception here, none of its processes is left.

        It is ended when a rank has died, when nothing has happened for `patience` seconds, or upon one of `signals`.
        """
        for path in self._folder.glob("rank-*"):
            if path.suffix != ".tests":  # the results of all jobs, not of the last one
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
            # The launcher's own code says nothing: it saw the wrappers' codes, which are 0 for orderly ends (rank.py).
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
            # A terminal sends Ctrl-C to its whole foreground group. The supervisor is to be the one that gets it: a
            # launcher would kill ranks that are just storing a failure.
            start_new_session=True,
            # Should the supervisor be killed, the launcher is told to end, and ends its ranks. (Python in a child of a process
            # with threads may wait for a lock for ever. The one other thread here, a Deadline's, waits in a read and has none.)
            preexec_fn=die_with_parent,
        )

    def _end(self, process: subprocess.Popen[bytes], pipes: selectors.BaseSelector) -> int | None:
        """End what is left of the job, and pass on the rest of its output; return its exit code, None for one that cannot be ended."""
        if process.poll() is None:
            # First the launcher, for it alone can end ranks on other machines; then all that is left here.
            with suppress(PermissionError):  # by sudo it may be of another user
                process.terminate()
            self._pump_until(lambda: process.poll() is not None, pipes, _LAUNCHER_GRACE)
        exit_code = process.poll()
        kill_descendants(self._unrelated)
        # Only now: as long as any of them lived, it held the pipes open. With a time limit nevertheless, since
        # a process on this machine that is not a descendant may have been given them.
        self._pump_until(lambda: not pipes.get_map(), pipes, 1.0)
        return exit_code

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        pipes: selectors.BaseSelector,
        patience: float,
        signals: StopSignals,
    ) -> str:
        """Return when the job has ended or is to be ended; in the latter case with the reason if it is stuck."""
        forwarded, looked = 0, 0.0
        ending, progress = _Ending(), _Progress(time.monotonic(), self._state_of_files())
        while process.poll() is None:
            has_printed = self._pump(pipes)
            self._output.release_when_due()
            now = time.monotonic()
            # Output counts as progress only until a rank is hooked. From then on ranks write to files whenever they
            # go on to another case or test, while one that loops may print all the time.
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
                # Also for launchers that do not notice that their ranks are gone.
                if ending.is_overdue(now):
                    return ""
            elif reason := self._stuck_reason(progress.seconds_since(now), patience):
                # Only to hooked ranks: the signal would kill any other process.
                self._signal([rank for rank in self._ranks if rank.is_hooked], STACKS_SIGNAL)
                self._pump_until(lambda: False, pipes, 0.5)
                return reason
        return ""

    def _forward_stop(self, number: int) -> None:
        """Have the ranks stop, for the supervisor was sent the signal `number`.

        To the ranks and not to the launcher: they store what they know and end together. A rank so young that its process number is
        not known misses the signal, and is ended after the grace period. Whatever the supervisor has received, SIGINT: of another signal
        a rank dies, since only somebody else can have sent that.
        """
        self._before_stop(number)
        self._signal(self._ranks, signal.SIGINT)

    def _begin_if_due(self, ending: _Ending, now: float, patience: float) -> None:
        """Note that the job is ending, if it is."""
        if self._is_ending():
            ending.begin(now, _GRACE)
            self._memory.look(self._processes(self._ranks), again=True)
        elif self._has_nothing_left():
            # They may never come back from MPI's end of the process, as those whose connections user code has closed.
            ending.begin(now, patience)

    def _stuck_reason(self, idle: float, patience: float) -> str:
        """Describe a job that has made no progress for too many seconds; empty for any other."""
        in_case = (self._folder / NAME).exists()
        limit = patience if in_case else patience * _OUTSIDE_CASES
        stage = "in one case" if in_case else "between cases"
        return f"nothing has happened for {limit:.0f} s {stage}" if idle > limit else ""

    def _is_ending(self) -> bool:
        """Return True if some rank has died, or all have ended."""
        return any(rank.has_died for rank in self._ranks) or all(rank.end for rank in self._ranks)

    def _has_nothing_left(self) -> bool:
        """Return True if some rank has ended, and each other one has come to the end of its interpreter.

        One that still works has all the time that it makes progress in: ranks of simulated tests share none.
        """
        ends = [rank.end is not None for rank in self._ranks]
        return any(ends) and all(
            has_ended or rank.is_finished for has_ended, rank in zip(ends, self._ranks, strict=True)
        )

    def _processes(self, ranks: Sequence[RankFiles]) -> Iterator[int]:
        """The processes of those of `ranks` that run on this machine."""
        for rank in ranks:
            process = rank.process
            # The number of a process that has ended may be that of another one by now.
            if rank.end is None and process is not None and process.host == os.uname().nodename:
                yield process.pid

    def _signal(self, ranks: Sequence[RankFiles], number: int) -> None:
        """Send a signal to those of `ranks` that run on this machine."""
        for process in self._processes(ranks):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)

    def _pump(self, pipes: selectors.BaseSelector) -> bool:
        """Pass on what the job prints within a moment; return True if it printed anything."""
        if not pipes.get_map():  # select() would return at once and the caller's loop spin
            time.sleep(_TICK)
            return False
        has_printed = False
        for key, _ in pipes.select(_TICK):
            pipe, is_error = key.data
            # Not pipe.read(), which would wait until so many bytes have come.
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
        """Return time and size of the job's files, which change whenever it goes on to another case or test."""
        state: dict[str, tuple[int, int]] = {}
        # User code may remove the whole folder, and the job makes it anew.
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):  # removed since it was listed
                    stat = entry.stat()
                    state[entry.name] = (stat.st_mtime_ns, stat.st_size)
        return state


def _terminal() -> dict[str, str]:
    """Return the variables from which the job learns what its output will look like.

    Its own standard output says nothing about that: it is a pipe, or with Open MPI a terminal made up for the ranks.
    """
    variables = {"COLUMNS": str(shutil.get_terminal_size((160, 24)).columns)}
    if sys.stdout is None or not sys.stdout.isatty():
        variables |= {"TERM": "dumb", "NO_COLOR": "1", "PY_COLORS": "0"}
    return variables
