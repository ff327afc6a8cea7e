"""Ends of the process by a signal, by a broken interpreter, or by a limit of the system."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults.declaring import COHERENT, RuntimeFault, declared, fault, simulated_process

ABORTED = ("a rank died by abort() (SIGABRT)",)
SEGMENTATION = ("a rank died of a segmentation fault (SIGSEGV)",)


def by_signal(number: signal.Signals, found: str = "") -> RuntimeFault:
    found = found or f"a rank was ended by a signal ({number.name})"
    return simulated_process(
        fault(f"{number.name}", (found,), first={"forward": lambda op: os.kill(os.getpid(), number)})
    )


def dies(name: str, action: Any, found: tuple[str, ...], **row: Any) -> RuntimeFault:
    return simulated_process(fault(name, found, first={"forward": lambda op: action()}, **row))


def default_of_c(number: signal.Signals) -> None:
    """Give a signal back the meaning that C gives it, and raise it."""
    c = ctypes.CDLL(None)
    c.signal(int(number), ctypes.c_void_p(0))
    c.raise_(int(number)) if hasattr(c, "raise_") else c["raise"](int(number))


def stack_overflow_of_c() -> None:
    sys.setrecursionlimit(1 << 30)
    nested: list[Any] = []
    for _ in range(1 << 20):
        nested = [nested]
    repr(nested)


def free_of_what_is_not_allocated() -> None:
    ctypes.CDLL(None).free(ctypes.c_void_p(8))


def written_over_code() -> None:
    ctypes.memset(id(None), 0xFF, 64)


def called_through_null() -> None:
    ctypes.CFUNCTYPE(None)(0)()


def fatal_error_of_python() -> None:
    ctypes.pythonapi.Py_FatalError(b"own")


def divided_by_zero_in_c() -> None:
    ctypes.CDLL(None).div(1, 0)


def out_of_memory() -> None:
    # On this process alone, and only little above what it has.
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def out_of_processor_time() -> None:
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1, int(used) + 2))
    while True:
        pass


def file_too_large() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Python ignores SIGXFSZ.
    ctypes.CDLL(None).signal(int(signal.SIGXFSZ), ctypes.c_void_p(0))
    os.write(os.open(".", os.O_TMPFILE | os.O_WRONLY), b"1")


def out_of_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        os.dup(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def aborts_without_words() -> None:
    faulthandler.disable()
    os.abort()


FAULTS = declared(
    globals(),
    (
        by_signal(signal.SIGTERM),
        # UCX, which MPICH has, prints its state upon it, and goes on.
        replace(by_signal(signal.SIGHUP), mpi=("a rank was ended by a signal (SIGHUP)", *COHERENT), ranks=0),
        by_signal(signal.SIGQUIT),
        by_signal(signal.SIGALRM),
        # MPICH takes it for news of a failure, and goes on.
        replace(
            by_signal(signal.SIGUSR1), mpi=("a rank was ended by a signal (SIGUSR1)", *COHERENT), ranks=0
        ),
        by_signal(signal.SIGFPE, "a rank died of an arithmetic error (SIGFPE)"),
        by_signal(signal.SIGILL, "a rank died of an illegal instruction (SIGILL)"),
        by_signal(signal.SIGBUS, "a rank died of a bus error (SIGBUS)"),
        dies(
            "SIGPIPE as C means it",
            lambda: default_of_c(signal.SIGPIPE),
            ("a rank was ended by a signal (SIGPIPE)",),
        ),
        dies("abort() of C", aborts_without_words, ABORTED),
        dies("free() of what is not allocated", free_of_what_is_not_allocated, (*ABORTED, *SEGMENTATION)),
        dies("object written over", written_over_code, (*SEGMENTATION, *ABORTED)),
        dies("call through a null pointer", called_through_null, SEGMENTATION),
        dies("fatal error of Python", fatal_error_of_python, ABORTED),
        dies("division by zero in C", divided_by_zero_in_c, ("a rank died of an arithmetic error (SIGFPE)",)),
        dies("overflow of the stack of C", stack_overflow_of_c, SEGMENTATION),
        fault(
            "out of memory by RLIMIT_AS",
            ("raised MemoryError",),
            first={"forward": lambda op: out_of_memory()},
            is_fatal=True,
        ),
        fault(
            "out of files by RLIMIT_NOFILE",
            ("raised OSError",),
            first={"forward": lambda op: out_of_files()},
            is_fatal=True,
        ),
        dies(
            "out of processor time by RLIMIT_CPU",
            out_of_processor_time,
            ("a rank was ended by a signal (SIGXCPU)",),
        ),
        dies("file too large by RLIMIT_FSIZE", file_too_large, ("a rank was ended by a signal (SIGXFSZ)",)),
    ),
)
