"""Runs one rank's command and writes down how it ended. Started by path, so it imports nothing but the standard library.

The launcher starts this in the rank's place: ``python rank.py FOLDER COMMAND...``. The processes of a job are the
launcher's children, not the supervisor's, so that nobody else could tell an ``os._exit(0)`` from a regular end, or what
killed whom first.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG
_UNSEEN = 70
"""How this process ends when its command has left without a regular end: not with 0, so that the launcher notices."""


def main(folder: str, *command: str) -> NoReturn:
    """Run `command`, and end as it ends."""
    given = [os.environ[name] for name in _RANKS if os.environ.get(name, "").isdigit()]
    place = os.path.join(folder, f"rank-{given[0] if given else '0'}")
    os.environ["ADJOINTLAB_SUPERVISED"] = folder
    # The marks are in place before a signal can come that is to be passed on.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        _become(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    _write(place + ".pid", {"pid": child, "host": os.uname().nodename})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    hooked, finished = os.path.exists(place + ".hooked"), os.path.exists(place + ".finished")
    regular = status >= 0 and (finished or not hooked)
    _write(place + ".ended", {"status": status, "regular": regular, "at": time.time()})
    if finished and regular:
        # The supervisor has read the code. A launcher that saw it would end the ranks that are still at their last words.
        os._exit(0)
    if status < 0:
        # As it ended itself, which is what the launcher is to see; one core file is enough.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status if regular else status or _UNSEEN)


_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _become(command: tuple[str, ...]) -> NoReturn:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"adjointlab run: {command[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _write(path: str, content: dict[str, object]) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
