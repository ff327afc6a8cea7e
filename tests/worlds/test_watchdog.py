"""Seconds that count for the limit of the watchdog."""

from __future__ import annotations

import gc
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import pytest

from adjointlab.core import arrays
from adjointlab.engine.case_body import body
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Kind
from adjointlab.session import run_check
from adjointlab.worlds.call_sites import call_site_of_thread, frame_of_thread
from adjointlab.worlds.elapsed import TIMES_IN_ALL, Elapsed
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Watchdog, stack_of_thread
from tests import hanging
from tests.running import run_python

LIMIT = 10.0


@dataclass
class Clock:
    """The time, and for how long of it the thread has waited for a processor."""

    now: float = 0.0
    delayed: float = 0.0

    def elapsed(self) -> Elapsed:
        return Elapsed(lambda: self.now, lambda thread: self.delayed)


def is_exceeded(elapsed: Elapsed) -> bool:
    return elapsed.exceeded(LIMIT, threading.get_ident()) > 0


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_wait_for_a_processor_does_not_count(share: float):
    clock = Clock()
    elapsed = clock.elapsed()
    looks = 0
    while not is_exceeded(elapsed):
        clock.now += 0.5
        clock.delayed += share * 0.5
        elapsed.look(1, None)
        looks += 1

    assert looks * 0.5 * (1 - share) == pytest.approx(LIMIT, abs=0.5)


def test_the_time_in_which_the_process_was_stopped_does_not_count():
    clock = Clock()
    elapsed = clock.elapsed()
    clock.now += 1000 * LIMIT
    elapsed.look(1, None)

    assert not is_exceeded(elapsed)


def test_every_call_begins_the_limit_again_and_there_is_an_end_to_that():
    clock = Clock()
    elapsed = clock.elapsed()
    progress = 0
    while not is_exceeded(elapsed):
        clock.now += 0.5
        progress += 1
        elapsed.look(1, progress)

    assert clock.now == TIMES_IN_ALL * LIMIT


def test_a_rank_in_a_debugger_is_left_in_peace(tmp_path: Path):
    elapsed = idle(TIMES_IN_ALL * LIMIT)
    debugger = {"elapsed": elapsed, "is_exceeded": is_exceeded}
    exec(compile("found = is_exceeded(elapsed)", str(tmp_path / "pdb.py"), "exec"), debugger)  # noqa: S102 - a file of that name

    assert not debugger["found"]
    assert is_exceeded(elapsed)


def test_an_import_has_the_longer_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "imported_slowly.py").write_text(
        "import tests.worlds.test_watchdog as test\n"
        "early = test.is_exceeded(test.idle(test.LIMIT))\n"
        "late = test.is_exceeded(test.idle(test.TIMES_IN_ALL * test.LIMIT))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import imported_slowly

    assert (imported_slowly.early, imported_slowly.late) == (False, True)


@pytest.mark.parametrize("file", ["torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py"])
def test_a_compilation_has_the_longer_time(tmp_path: Path, file: str):
    """As of torch.compile, whose first call takes half a minute on a busy machine."""
    for seconds, found in ((LIMIT, False), (TIMES_IN_ALL * LIMIT, True)):
        compiling = {"elapsed": idle(seconds), "is_exceeded": is_exceeded}
        exec(compile("found = is_exceeded(elapsed)", str(tmp_path / file), "exec"), compiling)  # noqa: S102 - a file of that name
        assert compiling["found"] is found


def idle(seconds: float) -> Elapsed:
    """The elapsed time after so many seconds without progress."""
    clock = Clock()
    elapsed = clock.elapsed()
    for _ in range(round(seconds)):
        clock.now += 1.0
        elapsed.look(1, None)
    return elapsed


def test_the_system_says_how_long_a_thread_has_waited():
    elapsed = Elapsed()
    elapsed.look(threading.get_native_id(), None)
    elapsed.look(threading.get_native_id(), None)

    assert 0 <= elapsed.total < 60


@pytest.mark.skipif(not arrays.installed("torch"), reason="needs torch")
def test_torch_differentiates_before_the_first_case_of_a_subject_that_uses_it():
    arrays.warm_up_torch.cache_clear()
    body(hanging.right)
    assert arrays.warm_up_torch.cache_info().currsize == 0
    body(replace(hanging.right, arrays=("torch",)))
    assert arrays.warm_up_torch.cache_info().currsize == 1


@pytest.mark.mpi_skip  # which all kinds are on real ranks
@pytest.mark.parametrize("kind", list(Kind))
def test_torch_imports_what_given_cotangents_take_beforehand_for_what_it_differentiates(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
):
    asked: list[bool] = []
    monkeypatch.setattr(arrays, "warm_up_torch", lambda *, cotangents: asked.append(cotangents))
    body(replace(hanging.right, arrays=("torch",), kind=kind))
    assert asked == [kind in (Kind.AUTOGRAD, Kind.LAYER)]


@pytest.mark.skipif(not arrays.installed("torch"), reason="needs torch")
def test_a_backward_pass_of_a_given_cotangent_imports_nothing_any_more(tmp_path: Path):
    program = "\n".join([
        "import sys",
        "from adjointlab.core import arrays",
        "arrays.warm_up_torch(cotangents=True)",
        "import torch",
        "before = set(sys.modules)",
        "x = torch.ones(2, requires_grad=True)",
        "torch.autograd.grad(2 * x, x, torch.ones(2))",
        "print(sorted(set(sys.modules) - before))",
    ])  # fmt: skip
    assert run_python("-c", program, cwd=tmp_path).stdout.strip() == "[]"


def test_what_an_earlier_subject_did_does_not_shorten_the_limit(tmp_path: Path):
    watchdog = Watchdog(100.0)
    watchdog.has_fired = True
    assert watchdog.seconds_in_simulation < 100
    world = SimulatedWorld(2, watchdog)
    try:
        run_check(world, found_as(hanging.right), "adjoint", Budget(1, seed=1), tmp_path)
    finally:
        world.close()

    assert watchdog.seconds_in_simulation == 100


def test_no_garbage_is_collected_while_the_frames_of_threads_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In CPython 3.11 that could hang or end the process, and did so among hundreds of simulated ranks."""
    collects: list[bool] = []
    listed = sys._current_frames

    def frames() -> dict[int, FrameType]:
        collects.append(gc.isenabled())
        return listed()

    monkeypatch.setattr(sys, "_current_frames", frames)
    assert __file__ in call_site_of_thread(threading.get_ident())
    stack_of_thread(threading.get_ident())
    assert collects == [False, False]
    assert gc.isenabled()


def test_a_thread_that_waits_in_pythons_own_library_is_at_the_line_that_calls_it() -> None:
    event = threading.Event()
    waiting = threading.Thread(target=lambda: event.wait())
    waiting.start()
    try:
        assert waiting.ident is not None
        while (frame := frame_of_thread(waiting.ident)) and frame.f_code.co_name != "wait":
            time.sleep(0.001)
        assert __file__ in call_site_of_thread(waiting.ident)
    finally:
        event.set()
        waiting.join()
