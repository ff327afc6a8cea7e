"""A process of :mod:`adjointlab.cli.parallel`, which runs the checks that it receives and sends their results."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from adjointlab.check_result import CheckResult, SearchInterrupted
from adjointlab.cli.held_streams import copied_out_of_the_way
from adjointlab.cli.parallel_messages import MessageKind, Outcome, PlannedCheck, Setup
from adjointlab.cli.selection import selected
from adjointlab.cli.startup import opened_world
from adjointlab.engine.hypothesis_searches import prepare
from adjointlab.exit_codes import ExitCode
from adjointlab.session import check_with_corpus
from adjointlab.supervisor.processes import die_with_parent
from adjointlab.worlds.exit_guard import before_forced_end, earn, install_exit_guard
from adjointlab.worlds.interrupts import RepeatedInterrupt
from adjointlab.worlds.process_end import end_despite_leftovers

if TYPE_CHECKING:
    from adjointlab.engine.discovery import Found

__all__ = ["main"]


def main(descriptor: int) -> NoReturn:
    """Run checks until the socket is closed."""
    install_exit_guard()
    die_with_parent()
    connection: Connection[Any, Any] = Connection(_moved(descriptor))
    code = int(ExitCode.COHERENT)
    try:

        def tell(code: int, call: str) -> None:
            connection.send((MessageKind.FORCED, call.encode(errors="backslashreplace")))

        with RepeatedInterrupt(), before_forced_end(tell):
            prepare()
            _serve(connection, connection.recv())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # all checks are done, or the other process has died
    except SearchInterrupted as interrupt:
        with suppress(OSError):
            connection.send((MessageKind.INTERRUPTED, _packed(interrupt.known)))
        code = ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    earn(code, is_final=True)
    end_despite_leftovers(code)
    raise SystemExit(code)


def _serve(connection: Connection[Any, Any], setup: Setup) -> None:
    sys.path[:], sys.argv[:] = setup.surroundings.path, setup.surroundings.arguments
    budget = setup.budget

    def prepare() -> dict[PlannedCheck, Found]:
        plan, _ = selected(list(setup.subjects), None if setup.checks is None else list(setup.checks))
        return {PlannedCheck.of(found, name): found for found, name in plan}

    with opened_world(prepare, budget.ranks, watchdog=setup.watchdog) as (world, plan):
        connection.send((MessageKind.READY, pickle.dumps(list(plan))))
        while True:
            check, seconds = connection.recv()
            found, name = plan[check], check.check
            earn(ExitCode.UNJUDGED)
            result = check_with_corpus(world, found, name, replace(budget, seconds=seconds), setup.folder)
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # user code may have replaced the stream by any object
                    stream.flush()
            connection.send((MessageKind.RESULT, _packed(result)))


def _packed(result: CheckResult) -> bytes:
    return Outcome(*(getattr(result, name) for name in Outcome._fields)).pickled()


def _moved(descriptor: int) -> int:
    """Move the socket to a descriptor that user code seldom closes."""
    moved = copied_out_of_the_way(descriptor)
    os.close(descriptor)
    return moved
