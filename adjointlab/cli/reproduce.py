"""The scripts beside reproducers: they replay a stored failure, and exit with a code that says if it occurred again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from adjointlab.cli.main import exit_code_of
from adjointlab.cli.output import Output
from adjointlab.cli.replay import replayed, status_of
from adjointlab.cli.startup import collective_interrupts
from adjointlab.exit_codes import ExitCode
from adjointlab.supervisor.processes import die_with_parent
from adjointlab.worlds.launch import is_launched

if TYPE_CHECKING:
    from adjointlab.engine.search_result import SearchResult
    from adjointlab.store.reproducer import Reproducer

__all__ = ["Reproduced", "reproduce"]


class Reproduced(IntEnum):
    """Exit code of a script."""

    NO = 0
    YES = 1
    BROKEN = 2
    """The script could not run, the case fails in another way, or it passes in another world than that of the failure."""


def reproduce(script: str, subject: str) -> NoReturn:
    """Replay the JSON file beside `script` with the subject that the reference `subject` names, and exit."""

    def command() -> int:
        with collective_interrupts():
            file = Path(script).with_suffix(".json")
            stored, result = replayed(file, subject, _ranks(file), is_shown_by_file=True)
            return _outcome(stored, result)

    if is_launched():
        code = exit_code_of(command)
    else:
        code = _code_of_child(lambda: exit_code_of(command), Path(script).with_suffix(".json"))
    sys.exit(Reproduced.BROKEN if code == ExitCode.UNJUDGED else code)


def _code_of_child(run: Callable[[], int], file: Path) -> int:
    """Return the exit code that `run` returns in a child process, because the case may end the process, even with 0."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        die_with_parent()
        os.close(read_end)
        code = run()
        os.write(write_end, bytes([code]))
        return code
    os.close(write_end)
    # Ctrl-C reaches the child too, which reports it. Signals that are sent to this process alone are passed on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Non-blocking, because a process that the case has left behind may hold the other end of the pipe open.
    os.set_blocking(read_end, False)
    try:
        returned = os.read(read_end, 1)
    except BlockingIOError:
        returned = b""
    os.close(read_end)
    if returned:
        return returned[0]
    if stopped:
        return 128 + stopped[0]  # as shells report it
    Output().line(f"the case has ended its process, with {status}")
    return Reproduced.YES if _ended_its_process(file) else Reproduced.BROKEN


def _ended_its_process(file: Path) -> bool:
    """Return True if the stored case ended its process, or was ended by the watchdog."""
    from adjointlab.engine.failed_runs import NO_RETURN
    from adjointlab.session import PROCESS_ENDED
    from adjointlab.store.reproducer import BadReproducer, read

    try:
        stored = read(file)
    except BadReproducer:
        return False
    return stored.is_death or stored.kind in (NO_RETURN, PROCESS_ENDED)


def _ranks(file: Path) -> int | None:
    """Return the number of simulated ranks for the stored case; None under a launcher, which decides it."""
    from adjointlab.store.reproducer import BadReproducer, read

    try:
        return None if is_launched() else read(file).case.ranks
    except BadReproducer:
        return None  # the replay reports what is wrong with the file


def _outcome(stored: Reproducer, result: SearchResult) -> Reproduced:
    from adjointlab.checks.verdict import Status
    from adjointlab.engine.failed_runs import HANGS
    from adjointlab.engine.run_case import NONDETERMINISTIC

    kind = result.verdict.kind
    if result.status is Status.COHERENT:
        return Reproduced.NO if status_of(stored, result) is result.status else Reproduced.BROKEN
    # A hang has a different kind in each world, and a nondeterministic case may fail in any way.
    is_same = (
        kind == stored.kind
        or stored.kind == NONDETERMINISTIC
        or (result.verdict.is_hang and stored.kind in HANGS)
    )
    return Reproduced.YES if is_same else Reproduced.BROKEN
