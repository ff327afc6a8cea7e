"""What a process of a supervised job does first: it leaves word of itself, so that its end can be explained."""

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
from adjointlab.worlds.launch import launched_rank

__all__ = ["STACKS", "install_exit_hooks"]

STACKS: Final = signal.SIGUSR1
"""The signal upon which a process writes the stacks of its threads."""


def install_exit_hooks(folder: Path) -> None:
    """Leave word in `folder`, under this process's rank, until the interpreter ends in order.

    - ``rank-R.hooked`` says that an end without ``rank-R.finished`` is none in order;
    - ``rank-R.stacks`` gets the stack upon a fatal signal, and the stacks of all threads upon :data:`STACKS`;
    - ``rank-R.words`` says where ``os._exit`` was called, which nothing else could tell.

    Once the user's own handlers are in place, such as pytest's: they would replace these.
    """
    place, me = folder / f"rank-{launched_rank()}", os.getpid()
    if os.environ.get(HOOKED) == str(me):
        return
    os.environ[HOOKED] = str(me)
    # Open for as long as the process lives, for it is written to when nothing can be opened any more.
    stacks = open(f"{place}.stacks", "w", encoding="utf-8")  # noqa: SIM115
    faulthandler.enable(stacks)
    faulthandler.register(STACKS, stacks, all_threads=True)
    leave = os._exit

    def leave_word(status: int) -> NoReturn:
        with suppress(Exception):
            if os.getpid() != me:  # but of a fork, whose way to end this is
                raise ChildProcessError
            frame = sys._getframe(1)
            stack = "".join(traceback.format_stack(frame))
            Path(f"{place}.words").write_text(f"os._exit({status})\n{stack}", encoding="utf-8")
        leave(status)

    os._exit = leave_word
    Path(f"{place}.hooked").touch()
    atexit.register(lambda: Path(f"{place}.finished").touch() if os.getpid() == me else None)
