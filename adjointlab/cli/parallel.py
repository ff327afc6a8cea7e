"""Running the checks of one command in several processes, each of which runs one check at a time.

::

    adjointlab check --jobs 2            starts the processes, hands out the checks, reports
    ├── adjointlab.cli.parallel_process  loads the subjects, runs the checks it is given
    └── adjointlab.cli.parallel_process

They communicate through a socket only. A process prints to files, so that its output can be printed with the result of the check
that produced it. If a process dies, the check that it was running has no result, and another process replaces it.
"""

from __future__ import annotations

import codecs
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from adjointlab.cli.parallel_messages import MessageKind, Outcome, PlannedCheck, Setup, Surroundings
from adjointlab.variables import COMMAND

__all__ = ["CheckProcesses", "Ended", "Printed", "ending_of"]

_PROGRAM: Final = (
    # Without the current folder, because a file there may have the name of a standard module.
    "import sys; sys.path[:] = [{root!r}, *filter(None, sys.path)]; "
    "from adjointlab.cli.parallel_process import main; main({descriptor})"
)
_LOOK: Final = 0.2
"""Seconds after which the processes are polled even if none has sent a message."""

_SECONDS_TO_STOP: Final = 1.5
"""Seconds that the processes have to end after a signal. With the time to print, less than this process itself has."""

_SECONDS_TO_END: Final = 10.0
"""Seconds that they have to exit when all is done: threads and exit hooks of user code may delay them."""

_CHUNK: Final = 1 << 20


class Printed(NamedTuple):
    """Ranges of the two files that a process prints to, for standard output and standard error."""

    files: tuple[int, int]
    starts: tuple[int, int]
    stops: tuple[int, int]

    def text(self, *, of_stderr: bool) -> Iterator[str]:
        """Yield the text that was printed, in pieces."""
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        position, stop = self.starts[of_stderr], self.stops[of_stderr]
        while position < stop:
            data = os.pread(self.files[of_stderr], min(_CHUNK, stop - position), position)
            if not data:
                break
            position += len(data)
            yield decoder.decode(data)
        yield decoder.decode(b"", final=True)


class Ended(NamedTuple):
    """A check that has ended in a process. If the process died, `death` says how; if it could not send the result, `outcome` is None too."""

    number: int  # in the plan
    outcome: Outcome | None
    death: str
    printed: Printed


class CheckProcesses:
    """Context with up to `count` processes, all of which are ended at its end."""

    def __init__(self, surroundings: Surroundings, count: int, cores: int) -> None:
        self._surroundings, self._count = surroundings, count
        self._setup: Setup | None = None
        self._plan: Sequence[PlannedCheck] = ()
        self._waiting = deque[int]()
        self._processes: list[_Process] = []
        self._ended: list[_Process] = []  # whose files are still to be read
        self._can_start = True
        self._share: Callable[[int], float] = lambda left: math.inf
        self._cores, self._command = cores, {COMMAND: f"{os.getpid()}-{time.monotonic_ns()}"}

    def __enter__(self) -> CheckProcesses:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes at once, even those that run a check."""
        for process in self._processes:
            process.connection.close()
            process.end(time.monotonic())
        for process in (*self._processes, *self._ended):
            process.close_files()
        self._processes, self._ended = [], []

    def prepare(self, setup: Setup) -> None:
        """Send the setup, before there is a plan, to the processes that have been started and to those started later."""
        self._setup = setup
        for process in self._processes:
            process.prepare(setup)

    def run(self, plan: Sequence[PlannedCheck], count: int, share: Callable[[int], float]) -> Iterator[Ended]:
        """Distribute all checks of the plan over `count` processes; yield the checks as they end.

        `share` returns the seconds that a check has for drawing cases, given the number of checks that are left, including this one.
        """
        self._plan, self._waiting, self._count, self._share = plan, deque(range(len(plan))), count, share
        while True:
            self._start_as_many_as_needed()
            if not self._processes or not (self._waiting or self._at_work):
                break
            yield from self._next_ended(_LOOK)
        # No process can be started: the caller runs the remaining checks itself.
        while self._waiting:
            yield Ended(self._waiting.popleft(), None, "", _NOTHING)

    def finish(self) -> Iterator[Printed]:
        """Let all processes exit, which may take a while if threads or exit hooks of user code delay them; yield what they print then."""
        for process in self._processes:
            process.connection.close()
        deadline = time.monotonic() + _SECONDS_TO_END
        for process in self._processes:
            process.end(deadline)
            yield process.printed()

    def interrupt(self, number: int) -> Iterator[Ended]:
        """Pass a signal on to the processes. Yield the checks that end with a result, and finally those whose processes had to be killed.

        A check that is interrupted has a result if it has found a failure.
        """
        self._waiting.clear()
        for process in self._processes:
            process.signal(number)
        deadline = time.monotonic() + _SECONDS_TO_STOP
        while self._at_work and (left := deadline - time.monotonic()) > 0:
            yield from (ended for ended in self._next_ended(min(left, _LOOK)) if ended.outcome is not None)
        for process in [each for each in self._processes if each.index is not None]:
            process.end(time.monotonic())
            yield from self._gone(process)

    def _start_as_many_as_needed(self) -> None:
        while (
            self._can_start
            and len(self._processes) < self._count
            and len(self._processes) - self._at_work < len(self._waiting)
        ):
            self.start_one()

    def start_one(self) -> None:
        """Start a process. This may be done before the setup is known, so that both processes import the engine at the same time."""
        # Libraries with a thread pool would use all cores in each process, unless the user has set the number of threads.
        threads = {"OMP_NUM_THREADS": str(max(1, self._cores // self._count))}
        environment = {**threads, **self._surroundings.environment, **self._command}
        try:
            process = _Process(self._surroundings.folder, environment)
        except OSError:  # for example, not enough memory
            self._can_start = False
            return
        self._processes.append(process)
        if self._setup is not None:
            process.prepare(self._setup)

    @property
    def _at_work(self) -> int:
        """The number of processes that run a check."""
        return sum(each.index is not None for each in self._processes)

    def _next_ended(self, seconds: float) -> Iterator[Ended]:
        """Wait for a message of any process, and yield the checks that have ended."""
        readable = wait([each.connection for each in self._processes], seconds)
        for process in list(self._processes):
            if process.connection in readable:
                yield from self._received(process)
            # Polled, because a fork of a dead process may hold its socket open.
            elif process.popen.poll() is not None and not process.connection.poll():
                yield from self._gone(process)

    def _received(self, process: _Process) -> Iterator[Ended]:
        try:
            message: tuple[str, bytes] = process.connection.recv()
            kind, data = message
            known = set(pickle.loads(data)) if kind == MessageKind.READY else set()  # noqa: S301 - from our own processes
        except Exception:  # the process has ended, or user code has written to the socket
            yield from self._gone(process)
            return
        if kind == MessageKind.FORCED:
            process.ended_by = data.decode(errors="backslashreplace")
            return
        if kind == MessageKind.READY:
            process.is_ready = set(self._plan) <= known
            if not process.is_ready:  # the modules declare other subjects when they are imported again
                yield from self._gone(process)
                return
        elif process.index is not None:
            outcome = _opened(data)
            yield Ended(process.index, outcome, "", process.printed())
            process.index = None
        if kind != MessageKind.INTERRUPTED and self._waiting:
            left = len(self._waiting)
            index = self._waiting.popleft()
            process.begin(index, self._plan[index], self._share(left))

    def _gone(self, process: _Process) -> Iterator[Ended]:
        self._processes.remove(process)
        self._ended.append(process)
        process.connection.close()
        process.end(time.monotonic() + _LOOK)
        if process.index is not None:
            ending = process.ended_by and f"user code ended its process by {process.ended_by}"
            printed = process.printed()
            yield Ended(process.index, None, ending or ending_of(process.popen.returncode), printed)
        elif not process.is_ready:
            # The process died before it was ready, and another one probably would too.
            self._can_start = False


class _Process:
    """One process, with the check that it runs."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.index: int | None = None
        self.is_ready = False
        self.ended_by = ""  # the call by which user code has ended the process
        # Closed by `close_files`, once the output has been read from them.
        self._files = tuple(tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self._sizes = (0, 0)
        ours, theirs = socket.socketpair()
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        try:
            with theirs:
                self.popen = _started(theirs.fileno(), self._files, folder, environment)
        except OSError:
            self.connection.close()
            self.close_files()
            raise

    def prepare(self, setup: Setup) -> None:
        """Send the setup."""
        with suppress(OSError):  # the process has ended
            self.connection.send(setup)

    def begin(self, index: int, check: PlannedCheck, seconds: float) -> None:
        """Start the check with the given index in the plan, which may draw cases for `seconds`."""
        self.index = index
        with suppress(OSError):  # the process has ended, which the next poll notices
            self.connection.send((check, seconds))

    def printed(self) -> Printed:
        """Return what the process has printed since the last call."""
        files = (self._files[0].fileno(), self._files[1].fileno())
        starts, self._sizes = self._sizes, (os.fstat(files[0]).st_size, os.fstat(files[1]).st_size)
        return Printed(files, starts, self._sizes)

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        with suppress(OSError):
            self.popen.send_signal(number)

    def end(self, deadline: float) -> None:
        """Wait for the process until the deadline, then kill its process group."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, deadline - time.monotonic()))
        with suppress(OSError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def close_files(self) -> None:
        """Close the files that the process prints to."""
        for file in self._files:
            file.close()


def _started(
    descriptor: int, files: Sequence[IO[bytes]], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that receives its checks through the socket `descriptor`, and prints to the two files."""
    program = _PROGRAM.format(root=str(Path(__file__).parents[2]), descriptor=descriptor)
    return subprocess.Popen(
        [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", program],  # type: ignore[attr-defined]
        stdin=subprocess.DEVNULL,
        stdout=files[0],
        stderr=files[1],
        pass_fds=[descriptor],
        cwd=folder,
        env=environment,
        # So that a Ctrl-C of the terminal reaches only this process, which passes it on once.
        process_group=0,
    )


_NOTHING: Final = Printed((-1, -1), (0, 0), (0, 0))


def _opened(data: bytes) -> Outcome | None:
    try:
        outcome = pickle.loads(data)  # noqa: S301 - from our own processes
    except Exception:
        return None
    return outcome if isinstance(outcome, Outcome) else None


def ending_of(code: int) -> str:
    """Describe how a process has ended, given its return code as `subprocess` defines it."""
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was ended by {name}"
