"""The exit codes of every front end: the command line, pytest's plugin, the watchdog and the supervisor."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """Exit code of a command. Under a launcher, every rank ends with the same one."""

    COHERENT = 0
    INCOHERENT = 1
    USAGE = 2
    """A usage error, a file that cannot be read, or a subject that cannot be found."""
    UNJUDGED = 3
    """A check that could not be judged: a crash, or a hang; or a result file that could not be written, with nothing incoherent."""
    RESTART = 75
    """The job must be started again to go on: MPI has no communicators left (``EX_TEMPFAIL`` of sysexits.h)."""
    INTERRUPTED = 130
    """Ctrl-C: 128 and the number of SIGINT, as shells report it."""
