"""One job under supervision: it is started, watched, and ended with all its processes."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from adjointlab.store.running_case import NAME
from adjointlab.supervisor.exit_hooks import STACKS
from adjointlab.supervisor.launcher import Launcher
from adjointlab.supervisor.output import Output
from adjointlab.supervisor.processes import descendants, die_with_parent, end_all

__all__ = ["Ended", "Job", "Signals"]

_RANK: Final = Path(__file__).with_name("rank.py")
_TICK: Final = 0.05
_GRACE: Final = 5.0
"""Seconds that the launcher gets to end the job itself once a rank has died, and ranks after a Ctrl-C."""
_BETWEEN: Final = 10
"""How many times longer than in a case nothing may happen elsewhere: while files are imported, in ordinary tests."""


@dataclass(frozen=True)
class Ended:
    """How a job ended: in order, with its exit code; or `stuck` says why it was ended; or it died."""

    code: int | None
    in_order: bool
    said: str  # the end of its standard error
    stuck: str = ""
    leftover: int = 0  # processes that could not be ended


class Signals:
    """Signals that ask the supervisor to end, while it is a context; a second one means at once."""

    def __init__(self) -> None:
        self.number = 0
        self.times = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        self.number = self.number or number
        self.times += 1

    @property
    def code(self) -> int:
        """The exit code of a program that such a signal has ended; 130 for Ctrl-C."""
        return 128 + self.number


class Job:
    """A command on so many ranks, or in one process without a launcher, with its word in `folder`."""

    def __init__(
        self, command: Sequence[str], ranks: int, launcher: Launcher | None, folder: Path, output: Output
    ) -> None:
        before = [] if launcher is None else launcher.command(ranks)
        # Isolated and without site-packages: it shall start quickly, and nothing of the user's may interfere.
        self._command = [*before, sys.executable, "-I", "-S", str(_RANK), str(folder), *command]
        self._environment = {**_looks(), **({} if launcher is None else launcher.environment)}
        self._ranks, self._folder, self._output = ranks, folder, output
        self._spared = frozenset(descendants())

    def run(self, patience: float, signals: Signals) -> Ended:
        """From beginning to end; whatever happens, none of its processes is left."""
        for path in self._folder.glob("rank-*"):
            if path.suffix != ".tests":
                path.unlink()
        process = subprocess.Popen(
            self._command,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is ours to pass on.
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        stuck, left = "", False
        try:
            with selectors.DefaultSelector() as pipes:
                for pipe, is_error in ((process.stdout, False), (process.stderr, True)):
                    assert pipe is not None
                    pipes.register(pipe, selectors.EVENT_READ, is_error)
                stuck = self._watch(process, pipes, patience, signals)
                code = process.poll()
                if code is None:
                    self._dismiss(process, pipes)
                    code = process.poll()
                left = not end_all(self._spared)
                self._drain(pipes, 1.0)
        finally:
            end_all(self._spared)
            process.poll()
        ends = [self._end(rank) for rank in range(self._ranks)]
        in_order = not stuck and all(end is not None and end["regular"] for end in ends)
        if in_order:
            code = max(int(end["status"]) for end in ends if end is not None)
            self._output.release()
        return Ended(code, in_order, self._output.tail, stuck, len(descendants()) if left else 0)

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        pipes: selectors.BaseSelector,
        patience: float,
        signals: Signals,
    ) -> str:
        """Until the job has ended, or has to be; then why it has to, if it does not move."""
        dying: float | None = None
        told = 0
        moved, matched = time.monotonic(), self._traces()
        while process.poll() is None:
            if self._pump(pipes, _TICK) and not self._is_hooked():
                moved = time.monotonic()
            self._output.look()
            now = time.monotonic()
            if (traces := self._traces()) != matched:
                moved, matched = now, traces
            if signals.times > told:
                told = signals.times
                if told > 1:
                    return ""
                self._tell_ranks(signals.number)
                dying = now
            if dying is None and all(self._end(rank) is not None for rank in range(self._ranks)):
                dying = now
            if dying is None and any(self._died(rank) for rank in range(self._ranks)):
                dying = now
            if dying is not None:
                if now - dying > _GRACE:
                    return ""
                continue
            in_case = (self._folder / NAME).exists()
            limit = patience if in_case else patience * _BETWEEN
            if now - moved > limit:
                self._ask_for_stacks(pipes)
                doing = "in one case" if in_case else "between cases"
                return f"nothing has happened for {limit:.0f} s {doing}"
        return ""

    def _dismiss(self, process: subprocess.Popen[bytes], pipes: selectors.BaseSelector) -> None:
        """Let the launcher end its ranks, on other machines too."""
        with suppress(ProcessLookupError):
            process.terminate()
        until = time.monotonic() + 2.0
        while process.poll() is None and time.monotonic() < until:
            self._pump(pipes, _TICK)

    def _ask_for_stacks(self, pipes: selectors.BaseSelector) -> None:
        self._tell_ranks(STACKS, only_hooked=True)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            self._pump(pipes, _TICK)

    def _tell_ranks(self, number: int, *, only_hooked: bool = False) -> None:
        for rank in range(self._ranks):
            place = self._folder / f"rank-{rank}"
            hooked = place.with_suffix(".hooked").exists()
            if (only_hooked and not hooked) or place.with_suffix(".ended").exists():
                continue
            known = _json(place.with_suffix(".pid"))
            if known is not None and known["host"] == os.uname().nodename:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(int(known["pid"]), number)

    def _pump(self, pipes: selectors.BaseSelector, seconds: float) -> bool:
        """Pass on what the job says; whether it said anything."""
        said = False
        if not pipes.get_map():
            time.sleep(seconds)
            return said
        for key, _ in pipes.select(seconds):
            pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                pipes.unregister(pipe)
                pipe.close()
            else:
                self._output.write(data, is_error=key.data)
                said = True
        return said

    def _drain(self, pipes: selectors.BaseSelector, seconds: float) -> None:
        until = time.monotonic() + seconds
        while pipes.get_map() and time.monotonic() < until:
            self._pump(pipes, _TICK)

    def _end(self, rank: int) -> Any:
        return _json(self._folder / f"rank-{rank}.ended")

    def _died(self, rank: int) -> bool:
        end = self._end(rank)
        return end is not None and not end["regular"]

    def _is_hooked(self) -> bool:
        return any(self._folder.glob("rank-*.hooked"))

    def _traces(self) -> dict[str, tuple[int, int]]:
        """What the files look like that a job writes to while it moves."""
        traces = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    seen = entry.stat()
                    traces[entry.name] = (seen.st_mtime_ns, seen.st_size)
        return traces


def _looks() -> dict[str, str]:
    """What tells a job how its output will look: Open MPI gives ranks a terminal, whatever becomes of what they say."""
    looks = {"COLUMNS": str(shutil.get_terminal_size((160, 24)).columns)}
    return looks if sys.stdout.isatty() else looks | {"TERM": "dumb", "NO_COLOR": "1", "PY_COLORS": "0"}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
