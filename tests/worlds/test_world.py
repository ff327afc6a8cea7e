"""Outcomes of ranks: an exception is recognised by its type, whichever thread or process it was raised in."""

from __future__ import annotations

import math
import pickle

import pytest

from adjointlab import MPIWorld, TorchWorld
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Inapplicable
from adjointlab.engine.case import Case
from adjointlab.engine.run_case import is_inapplicable, judge
from adjointlab.engine.subject import SubjectError
from adjointlab.worlds.run import Raised
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Overdue


@pytest.mark.parametrize("watchdog", [3, 0, True, "slow"])
@pytest.mark.parametrize("world", [SimulatedWorld, lambda watchdog: MPIWorld(watchdog=watchdog)])
def test_a_world_refuses_what_is_no_watchdog(world, watchdog):
    if world is not SimulatedWorld:
        pytest.importorskip("mpi4py")
    with pytest.raises(TypeError, match=f"watchdog: {watchdog!r} is not a Watchdog"):
        world(watchdog=watchdog)


@pytest.mark.parametrize("world", [MPIWorld, TorchWorld])
@pytest.mark.parametrize(
    ("patience", "error", "message"),
    [
        ("long", TypeError, "'long' is not a number of seconds"),
        (None, TypeError, "None is not a number of seconds"),
        (-1, ValueError, "-1 s is not positive"),
        (math.nan, ValueError, "nan s is not positive"),
    ],
)
def test_a_world_of_processes_refuses_a_patience_in_which_nothing_can_wait(world, patience, error, message):
    pytest.importorskip("mpi4py")
    pytest.importorskip("torch")
    with pytest.raises(error, match=f"^patience: {message}; math.inf means no limit"):
        world(patience=patience)


def test_a_world_is_strict_or_not():
    pytest.importorskip("mpi4py")
    with pytest.raises(TypeError, match="strict: 'no' is neither True nor False"):
        MPIWorld(strict="no")


def test_an_exception_of_the_lab_is_recognised_and_so_is_what_is_derived_from_it():
    class Incomplete(SubjectError):
        pass

    outcome = Raised.of(Incomplete("no adjoint"))
    assert outcome.kind == "Incomplete"
    assert outcome.is_a(SubjectError)
    assert outcome.is_a(TypeError)
    assert not outcome.is_a(Inapplicable)


def test_it_is_recognised_in_another_process():
    sent = pickle.dumps(Raised.of(Overdue("late")))
    assert pickle.loads(sent).is_a(Overdue)  # noqa: S301 - our own


def test_a_class_of_user_code_is_not_the_labs_of_the_same_name():
    class Inapplicable(Exception):
        pass

    Inapplicable.__module__ = "adjointlab.checks.verdict"  # not even where it says so

    def body(context, _):
        raise Inapplicable("mine")

    result = SimulatedWorld(2).run(body)
    assert [outcome.kind for outcome in result.outcomes] == ["Inapplicable", "Inapplicable"]
    assert not is_inapplicable(result)
    assert judge(Case("RingShift", "adjoint", 2, {}, InputSetting(), 0), result).kind == "raised Inapplicable"


def test_an_exception_whose_message_cannot_be_formed_is_an_outcome_all_the_same():
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no words")

    def body(context, _):
        raise Mute

    result = SimulatedWorld(2).run(body)
    assert "__str__ failed" in result.outcomes[0].message


def test_a_run_is_printed_with_the_ranks_of_each_outcome_and_one_traceback():
    def body(context, _):
        context.comm.Barrier()
        if context.rank:
            raise ValueError("no data")
        context.comm.Barrier()

    text = str(SimulatedWorld().run(body, ranks=3))
    assert text.count("raised ValueError: no data") == 1
    assert "ranks 1, 2: raised ValueError: no data\n" in text
    assert "rank 0: left Barrier() at " in text
    assert text.count("Traceback (most recent call last):\n") == 1
    assert text.endswith("\nValueError: no data")


def test_a_run_that_completed_is_printed_in_a_line():
    assert str(SimulatedWorld().run(lambda *_: 1, ranks=2)) == "ranks 0, 1: returned"


def test_an_exception_without_a_message_is_told_by_the_name_of_its_class_alone() -> None:
    assert str(Raised.of(AssertionError())) == "raised AssertionError"
    assert str(Raised.of(AssertionError("no"))) == "raised AssertionError: no"


def test_a_line_that_announces_the_next_one_is_told_with_it() -> None:
    told = "raised ValueError: Cannot lower: no side can be zero …"
    assert str(Raised.of(ValueError("Cannot lower:\n\tno side can be zero\n\tat line 1"))) == told
    assert str(Raised.of(ValueError("Cannot lower:\n\tno side can be zero"))) == told.removesuffix(" …")
    assert str(Raised.of(ValueError("Cannot lower\nat line 1"))) == "raised ValueError: Cannot lower …"
