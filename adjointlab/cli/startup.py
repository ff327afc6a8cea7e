"""Starting a command: its preparation agreed on by all ranks, the world it runs in, and Ctrl-C under mpiexec.

A command reads files and imports the user's modules before there is a world, and that may fail on one rank only. A rank
that simply ended would leave the others waiting in their first collective call, so all ranks meet after the preparation
and either all go on or all end with the same message and exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from adjointlab.exit_codes import ExitCode
from adjointlab.options import RANKS
from adjointlab.worlds.launch import is_launched, open_world
from adjointlab.worlds.process import Interrupts, RepeatedInterrupt
from adjointlab.worlds.watchdog import Watchdog

if TYPE_CHECKING:
    from adjointlab.worlds.world import World

__all__ = ["UsageError", "abort_all_ranks", "collective_interrupts", "opened_world", "or_usage_error"]

T = TypeVar("T")


class UsageError(Exception):
    """The command cannot be carried out as it was given; the message says what to change."""


@contextmanager
def opened_world(
    prepare: Callable[[], T], ranks: int | None, *, strict: bool = False, watchdog: float | None = None
) -> Iterator[tuple[World, T]]:
    """Run `prepare` on every rank, then open the world; yield both.

    Raises :class:`UsageError` on all ranks alike if `prepare` fails on any of them.
    """
    if is_launched():
        prepared = _prepared_on_all_ranks(prepare, ranks or 1)
    else:
        prepared = or_usage_error(prepare)
    world = open_world(ranks=ranks or RANKS.default, strict=strict, watchdog=Watchdog(watchdog))
    yield world, prepared
    # Closing is collective. After an exception the ranks may be at different places in the program, so the world is
    # then left to the end of the process rather than waited for.
    world.close()


def or_usage_error(prepare: Callable[[], T]) -> T:
    """Return what `prepare` returns, with the errors that the user can mend as :class:`UsageError`."""
    from adjointlab.engine.subject import SubjectError
    from adjointlab.worlds.world import message_of

    try:
        return prepare()
    except (ValueError, SubjectError) as error:  # BadReproducer, BadList and NotFound are ValueErrors
        raise UsageError(message_of(error)) from error


def _prepared_on_all_ranks(prepare: Callable[[], T], ranks: int) -> T:
    """Collective over the processes of the job: `prepare`, whose failure or interruption on one rank is that of all."""
    from adjointlab.worlds.mpi.rendezvous import Rendezvous

    rendezvous = Rendezvous()
    problem, interrupted = "", False
    with Interrupts() as interrupts:
        try:
            interrupts.allow()
            prepared = or_usage_error(prepare)
        except UsageError as error:
            problem = str(error)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            # From here to the end of the meeting an interrupt must wait: raised on one rank alone, it would keep
            # that rank from a meeting which the others have already joined.
            interrupts.hold()
    reports: list[tuple[str, bool]] = rendezvous.allgather("ready", (problem, interrupted))
    if any(interrupted for _, interrupted in reports):
        raise KeyboardInterrupt
    if rendezvous.size < ranks:
        raise UsageError(f"--ranks: {ranks} are asked for, but mpiexec has started {rendezvous.size}")
    if reports[0][0]:
        raise UsageError(reports[0][0])
    for rank, (text, _) in enumerate(reports):
        if text:
            raise UsageError(f"on rank {rank}: {text}")
    return prepared


@contextmanager
def collective_interrupts() -> Iterator[None]:
    """Under mpiexec, hold Ctrl-C back until the ranks can end together; the world says when that is.

    Without it, Ctrl-C takes effect at once, also where the first exception is swallowed.
    """
    if not is_launched():
        with RepeatedInterrupt():
            yield
        return
    with Interrupts() as interrupts:
        interrupts.ends_process = True
        try:
            yield
        finally:
            if interrupts.is_forced:
                # A second Ctrl-C was raised wherever this rank happened to be, possibly inside a collective call that
                # the others are still waiting in.
                abort_all_ranks(ExitCode.INTERRUPTED)


def abort_all_ranks(code: ExitCode) -> None:
    """End all ranks of the job at once, those that wait for this one included."""
    sys.stderr.flush()
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code)
