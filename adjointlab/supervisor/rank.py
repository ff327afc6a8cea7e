"""The wrapper of a rank: runs the rank's command and records how it ended.

    python -I -S rank.py FOLDER COMMAND...

The launcher starts this program instead of the rank. The supervisor cannot wait for the ranks itself, because they are the
launcher's children and not its own; without a parent that waits, an ``os._exit(0)`` would look like a regular end, and if
several ranks end, it would be unknown which was first.

It imports only the standard library: it is started by its path, isolated and without site-packages (``-I -S``), to
start quickly on many ranks and to be independent of changes to imports in the user's environment.
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
"""The lab's table of launchers. It is loaded by its path, because the lab cannot be imported here."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_SIZE = 512
"""Size of a file in bytes, more than any content needs."""
_UNRECORDED_EXIT = 70
"""Exit code for a command that exited with 0 but not in order: the launcher must detect that a rank is gone."""


def main(folder: str, *command: str) -> NoReturn:
    """Run `command`, and exit in the same way."""
    rank = runpy.run_path(_LAUNCH)["launched_rank"]()
    files = os.path.join(folder, f"rank-{rank}")
    os.environ["ADJOINTLAB_SUPERVISED"] = folder
    # Blocked until the handlers below are installed: a signal between fork and handler would kill this process, and
    # the end of the command would not be recorded.
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
    # A command that does not load the lab installs no hooks; then any exit code counts as an orderly end.
    hooked, finished = os.path.exists(files + ".hooked"), os.path.exists(files + ".finished")
    if status >= 0:
        status = _settled_code(files + ".finished", status)
    regular = status >= 0 and (finished or not hooked)
    _write(files + ".ended", {"status": status, "regular": regular, "at": time.time(), "asked_by": asked_by})
    if finished and regular:
        # The supervisor reads the exit code from the file. Upon a non-zero code, a launcher would kill the ranks
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
    """Execute `command`, in the child."""
    if sys.platform == "linux":
        # If this wrapper is killed, the kernel kills the command, too.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)  # a mask survives exec
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"adjointlab run: {command[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _settled_code(path: str, status: int) -> int:
    """The exit code that the command recorded before user code's exit handlers ran; `status` if it recorded none."""
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return status


def _reserve(path: str) -> None:
    """Reserve the disk space of a file that is written later, when the command may have filled the disk."""
    with contextlib.suppress(OSError), open(path + ".new", "wb") as file:
        file.write(b" " * _SIZE)


def _write(path: str, content: dict[str, object]) -> None:
    """Write a file atomically, because the supervisor may read it at any time."""
    # Padded with blanks, which JSON ignores, to overwrite the reserved space.
    data = json.dumps(content).encode().ljust(_SIZE)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # user code may have removed it
        # Not truncated first, which would release the reserved space.
        file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(file, data)
        finally:
            os.close(file)
        os.replace(path + ".new", path)
    except OSError as error:  # such as a full disk: the command continues all the same
        sys.stderr.write(f"adjointlab run: {path} cannot be written: {error.strerror or error}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
