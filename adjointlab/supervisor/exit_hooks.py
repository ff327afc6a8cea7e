"""Exit hooks of a process in a supervised job, which write files that show its supervisor how the process ended."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from adjointlab.store.files import in_folder
from adjointlab.supervisor.rank_files import RankFiles
from adjointlab.worlds.launch import launched_rank

__all__ = ["STACKS_SIGNAL", "install_exit_hooks", "record_exit_code"]

STACKS_SIGNAL: Final[int] = getattr(signal, "SIGRTMAX", signal.SIGUSR1)
"""The signal upon which a process writes the stacks of its threads.

A real-time signal if the system has those, because programs and batch systems use SIGUSR1. The process must be ended after it: a
running thread may change the stacks while they are read, which can crash the process.
"""


def install_exit_hooks(folder: Path) -> None:
    """Install the hooks that write the files of this rank in `folder`; see :mod:`adjointlab.supervisor.rank_files`.

    Call it after others have installed their handlers: pytest's faulthandler plugin would redirect the stacks to another
    file. Only the first call in a process counts, and only processes of the job
    (:func:`adjointlab.store.job_log.claimed`) may call it.
    """
    files, own_pid = RankFiles(folder, launched_rank()), os.getpid()
    if getattr(os._exit, "records_in", None) == folder:
        return
    # Opened now and never closed, because the handler of a fatal signal cannot open files.
    stacks = open(files.path("stacks"), "w", encoding="utf-8")  # noqa: SIM115
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    original_exit = os._exit

    def recording_exit(status: int) -> NoReturn:
        # os._exit runs no atexit function and leaves no signal, so only its caller can be recorded.
        # A fork of this process has the patched function too, and calling os._exit is how a fork should end.
        if os.getpid() == own_pid:
            with suppress(Exception):  # such as a full disk: the process must end in any case
                stack = "".join(traceback.format_stack(sys._getframe(1)))
                files.path("exit").write_text(f"os._exit({status})\n{stack}", encoding="utf-8")
        original_exit(status)

    recording_exit.records_in = folder  # type: ignore[attr-defined]
    os._exit = recording_exit
    # An earlier command of the same script may have left this file.
    files.path("finished").unlink(missing_ok=True)
    files.path("hooked").touch()

    def finish() -> None:
        path = files.path("finished")
        if os.getpid() == own_pid:
            with suppress(OSError):
                in_folder(path, path.touch)

    atexit.register(finish)


def record_exit_code(folder: Path, code: int) -> None:
    """Record that this process is about to end in order, with an exit code that exit handlers do not change.

    Has an effect only in the process that the launcher has started: a command within a script does not determine how the script ends.
    """
    files = RankFiles(folder, launched_rank())
    process, path = files.process, files.path("finished")
    if process is not None and process.pid == os.getpid():
        with suppress(OSError):
            in_folder(path, lambda: path.write_text(str(code), encoding="utf-8"))
