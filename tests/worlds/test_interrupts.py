"""Ctrl-C is not lost where Python swallows the exception that it raises."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any

import hypothesis.core
import pytest

from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.interrupts import Interrupts, RepeatedInterrupt, signals_held
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.samples import right


@pytest.fixture(autouse=True)
def _python_handles_ctrl_c():
    """A shell may have made its background jobs ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_in_a_collection() -> None:
    """Send Ctrl-C while a callback of the garbage collector runs, whose exceptions Python drops."""

    def callback(phase: str, info: object) -> None:
        if phase == "start":
            os.kill(os.getpid(), signal.SIGINT)

    gc.callbacks.append(callback)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(callback)


def test_an_interrupt_that_is_swallowed_between_two_cases_ends_the_search() -> None:
    cases = []

    def conduct(run):
        for number in range(5):
            cases.append(number)
            if number == 2:
                interrupt_in_a_collection()
            run(None, 2)

    with pytest.raises(KeyboardInterrupt):
        SimulatedWorld(2).lead(lambda context, _: None, conduct)
    assert cases == [0, 1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_is_swallowed_is_raised_at_the_end_at_the_latest() -> None:
    with pytest.raises(KeyboardInterrupt), RepeatedInterrupt():
        interrupt_in_a_collection()
    with RepeatedInterrupt():
        RepeatedInterrupt.check()  # nothing is left of the one before


class Broken:
    def __del__(self) -> None:
        raise ValueError


def test_an_interrupt_that_is_raised_again_is_not_shown_as_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []

    def show(unraisable: object) -> None:
        shown.append(getattr(unraisable, "exc_type", None))

    def interrupted() -> None:
        with RepeatedInterrupt():
            Broken()
            interrupt_in_a_collection()

    monkeypatch.setattr(sys, "unraisablehook", show)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert shown == [ValueError]  # of anything else Python tells as ever
    assert sys.unraisablehook is show


def test_what_must_be_done_as_a_whole_is_done_before_a_signal_is_handled() -> None:
    done = []

    def interrupted() -> None:
        with signals_held():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_all_handlers_come_back_though_the_first_one_raises_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_its_end(number: int, frame: object) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, at_its_end)
    exchange = signal.signal

    def interrupted(number: int, handler: Any) -> Any:
        result = exchange(number, handler)
        if handler is signal.default_int_handler:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(signal, "signal", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), signals_held():
            pass
        assert signal.getsignal(signal.SIGTERM) is at_its_end
    finally:
        exchange(signal.SIGTERM, before)


def test_an_interrupt_as_hypothesis_begins_is_no_failure_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    make = hypothesis.core.ConjectureRunner

    def interrupted(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return make(*arguments, **named)

    monkeypatch.setattr(hypothesis.core, "ConjectureRunner", interrupted)
    # As under mpiexec, where an interrupt that is swallowed is not raised again.
    with Interrupts() as interrupts:
        interrupts.allow()
        with pytest.raises(KeyboardInterrupt):
            investigate(SimulatedWorld(2), right, "adjoint", Budget(3, seed=0))


def test_a_signal_that_a_handler_of_user_code_turns_into_an_interrupt_is_not_made_up() -> None:
    with Interrupts() as interrupts:
        assert not interrupts.have_come
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert interrupts.have_come
