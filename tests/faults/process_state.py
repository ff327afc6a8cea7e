"""Things that user code may do to the process that it shares with the lab; its results are right, or wrong all the same."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import io
import json
import os
import posix
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.declaring import WRONG, RuntimeFault, declared, fault

REPLACED = ("functions replaced",)


def meddles(name: str, action: Any, found: tuple[str, ...] = WRONG, **row: Any) -> RuntimeFault:
    """A row whose operator does something to its process in forward; its adjoint is wrong, which must not be lost."""
    return fault(
        name,
        found,
        everywhere={"forward": lambda op: action()},
        result={"adjoint": lambda op, y, right: 2 * right if op.size > 1 else right},
        **{"is_fatal": True, **row},
    )


def closed(*descriptors: int) -> Any:
    def close() -> None:
        for each in descriptors:
            try:
                os.close(each)
            except OSError:
                continue

    return close


def streams_replaced() -> None:
    sys.stdout = sys.stderr = None


def stdout_closed() -> None:
    sys.stdout.close()


def stdout_replaced() -> None:
    sys.stdout = io.StringIO()


def exit_replaced() -> None:
    sys.exit = lambda *_: None  # type: ignore[assignment]


def left_by_c_at_the_end() -> None:
    atexit.register(ctypes.CDLL(None)._exit, 0)


def left_by_posix_at_the_end() -> None:
    atexit.register(posix._exit, 0)


def hooks_forgotten() -> None:
    atexit._clear()


def in_another_folder() -> None:
    os.chdir("/")


def in_a_folder_that_is_gone() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def folder_removed() -> None:
    shutil.rmtree(".adjointlab", ignore_errors=True)


def records_overwritten() -> None:
    for path in Path(".adjointlab").rglob("*.json*"):
        path.write_text('{"schema": 1')


def temporary_folder_elsewhere() -> None:
    tempfile.tempdir = "/nonexistent"


def environment_cleared() -> None:
    os.environ.clear()


def random_seeded() -> None:
    random.seed(0)
    np.random.seed(0)


def no_files_for_others() -> None:
    os.umask(0o777)


def all_errors_of_numpy() -> None:
    np.seterr(all="raise")


def numpy_replaced() -> None:
    np.array_equal = lambda *_, **__: True  # type: ignore[assignment]
    np.allclose = lambda *_, **__: True  # type: ignore[assignment]


def builtins_replaced() -> None:
    builtins.print = lambda *_, **__: None  # type: ignore[assignment]
    builtins.abs = lambda _: 0  # type: ignore[assignment]


def os_replaced() -> None:
    os.write = lambda *_, **__: 0  # type: ignore[assignment]
    os.replace = lambda *_, **__: None


def json_replaced() -> None:
    json.dumps = lambda *_, **__: "{}"  # type: ignore[assignment]


def time_stands_still() -> None:
    time.monotonic = lambda: 0.0
    time.time = lambda: 0.0


def warnings_are_errors() -> None:
    warnings.simplefilter("error")


def traced() -> None:
    def trace(*_: Any) -> Any:
        raise RuntimeError("in a trace function")

    sys.settrace(trace)


def profiled() -> None:
    threading.setprofile(lambda *_: None)
    sys.setprofile(lambda *_: None)


def hooks_replaced() -> None:
    sys.excepthook = lambda *_: os._exit(0)
    threading.excepthook = lambda *_: None


def no_collector() -> None:
    gc.disable()
    gc.freeze()


def recursion_limited() -> None:
    sys.setrecursionlimit(120)


def modules_forgotten() -> None:
    for name in [name for name in sys.modules if name.startswith("adjointlab.report")]:
        del sys.modules[name]


def all_exceptions_ignored_by_signals() -> None:
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1):
        try:
            signal.signal(number, signal.SIG_IGN)
        except ValueError:  # not in the main thread
            continue


def prints_a_flood() -> None:
    print("x" * 100_000, "\x1b[2J\ud800", flush=True)


FAULTS = declared(
    globals(),
    (
        meddles("standard streams closed", closed(0, 1, 2)),
        meddles("sys.stdout closed", stdout_closed),
        meddles("sys.stdout replaced", stdout_replaced),
        meddles("sys.stdout and sys.stderr None", streams_replaced),
        meddles("all files closed", closed(*range(3, 64)), (*WRONG, "raised OSError"), ranks=0),
        meddles("another working directory", in_another_folder),
        meddles("working directory removed", in_a_folder_that_is_gone),
        meddles("folder of failures removed", folder_removed),
        meddles("records of the lab overwritten", records_overwritten),
        meddles("temporary folder that is not there", temporary_folder_elsewhere),
        meddles("environment cleared", environment_cleared),
        meddles("random generators seeded", random_seeded),
        meddles("umask 777", no_files_for_others),
        meddles("errors of NumPy raised", all_errors_of_numpy),
        meddles("comparisons of NumPy replaced", numpy_replaced, REPLACED),
        meddles("built-in functions replaced", builtins_replaced, REPLACED),
        meddles("json.dumps replaced", json_replaced, REPLACED),
        meddles("functions of os replaced", os_replaced, REPLACED),
        meddles("clocks that stand still", time_stands_still),
        meddles("warnings made errors", warnings_are_errors),
        meddles("trace function that raises", traced, (*WRONG, "raised RuntimeError")),
        meddles("profile functions set", profiled),
        meddles("hooks for exceptions replaced", hooks_replaced),
        meddles("sys.exit replaced", exit_replaced),
        meddles("hook at the end of the process that calls _exit(0) of C", left_by_c_at_the_end),
        meddles("hook at the end of the process that calls posix._exit(0)", left_by_posix_at_the_end),
        meddles("hooks at the end of the process forgotten", hooks_forgotten),
        meddles("garbage collector off", no_collector),
        meddles("recursion limit of 120", recursion_limited, (*WRONG, "raised RecursionError")),
        meddles("modules of the lab forgotten", modules_forgotten),
        meddles("signals ignored", all_exceptions_ignored_by_signals),
        meddles("flood of output", prints_a_flood),
    ),
)
