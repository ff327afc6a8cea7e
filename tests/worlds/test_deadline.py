"""A process that was asked to end does, whatever its code does about it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from adjointlab.worlds.deadline import Deadline
from tests.running import ROOT

PROGRAM = """
import os, signal, sys, time
from adjointlab.worlds.deadline import Deadline
from adjointlab.worlds.interrupts import RepeatedInterrupt

def work():
    try:
        print("begun", flush=True)
        time.sleep(100)
    except KeyboardInterrupt:
        if sys.argv[1] == "swallows":
            while True:
                time.sleep(100)
        raise

limit = 0.1 if sys.argv[1] == "swallows" else 60.0
try:
    with Deadline(seconds=60.0), RepeatedInterrupt(), Deadline(lambda number: print("known", number, flush=True), limit):
        work()
finally:
    print("left")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("does", "says"),
    [("swallows", "begun\nknown {}\n"), ("heeds", "begun\nleft\n")],
    ids=["swallows", "heeds"],
)
def test_one_that_does_not_end_by_itself_is_ended_after_its_report(
    number: signal.Signals, does: str, says: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, does],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)

    assert first + out == says.format(int(number))
    # From Python 3.14 on, a KeyboardInterrupt that leaves the program of `-c` ends it by SIGINT, as that of a file always did.
    assert process.returncode in ([128 + number] if does == "swallows" else [1, -signal.SIGINT])


FORKS = """
import os, signal, time
from adjointlab.worlds.deadline import Deadline
from adjointlab.worlds.interrupts import Interrupts, RepeatedInterrupt

for context in (Interrupts, RepeatedInterrupt):
    with Deadline(seconds=0.0), context():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"begun")
            time.sleep(100)
        os.read(read, 5)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(0.1)
"""


def test_a_signal_to_a_fork_ends_the_fork_alone() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_a_context_that_is_left_is_forgotten() -> None:
    with Deadline() as deadline:
        known = weakref.ref(deadline)
    del deadline
    until = time.monotonic() + 5.0
    while known() is not None and time.monotonic() < until:  # its thread may still be ending
        gc.collect()
        time.sleep(0.01)
    assert known() is None


def test_a_fork_that_outlives_it_does_not_keep_its_thread() -> None:
    ending, end = os.pipe()
    with Deadline():
        if not os.fork():
            os.close(end)
            os.read(ending, 1)  # until the test has ended
            os._exit(0)
    until = time.monotonic() + 5.0
    while (
        any(thread.name == "adjointlab deadline" for thread in threading.enumerate())
        and time.monotonic() < until
    ):
        time.sleep(0.01)
    os.close(end)
    os.wait()
    assert not any(thread.name == "adjointlab deadline" for thread in threading.enumerate())


def test_user_code_that_closes_its_files_does_no_harm() -> None:
    before = signal.set_wakeup_fd(-1)
    try:
        with Deadline() as deadline:
            os.close(deadline._write)
        # The interpreter has the number of a file that is closed, as after a context around this one.
        with Deadline() as outer, Deadline():
            os.close(outer._write)
    finally:
        signal.set_wakeup_fd(before)


def test_signals_after_the_first_are_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    outer, handler = signal.set_wakeup_fd(-1), signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with Deadline(seconds=600.0):
            for _ in range(20):
                signal.raise_signal(signal.SIGTERM)
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.set_wakeup_fd(outer)
    assert not errors
