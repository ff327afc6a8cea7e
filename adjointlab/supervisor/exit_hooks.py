"""Exit hooks of a process in a supervised job: files from which its supervisor can tell how the process ended."""

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

A real-time signal where the system has those: programs and batch systems use SIGUSR1. The process is to be ended after it, because a
thread that runs meanwhile may change the stacks that are read, and then the reader crashes.
"""


def install_exit_hooks(folder: Path) -> None:
    """Write to the files of this rank in `folder` until the interpreter ends; see :mod:`adjointlab.supervisor.rank_files`.

    To be called after others have installed their handlers: pytest's faulthandler plugin would redirect the stacks to
    a file of its own. Once in a process, and only in the job (:func:`adjointlab.store.job_log.claimed`): all others leave the
    files alone.
    """
    files, own_pid = RankFiles(folder, launched_rank()), os.getpid()
    if getattr(os._exit, "records_in", None) == folder:
        return
    # Opened now and never closed: in a fatal signal's handler no file can be opened.
    stacks = open(files.path("stacks"), "w", encoding="utf-8")  # noqa: SIM115
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    original_exit = os._exit

    def recording_exit(status: int) -> NoReturn:
        # os._exit runs no atexit function and leaves no signal, so only its caller can be recorded.
        # A fork of this process has the patched function too, and calling os._exit is how a fork should end.
        if os.getpid() == own_pid:
            with suppress(Exception):  # such as a full disk: the process is to end whatever happens here
                stack = "".join(traceback.format_stack(sys._getframe(1)))
                files.path("exit").write_text(f"os._exit({status})\n{stack}", encoding="utf-8")
        original_exit(status)

    recording_exit.records_in = folder  # type: ignore[attr-defined]
    os._exit = recording_exit
    # What a command of the same script has left that came before this one says nothing about it.
    files.path("finished").unlink(missing_ok=True)
    files.path("hooked").touch()

    def finish() -> None:
        path = files.path("finished")
        if os.getpid() == own_pid:
            with suppress(OSError):
                in_folder(path, path.touch)

    atexit.register(finish)


def record_exit_code(folder: Path, code: int) -> None:
    """Record that this process is about to end in order, with an exit code that nothing it does on its way out changes.

    Only the process that the launcher has started does: a command of a script does not say how the script ends.
    """
    files = RankFiles(folder, launched_rank())
    process, path = files.process, files.path("finished")
    if process is not None and process.pid == os.getpid():
        with suppress(OSError):
            in_folder(path, lambda: path.write_text(str(code), encoding="utf-8"))
