"""Ends of the process in good order, with 0: from every place where user code runs, and by every way out."""

from __future__ import annotations

import ctypes
import os
import posix
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from tests.faults.declaring import (
    COHERENT,
    GAIN,
    WRONG,
    RuntimeFault,
    Shift,
    declared,
    fault,
    simulated_process,
    subject_of,
)

CORPUS = Path(__file__).resolve().parents[1] / "unearned_greens"
EXIT = ("raised SystemExit",)
LEFT = ("a rank left by os._exit(0)",)
ENDED = tuple(
    f"a rank left with exit code {code}, without running exit handlers (os._exit or exit() in a library?)"
    for code in (0, 1, 3)
)


def in_a_thread(target: Any, *arguments: Any) -> None:
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.join(1.0)
    time.sleep(0.2)


def exit_of_c(op: Any) -> None:
    ctypes.CDLL(None).exit(0)


def immediate_exit_of_c(op: Any) -> None:
    ctypes.CDLL(None)._exit(0)


def replaced_by_another_program(op: Any) -> None:
    os.execv("/bin/true", ["true"])


def child_that_comes_back(op: Any) -> None:
    """Forks, and lets the child go on as if it were the rank."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)


def child_that_exits(op: Any) -> None:
    child = os.fork()
    if not child:
        sys.exit(0)
    os.waitpid(child, 0)


def finalizing(op: Any) -> None:
    from mpi4py import MPI

    MPI.Finalize()


def exit_in_a_strategy(leave: Any) -> Any:
    def draws(draw: Any, ranks: int) -> NoReturn:
        leave(0)

    return draws


def reference(leave: Any) -> Any:
    def leaving(x: Any, layout: Any) -> NoReturn:
        leave(0)

    return leaving


class Left(Shift):
    """In whose strategy a process ends."""


def by_exit(name: str, place: str) -> RuntimeFault:
    return fault(name, EXIT, first={place: lambda op: sys.exit(0)})


def by_os(name: str, place: str) -> RuntimeFault:
    return simulated_process(fault(name, LEFT, first={place: lambda op: os._exit(0)}))


def ended(name: str, action: Any, found: tuple[str, ...] = ENDED) -> RuntimeFault:
    return simulated_process(fault(name, found, first={"forward": action}))


def of_corpus(name: str, file: str, found: tuple[str, ...], **row: Any) -> RuntimeFault:
    """A file of tests/unearned_greens, which must not be imported here."""
    return RuntimeFault(
        name, None, found, found, file=f"{CORPUS / file}.py:subject", is_fatal=True, **{"ranks": 0, **row}
    )


FAULTS = declared(
    globals(),
    (
        by_exit("sys.exit(0) in forward", "forward"),
        by_exit("sys.exit(0) in adjoint", "adjoint"),
        by_exit("sys.exit(0) in a constructor", "make"),
        fault("exit() of the interactive prompt", EXIT, first={"forward": lambda op: exit(0)}),
        fault(
            "sys.exit(0) in a thread",
            COHERENT,
            first={"forward": lambda op: in_a_thread(sys.exit, 0)},
            ranks=0,
        ),
        fault("sys.exit(0) in a child process", COHERENT, first={"forward": child_that_exits}, ranks=0),
        fault("sys.exit(0) in a reference", EXIT, reference=reference(sys.exit), check="sequential", ranks=1),
        RuntimeFault(
            "sys.exit(0) in a strategy",
            subject_of(Left, exit_in_a_strategy(sys.exit), "row_exit_in_a_strategy"),
            EXIT,
            EXIT,
            ranks=0,
        ),
        by_os("os._exit(0) in adjoint", "adjoint"),
        by_os("os._exit(0) in a constructor", "make"),
        simulated_process(
            fault(
                "os._exit(0) in a reference", LEFT, reference=reference(os._exit), check="sequential", ranks=1
            )
        ),
        simulated_process(
            RuntimeFault(
                "os._exit(0) in a strategy",
                subject_of(
                    type("LeftAtOnce", (Shift,), {}),
                    exit_in_a_strategy(os._exit),
                    "row_os_exit_in_a_strategy",
                ),
                LEFT,
                LEFT,
                ranks=0,
            )
        ),
        ended("os._exit(0) in a thread", lambda op: in_a_thread(os._exit, 0), LEFT),
        ended("posix._exit(0), of which os knows nothing", lambda op: posix._exit(0), (*LEFT, *ENDED)),
        ended("exit(0) of C", exit_of_c),
        ended("immediate _exit(0) of C", immediate_exit_of_c),
        ended("execv of another program", replaced_by_another_program),
        fault("fork whose child comes back", COHERENT, first={"forward": child_that_comes_back}, ranks=0),
        # It may wait for the other ranks, which do not call it.
        simulated_process(fault("MPI_Finalize", ENDED, (*ENDED, "no return"), first={"forward": finalizing})),
        of_corpus("sys.exit(0) at import", "exit_at_import", ("SystemExit",), is_refused=True),
        of_corpus("os._exit(0) in a hook at the end of the process", "exit_hook", WRONG, ranks=1),
        of_corpus("pytest.skip in adjoint", "pytest_skip_in_a_call", ("raised Skipped",), ranks=1),
        of_corpus("pytest.skip in a strategy", "pytest_skip_in_a_strategy", ("raised Skipped",)),
        of_corpus(
            "hypothesis.assume(False) in forward",
            "assumption_in_a_call",
            ("raised UnsatisfiedAssumption",),
            ranks=1,
        ),
        of_corpus(
            "own exception of the name of the lab's",
            "own_exception_of_the_same_name",
            ("raised Inapplicable",),
            ranks=1,
        ),
        of_corpus("prints that all is well", "prints_that_all_is_well", WRONG, ranks=1),
        of_corpus("COMM_WORLD past the communicator that is given", "raw_world_communicator", GAIN, ranks=2),
        of_corpus("COMM_WORLD in a tuple", "world_communicator_in_a_tuple", WRONG),
        of_corpus(
            "communicator made at import", "communicator_made_at_import", ("communication past the run",)
        ),
        of_corpus("refusal that the code swallows", "refusal_swallowed", ("communication past the run",)),
        of_corpus("tensors without elements", "only_empty_tensors", ("too few cases judged",)),
        of_corpus(
            "exception without words at import",
            "message_fails_at_import",
            ("its __str__ failed",),
            is_refused=True,
        ),
        of_corpus("file without a subject", "no_subject", ("no subject",), is_refused=True),
        of_corpus("cases of one rank alone", "only_one_rank", ("too few cases judged",)),
    ),
)
