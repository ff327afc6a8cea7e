"""Start-up of a command: its preparation, the world that it runs in, and its signals under a launcher.

A command reads files and imports the user's modules before there is a world, and this may fail on one rank only. If that
rank simply exited, the others would wait for it in their first collective call. So all ranks synchronise after the preparation,
and either all go on, or all end with the same message and exit code.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from adjointlab.exit_codes import ExitCode
from adjointlab.options import RANKS
from adjointlab.worlds.exit_of_c import allow_exit_of_c
from adjointlab.worlds.interrupts import Interrupts, RepeatedInterrupt, interrupt_by, signal_of
from adjointlab.worlds.launch import (
    NoPartners,
    check_partners,
    is_launched,
    launched_world,
    open_channel,
    open_world,
)
from adjointlab.worlds.watchdog import Overdue, RaisingWatchdog, Watchdog

if TYPE_CHECKING:
    from adjointlab.worlds.world import World

__all__ = [
    "SECONDS_FOR_OUTPUT",
    "AgreedError",
    "NotLoaded",
    "UsageError",
    "abort_all_ranks",
    "agreed",
    "collective_interrupts",
    "opened_world",
    "or_usage_error",
]

T = TypeVar("T")

_SECONDS_FOR_ABORT: Final = 5.0
SECONDS_FOR_OUTPUT: Final = 0.3
"""Seconds in which a launcher passes on what a rank has printed, before that rank ends the job."""


class UsageError(Exception):
    """The command cannot be executed as given; the message says what to change."""


class AgreedError(UsageError):
    """A usage error that all ranks raise alike."""


class _Readiness(NamedTuple):
    """The outcome of a rank's preparation: a usage error, the number of a signal, or the names that `listed` returns."""

    problem: str = ""
    interrupted: int = 0
    listed: tuple[str, ...] = ()


@contextmanager
def opened_world(
    prepare: Callable[[], T],
    ranks: int | None,
    *,
    strict: bool = False,
    watchdog: float | None = None,
    listed: Callable[[T], Sequence[str]] = lambda prepared: (),
) -> Iterator[tuple[World, T]]:
    """Run `prepare` on every rank, then open the world; yield both.

    Raises :class:`UsageError` on all ranks if `prepare` fails on any of them, or if `listed(prepared)` differs between ranks, which
    would then execute different checks and wait for each other.
    """
    limit = Watchdog(watchdog)
    if is_launched():
        try:
            prepared = _prepared_on_all_ranks(prepare, ranks or 1, limit, listed)
        except NoPartners as error:
            raise AgreedError(str(error)) from error
    else:
        prepared = or_usage_error(prepare, limit)
    world = open_world(ranks=ranks or RANKS.default, strict=strict, watchdog=limit)
    yield world, prepared
    # Closing is collective. After an exception the ranks may be in different places of the program, so the world is
    # then not closed, and the process simply ends.
    world.close()


class NotLoaded(Exception):
    """The import of a subject's module, or the construction of its operator, did not return; the message says where."""


def or_usage_error(
    prepare: Callable[[], T], watchdog: Watchdog | None = None, doing: str = "loading the subjects"
) -> T:
    """Call `prepare`, and raise the errors that the user can correct as :class:`UsageError`.

    Raises :class:`NotLoaded` if the call does not return in time (`doing` describes it), and ends the process if that has no effect.
    """
    from adjointlab.engine.subject import SubjectError
    from adjointlab.worlds.exception_text import message_of

    watchdog = watchdog or Watchdog()
    raising = RaisingWatchdog(watchdog, _end_job)
    try:
        with raising.signal_handler(), raising.watch(doing, None, watchdog.seconds_of_import) as watched:
            return prepare()
    except Overdue as late:
        raise NotLoaded(f"{doing} {late}; the stack there:\n{watched.stack}") from None
    except (ValueError, SubjectError) as error:  # BadReproducer, BadList and NotFound are ValueErrors
        raise UsageError(message_of(error)) from error
    finally:
        raising.close()


def _end_job() -> None:
    if is_launched():
        # MPI_Abort may block if another thread is inside an MPI call.
        last_resort = threading.Timer(_SECONDS_FOR_ABORT, os._exit, (ExitCode.UNJUDGED,))
        last_resort.daemon = True
        last_resort.start()
        abort_all_ranks(ExitCode.UNJUDGED)
    os._exit(ExitCode.UNJUDGED)


def agreed(text: str) -> str:
    """Share a usage error that this rank met before its preparation, and return the message on which all ranks agree.

    Collective with the preparation on the other ranks. Returns `text` itself if the ranks cannot reach each other.
    """

    def prepare() -> None:
        raise UsageError(text)

    agreed_text = text
    # Any error, such as an MPI library that cannot be loaded, is suppressed: the command was wrong in any case.
    with suppress(Exception):
        try:
            _prepared_on_all_ranks(prepare, 1, Watchdog(), lambda prepared: ())
        except AgreedError as error:
            agreed_text = str(error)
    return agreed_text


def _prepared_on_all_ranks(
    prepare: Callable[[], T], ranks: int, watchdog: Watchdog, listed: Callable[[T], Sequence[str]]
) -> T:
    """Collective over the processes of the job: call `prepare`; if it fails or is interrupted on one rank, raise on all.

    Raises :class:`NoPartners` if the processes cannot reach each other.
    """
    check_partners()
    from adjointlab.worlds.rendezvous import Rendezvous

    rendezvous = Rendezvous(open_channel("preparation"))
    own = _Readiness()
    with Interrupts() as interrupts:
        try:
            interrupts.allow()
            prepared = or_usage_error(prepare, watchdog)
            own = _Readiness(listed=tuple(listed(prepared)))
        except UsageError as error:
            own = _Readiness(problem=str(error))
        except KeyboardInterrupt as interrupt:
            own = _Readiness(interrupted=signal_of(interrupt))
        finally:
            # From here to the end of the allgather interrupts are held back: an interrupt that is raised on one rank would keep
            # that rank from the allgather, in which the others wait for it.
            interrupts.hold()
    ranks_ready: list[_Readiness] = rendezvous.allgather("ready", own)
    if number := max(each.interrupted for each in ranks_ready):
        interrupts.note(number)
        raise interrupt_by(number)
    problem = _problem_of(ranks_ready)
    if rendezvous.rank and (rendezvous.size < ranks or problem):
        # torchrun ends all ranks once one has ended, and rank 0 has yet to print the message.
        rendezvous.leave(SECONDS_FOR_OUTPUT)
    if rendezvous.size < ranks:
        raise AgreedError(f"--ranks: {ranks} are asked for, but {_launcher()} has started {rendezvous.size}")
    if problem:
        raise AgreedError(problem)
    return prepared


def _problem_of(ranks: Sequence[_Readiness]) -> str:
    """Return the first problem of any rank; empty if there is none."""
    for rank, each in enumerate(ranks):
        if each.problem:
            return f"on rank {rank}: {each.problem}" if rank else each.problem
    first = ranks[0].listed
    for rank, each in enumerate(ranks):
        if each.listed != first:
            return f"{_difference(first, each.listed, rank)}; all ranks declare the same, in one order, and are given the same arguments"
    return ""


def _difference(first: Sequence[str], names: Sequence[str], rank: int) -> str:
    """Describe the first difference between the checks of a rank and those of rank 0."""
    if lacking := [name for name in first if name not in names]:
        return f"rank {rank} has no {lacking[0]}, which rank 0 has"
    if more := [name for name in names if name not in first]:
        return f"rank {rank} has {more[0]}, which rank 0 has not"
    return f"rank {rank} has {', '.join(names)} where rank 0 has {', '.join(first)}"


def _launcher() -> str:
    return "torchrun" if launched_world() == "torch" else "mpiexec"


@contextmanager
def collective_interrupts() -> Iterator[Interrupts | RepeatedInterrupt]:
    """Context that, under a launcher, holds Ctrl-C, SIGTERM and SIGHUP back until the world lets the ranks end together.

    Without a launcher, the signals take effect at once, even if user code swallows the first exception. The `number` of the
    yielded object is that of the signal, once the context has ended.
    """
    if not is_launched():
        with RepeatedInterrupt() as repeated:
            yield repeated
        return
    with Interrupts() as interrupts:
        interrupts.ends_process = True
        try:
            yield interrupts
        finally:
            if interrupts.is_forced:
                # A second Ctrl-C was raised at an arbitrary point, possibly inside a collective call in which the others
                # are still waiting.
                abort_all_ranks(ExitCode.INTERRUPTED)


def abort_all_ranks(code: ExitCode) -> None:
    """End all ranks of the job at once, including those that wait for this one."""
    with suppress(Exception):  # user code may have replaced the stream by any object
        sys.stderr.flush()
    if launched_world() == "torch":
        os._exit(code)  # and torchrun ends the others
    # MPICH's launcher drops what a rank prints just before it aborts, such as the message and the stacks.
    time.sleep(SECONDS_FOR_OUTPUT)
    from mpi4py import MPI

    from adjointlab.worlds.comm_world import own_handle

    allow_exit_of_c()
    own_handle(MPI.COMM_WORLD).Abort(code)
