"""Code that does not return, or leaves something running."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from tests.faults.declaring import (
    COHERENT,
    NEVER,
    NO_RETURN,
    RuntimeFault,
    Shift,
    blocks,
    declared,
    fault,
    subject_of,
)

HUNG = (*NO_RETURN, "the job got stuck")


def loop() -> None:
    while True:
        pass


def stubborn() -> None:
    """Loops, and catches whatever is to end it."""
    while True:
        try:
            loop()
        except BaseException:  # noqa: S112 - that is the fault
            continue


def locked_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def joined() -> None:
    thread = threading.Thread(target=time.sleep, args=(NEVER,), daemon=True)
    thread.start()
    thread.join()


def pipe_that_nobody_writes() -> None:
    os.read(os.pipe()[0], 1)


def nobody_connects() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.accept()


def backtracking() -> None:
    """One call of C that keeps the interpreter's lock, and handles no signal."""
    re.match("(a+)+$", "a" * 60 + "b")


def sleep_with_the_lock() -> None:
    """A sleep in C that keeps the interpreter's lock, and does not end by a signal that Python handles."""
    sleep = ctypes.PyDLL(None).sleep
    while sleep(int(NEVER)):
        pass


def signals_ignored() -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        _ignore(each)
    stubborn()


def _ignore(number: int) -> None:
    # Python's own signal.signal works in the main thread alone.
    ctypes.CDLL(None).signal(int(number), ctypes.c_void_p(1))


def signals_blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    loop()


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def thread_left() -> None:
    threading.Thread(target=loop_slowly, daemon=True).start()


def thread_left_that_is_waited_for() -> None:
    """Python waits at its end for every thread that is no daemon."""
    threading.Thread(target=loop_slowly).start()


def loop_slowly() -> None:
    while True:
        time.sleep(0.05)


def child_left() -> None:
    subprocess.Popen(["sleep", str(NEVER)], stdin=subprocess.DEVNULL)


def child_left_in_a_session_of_its_own() -> None:
    subprocess.Popen(["sleep", str(NEVER)], start_new_session=True)


def child_waited_for() -> None:
    subprocess.run(["sleep", str(NEVER)], check=False)


def child_of_multiprocessing() -> None:
    import multiprocessing

    multiprocessing.get_context("spawn").Process(target=time.sleep, args=(NEVER,)).start()


def hook_that_hangs() -> None:
    atexit.register(time.sleep, NEVER)


class SleepsWhenDeleted:
    def __del__(self) -> None:
        time.sleep(NEVER)


def asyncio_for_ever() -> None:
    asyncio.run(asyncio.sleep(NEVER))


def reads_standard_input() -> None:
    sys.stdin.read()
    queue.Queue[int]().get()


def on_one_rank(name: str, action: Any, found: tuple[str, ...] = HUNG, **row: Any) -> RuntimeFault:
    return fault(name, found, first={"forward": lambda op: action()}, **{"is_fatal": True, "ranks": 0, **row})


def left(name: str, action: Any) -> RuntimeFault:
    """A row whose result is right, but for what is left running."""
    return on_one_rank(name, action, COHERENT)


def drawing(wait: Any) -> Any:
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        wait()
        return blocks(draw, ranks)

    return draws


class DrawnInALoop(Shift):
    """Right, if it were drawn."""


FAULTS = declared(
    globals(),
    (
        on_one_rank("loop that catches what ends it", stubborn),
        fault("loop in adjoint", HUNG, first={"adjoint": lambda op: loop()}, is_fatal=True, ranks=0),
        fault("loop in a constructor", HUNG, first={"make": lambda op: loop()}, is_fatal=True, ranks=0),
        fault("loop on all ranks", HUNG, everywhere={"forward": lambda op: loop()}, is_fatal=True, ranks=0),
        RuntimeFault(
            "loop in a strategy",
            subject_of(DrawnInALoop, drawing(loop), "row_loop_in_a_strategy"),
            HUNG,
            HUNG,
            ranks=0,
            is_fatal=True,
        ),
        fault(
            "sleep in a reference",
            HUNG,
            reference=lambda x, layout: time.sleep(NEVER),
            check="sequential",
            ranks=1,
            is_fatal=True,
        ),
        on_one_rank("lock that is taken twice", locked_twice),
        on_one_rank("thread that is waited for", joined),
        on_one_rank("queue that nobody fills", reads_standard_input),
        on_one_rank("pipe that nobody writes", pipe_that_nobody_writes),
        on_one_rank("socket that nobody connects to", nobody_connects),
        on_one_rank("regular expression that backtracks", backtracking),
        on_one_rank("sleep of C with the interpreter's lock", sleep_with_the_lock),
        on_one_rank("sleep of asyncio", asyncio_for_ever),
        on_one_rank("sleep in a destructor", SleepsWhenDeleted),
        on_one_rank("loop with signals ignored", signals_ignored),
        on_one_rank("loop with signals blocked", signals_blocked),
        on_one_rank("SIGSTOP", stopped),
        on_one_rank("child that is waited for", child_waited_for),
        left("thread left running", thread_left),
        left("thread left running, no daemon", thread_left_that_is_waited_for),
        left("child left running", child_left),
        left("child left running in a session of its own", child_left_in_a_session_of_its_own),
        left("process of multiprocessing left running", child_of_multiprocessing),
        left("hook at the end of the process that hangs", hook_that_hangs),
    ),
)
