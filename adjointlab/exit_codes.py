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
    """Nothing is incoherent, but a check could not be judged (a crash, a hang), or a result file could not be written."""
    RESTART = 75
    """The job must be restarted to go on, because MPI has no communicators left (``EX_TEMPFAIL`` of sysexits.h)."""
    INTERRUPTED = 130
    """Ctrl-C: 128 plus the number of SIGINT, as shells report it."""
