"""The wrapper of a rank: it runs the rank's command and records how that ended.

    python -I -S rank.py FOLDER COMMAND...

The launcher starts this program in the rank's place. The supervisor cannot wait for the ranks itself, for they are the
launcher's children and not its own; without a parent that waits, an ``os._exit(0)`` looks like a regular end, and of
several ranks that ended nobody knows which was first.

It imports nothing but the standard library: it is started by its path, isolated and without site-packages (``-I -S``), to
start quickly on many ranks and to be out of reach of whatever the user's environment changes about imports.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import runpy
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

_LAUNCH = os.path.join(os.path.dirname(__file__), os.pardir, "worlds", "launch.py")
"""The lab's table of launchers. It is loaded by its path, for the lab cannot be imported here."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_SIZE = 512
"""Bytes of a file, more than any content has."""
_UNRECORDED_EXIT = 70
"""Exit code for a command that left with 0 but out of order: the launcher has to notice that a rank is gone."""


def main(folder: str, *command: str) -> NoReturn:
    """Run `command`, and end as it ends."""
    rank = runpy.run_path(_LAUNCH)["launched_rank"]()
    files = os.path.join(folder, f"rank-{rank}")
    os.environ["ADJOINTLAB_SUPERVISED"] = folder
    # Blocked until the handlers below are installed: a signal between fork and handler would end this process, and
    # nobody would record the end of the command.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        _exec(command)

    asked_by = 0

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal asked_by
        asked_by = asked_by or number
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    _write(files + ".pid", {"pid": child, "host": os.uname().nodename})
    _reserve(files + ".ended")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # A command that does not load the lab installs no hooks; of it any exit code is an orderly end.
    hooked, finished = os.path.exists(files + ".hooked"), os.path.exists(files + ".finished")
    if status >= 0:
        status = _settled_code(files + ".finished", status)
    regular = status >= 0 and (finished or not hooked)
    _write(files + ".ended", {"status": status, "regular": regular, "at": time.time(), "asked_by": asked_by})
    if finished and regular:
        # The supervisor reads the exit code from the file. A launcher that saw one other than 0 would kill the ranks
        # that are still writing their last output.
        os._exit(0)
    if status < 0:
        # Die of the same signal, so that the launcher reports it; the command has left a core file already.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):  # whose disposition cannot be set
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if regular else status or _UNRECORDED_EXIT)


def _exec(command: tuple[str, ...]) -> NoReturn:
    """Become `command`, in the child."""
    if sys.platform == "linux":
        # Should this wrapper be killed, the command is killed with it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)  # a mask survives exec
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"adjointlab run: {command[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _settled_code(path: str, status: int) -> int:
    """The exit code that the command had settled on before user code ran for the last time; `status` where it says none."""
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return status


def _reserve(path: str) -> None:
    """Take the space that a file needs later, which the command may leave none for."""
    with contextlib.suppress(OSError), open(path + ".new", "wb") as file:
        file.write(b" " * _SIZE)


def _write(path: str, content: dict[str, object]) -> None:
    """Write a file that the supervisor may read at any time: whole, or not there."""
    # Blanks, which JSON ignores, in place of what stands in the file.
    data = json.dumps(content).encode().ljust(_SIZE)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # user code may have removed it
        # Written over, for a file that is emptied first loses its space.
        file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(file, data)
        finally:
            os.close(file)
        os.replace(path + ".new", path)
    except OSError as error:  # such as a full disk: the command goes on, and ends as it ends
        sys.stderr.write(f"adjointlab run: {path} cannot be written: {error.strerror or error}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
