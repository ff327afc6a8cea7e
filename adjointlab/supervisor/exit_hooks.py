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

from adjointlab.store.job_log import HOOKED
from adjointlab.supervisor.rank_files import RankFiles
from adjointlab.worlds.launch import launched_rank

__all__ = ["STACKS_SIGNAL", "install_exit_hooks"]

STACKS_SIGNAL: Final = signal.SIGUSR1
"""The signal upon which a process writes the stacks of its threads."""


def install_exit_hooks(folder: Path) -> None:
    """Write to the files of this rank in `folder` until the interpreter ends; see :mod:`adjointlab.supervisor.rank_files`.

    To be called after others have installed their handlers: pytest's faulthandler plugin would redirect the stacks to
    a file of its own. Only the first process of a rank has hooks. Its children inherit ``ADJOINTLAB_HOOKED`` in the
    environment and leave the files alone.
    """
    files, own_pid = RankFiles(folder, launched_rank()), os.getpid()
    if os.environ.get(HOOKED) == str(own_pid):
        return
    os.environ[HOOKED] = str(own_pid)
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

    os._exit = recording_exit
    files.path("hooked").touch()
    atexit.register(lambda: files.path("finished").touch() if os.getpid() == own_pid else None)
