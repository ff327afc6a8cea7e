"""The MPI world: who runs what, and what every process gets to see.

``mpiexec -n 3 python -m pytest tests/worlds/mpi_world/test_world.py`` (also with other numbers from 2 up).
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import time
import traceback

import numpy as np
import pytest

from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.run import PeerFailed, Raised, Returned
from adjointlab.worlds.watchdog import Overdue, Watchdog
from tests.worlds.mpi_world.worlds import opened

pytestmark = pytest.mark.skipif(
    not is_launched(), reason="processes of MPI are needed: run under mpiexec -n 3"
)


@pytest.fixture(scope="module")
def world():
    with opened(patience=0.5) as world:
        yield world


@pytest.fixture
def impatient_world():
    from adjointlab.worlds.mpi.world import MPIWorld

    # Not closed: messages of a run that was interrupted may be on their way, and MPI gives a communicator's number to the next.
    return MPIWorld(watchdog=Watchdog(limit=0.2))


def test_a_world_of_what_is_no_communicator_is_refused():
    from adjointlab.worlds.mpi.world import MPIWorld

    with pytest.raises(TypeError, match=r"^comm: 3 is not a communicator of mpi4py's"):
        MPIWorld(3)


def test_every_process_sees_the_values_of_all_ranks(world):
    run = world.run(lambda context, payload: (context.rank, context.size, payload), "here")

    assert run.completed
    assert run.values == tuple((rank, world.ranks, "here") for rank in range(world.ranks))


@pytest.mark.parametrize("fewer", [1, 2])
def test_a_run_on_fewer_ranks_has_a_communicator_of_exactly_that_size(world, fewer):
    run = world.run(lambda context, _: (context.comm.Get_size(), context.comm.allreduce(1)), None, fewer)

    assert run.values == ((fewer, fewer),) * fewer


def test_followers_run_the_leaders_payloads_and_all_return_the_leaders_result(world):
    seen = []

    def body(context, payload):
        seen.append(payload)
        return context.comm.allreduce(payload["step"])

    def conduct(run):
        assert world.is_leader
        return [run({"step": step}, world.ranks).values[-1] for step in (1, 2, 3)]

    assert world.lead(body, conduct) == [world.ranks * step for step in (1, 2, 3)]
    assert seen == [{"step": step} for step in (1, 2, 3)]


def test_a_payload_is_a_copy_on_every_rank(world):
    payload = [1]
    run = world.lead(lambda context, given: given.append(context.rank) or given, lambda run: run(payload, 2))

    assert run.values == ([1, 0], [1, 1])
    assert payload == [1]


def test_what_the_leader_raises_every_process_raises_with_its_traceback(world):
    def conduct(run):
        raise KeyError("the reason")

    with pytest.raises(KeyError, match="the reason") as caught:
        world.lead(lambda context, _: None, conduct)
    assert "conduct" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_an_exception_that_cannot_be_pickled_is_raised_as_text(world):
    class Local(Exception):
        pass

    def conduct(run):
        raise Local("the reason")

    with pytest.raises(Exception, match="the reason") as caught:
        world.lead(lambda context, _: None, conduct)
    assert type(caught.value) is (Local if world.is_leader else RuntimeError)
    assert "Local" in repr(type(caught.value)) + str(caught.value)


def test_a_skip_on_the_leader_is_a_skip_everywhere(world):
    def conduct(run):
        pytest.skip("not today")

    with pytest.raises(pytest.skip.Exception, match="not today"):
        world.lead(lambda context, _: None, conduct)


def test_a_payload_that_cannot_be_pickled_leaves_the_world_in_order(world):
    def conduct(run):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError), match="pickle"):
            run(lambda: None, world.ranks)
        with pytest.raises(ValueError, match=r"1 to \d"):
            run(None, world.ranks + 1)
        return run(None, world.ranks).completed

    assert world.lead(lambda context, _: None, conduct)


def test_a_value_that_cannot_be_pickled_is_an_outcome_of_its_rank(world):
    def body(context, _):
        return (lambda: 0) if context.rank == 1 else 0

    outcome = world.run(body).outcomes[1]

    assert isinstance(outcome, Raised)
    assert "rank 1 returned a function that cannot be pickled" in outcome.message


def _leave(context, payload):
    if context.rank == 1:
        raise payload
    context.comm.Barrier()


@pytest.mark.parametrize(
    "exception", [ValueError("why"), SystemExit(3)], ids=lambda exception: type(exception).__name__
)
def test_an_exception_is_an_outcome_with_the_line_that_raised_it(world, exception):
    run = world.run(_leave, exception)

    assert not run.completed
    outcome = run.outcomes[1]
    assert isinstance(outcome, Raised)
    assert (outcome.kind, outcome.message) == (type(exception).__name__, str(exception))
    assert outcome.exception.args == exception.args
    assert "raise payload" in outcome.traceback
    assert "adjointlab" not in outcome.traceback.replace(os.path.dirname(__file__), "")
    assert isinstance(run.outcomes[0], PeerFailed)
    assert run.outcomes[0].peers == (1,)


@pytest.mark.parametrize("rank", [0, 1], ids=["leader", "follower"])
def test_ctrl_c_in_the_leader_or_a_follower_ends_every_process(world, rank):
    def body(context, _):
        if context.rank == rank:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        context.comm.Barrier()

    with pytest.raises(KeyboardInterrupt):
        world.lead(body, lambda run: [run(None, world.ranks) for _ in range(3)])
    assert world.run(lambda context, _: context.comm.allreduce(1)).completed


def test_ctrl_c_in_a_waiting_follower_ends_every_process(world):
    def body(context, _):
        if context.rank == 1:
            # It comes when the body has ended and the process waits for its next command.
            signal.setitimer(signal.ITIMER_REAL, 0.02)

    def conduct(run):
        run(None, world.ranks)
        time.sleep(0.1)
        for _ in range(3):
            run(None, 1)

    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            world.lead(body, conduct)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert world.run(lambda context, _: context.comm.allreduce(1)).completed


def test_ctrl_c_in_a_rank_that_has_swallowed_the_watchdogs_exception_ends_every_process(impatient_world):
    def body(context, _):
        if context.rank == 1:
            try:
                time.sleep(60)
            except Overdue:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        impatient_world.run(body)


def test_causes_of_an_exception_that_form_a_circle_end_its_run_alone(world):
    def body(context, _):
        error = ValueError("first")
        error.__cause__ = KeyError("second")
        error.__cause__.__cause__ = error
        raise error

    assert [outcome.kind for outcome in world.run(body).outcomes] == ["ValueError"] * world.ranks


def test_an_interrupt_that_user_code_has_made_up_ends_its_run_alone(world):
    def body(context, _):
        raise KeyboardInterrupt

    assert [outcome.kind for outcome in world.run(body).outcomes] == ["KeyboardInterrupt"] * world.ranks
    assert world.run(lambda context, _: context.comm.allreduce(1)).completed


def test_global_random_streams_follow_from_seed_and_rank_and_are_put_back(world):
    def draw(context, _):
        return random.random(), np.random.rand()

    before = random.getstate(), np.random.get_state()[1].tolist()
    once, again, other = (world.run(draw, seed=seed).values for seed in (1, 1, 2))

    assert once == again
    assert len({*once, *other}) == 2 * world.ranks
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_value_is_shared(world):
    assert world.share(f"from {'the leader' if world.is_leader else 'a follower'}") == "from the leader"


def test_a_value_that_cannot_be_shared_is_an_error_everywhere(world):
    with pytest.raises(Exception, match="pickle"):
        world.share(lambda: None)
    assert world.share(1) == 1


def test_a_run_within_a_run_is_refused_everywhere(world):
    run = world.run(lambda context, _: world.run(lambda inner, _: None))

    assert all(isinstance(outcome, Raised) and "within a run" in outcome.message for outcome in run.outcomes)


def test_waiting_followers_leave_the_processor_alone(world):
    def conduct(run):
        run(None, world.ranks)
        time.sleep(0.5)
        return run(None, world.ranks)

    used = world.lead(lambda context, _: time.process_time(), conduct)
    start = time.process_time()
    world.lead(lambda context, _: None, lambda run: time.sleep(0.5))

    assert used.completed
    assert time.process_time() - start < 0.25


def test_a_communicator_serves_all_good_runs(world):
    leaked = world.leaked_communicators
    communicators = {
        id(world.run(lambda context, _: None)) and id(world._communicators[world.ranks]) for _ in range(5)
    }

    assert len(communicators) == 1
    assert world.leaked_communicators == leaked
    assert isinstance(world.run(lambda context, _: sys.platform).outcomes[0], Returned)
