"""A child process that user code has forked, and that comes back from it, ends there and takes no part in the run."""

from __future__ import annotations

import os
import sys

import pytest

from adjointlab.worlds.forks import forks_ended
from adjointlab.worlds.run import Dead
from adjointlab.worlds.simulated.world import SimulatedWorld


def exit_code_of_child(leave):
    """Exit code of a child that leaves user code by calling `leave`."""
    with forks_ended("rank 0"):
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        leave()
    return None  # never reached by the child


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (lambda: None, 0),
        (lambda: sys.exit(7), 7),
        (lambda: sys.exit((1 << 40) + 7), 7),
        (lambda: sys.exit("why"), 1),
        (lambda: 1 / 0, 1),
    ],
    ids=["returns", "exits with a number", "exits with a large number", "exits with a text", "raises"],
)
def test_a_child_ends_with_the_exit_code_that_it_would_have_had(leave, code):
    assert exit_code_of_child(leave) == code


def test_the_rank_that_has_forked_goes_on():
    def body(context, _):
        if context.rank == 1:
            child = os.fork()
            if not child:
                sys.exit(0)
            os.waitpid(child, 0)
        return context.comm.allreduce(1)

    assert SimulatedWorld(2).run(body).values == (2, 2)


def test_a_child_does_not_communicate_in_the_place_of_its_parent():
    def body(context, _):
        if context.rank == 1:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
        return context.comm.allreduce(1)

    assert SimulatedWorld(2).run(body).values == (2, 2)


def test_a_child_may_not_communicate_and_what_was_to_be_the_outcome_of_a_rank_stays():
    def body(context, _):
        run = context.comm._run
        if context.rank == 0:
            run.scheduler.cancel(run.scheduler.tasks[2], Dead("before"))
            run._cut_off()
        context.comm.Barrier()

    run = SimulatedWorld(3).run(body)
    assert run.outcomes == (*(Dead("it is a child process"),) * 2, Dead("before"))
