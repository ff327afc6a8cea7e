"""Ranks do not disturb each other or the caller: random streams, grad mode, threads, interrupts."""

import contextvars
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import WorldName
from tests.worlds.simulated.completed import values

WORLD = SimulatedWorld(4)


def draws(torch=None):
    numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
    if torch is not None:
        numbers.append(float(torch.rand(())))
    return numbers


def test_each_rank_has_its_own_random_streams_whatever_the_others_draw():
    torch = pytest.importorskip("torch")

    def alone(comm):
        return [draws(torch) for _ in range(3)]

    def interleaved(comm):
        found = []
        for _ in range(3):
            found.append(draws(torch))
            comm.Barrier()
        return found

    def columns(found):
        # NumPy's randn keeps half a pair of numbers, which does not survive a hand-over.
        return [[row[:3] + row[4:] for row in rank][:1] for rank in found]

    first = values(alone)
    assert columns(first) == columns(values(interleaved))
    assert first == values(alone)
    assert first != values(alone, seed=1)
    everything = [number for rank in first for row in rank for number in row]
    assert len(set(everything)) == len(everything)


def test_random_streams_continue_where_the_rank_left_them():
    def alone(comm):
        return [random.random() for _ in range(700)], np.random.rand(700).tolist()

    def interleaved(comm):
        python, numpy = [], []
        for _ in range(700):
            python.append(random.random())
            numpy.append(np.random.rand())
            comm.Barrier()
        return python, numpy

    assert values(alone, 2) == values(interleaved, 2)


def test_seeding_in_one_rank_does_not_reach_another():
    def body(comm):
        random.seed(1)
        np.random.seed(1)
        comm.Barrier()
        first = random.random(), np.random.rand()
        comm.Barrier()
        random.seed(comm.rank)
        return first

    assert len(set(values(body))) == 1


def test_runs_together_are_the_runs_alone_and_the_caller_gets_its_streams_back():
    def run(seed):
        return values(lambda comm: draws(), ranks=2, seed=seed)

    alone = [run(seed) for seed in (1, 2)]
    np.random.seed(5)
    np.random.randn()  # leaves half a pair
    expected = np.random.RandomState(5).randn(3).tolist()[1:]
    with WORLD.together():
        assert [run(seed) for seed in (1, 2)] == alone
    assert [np.random.randn(), np.random.randn()] == expected
    assert [run(seed) for seed in (1, 2)] == alone


@pytest.mark.parametrize("odd", [False, True])
def test_the_caller_gets_its_random_streams_back(odd):
    torch = pytest.importorskip("torch")

    def prepare():
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        if odd:  # leaves half a pair of normal numbers behind
            random.gauss(0, 1)
            np.random.randn()

    prepare()
    expected = [draws(torch) for _ in range(3)]
    prepare()
    values(lambda comm: [draws(torch), comm.Barrier()])
    assert [draws(torch) for _ in range(3)] == expected


def test_a_caller_with_another_bit_generator_gets_it_back():
    own = np.random.PCG64(1)
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(own)
    try:
        values(lambda comm: np.random.rand())
        assert np.random.get_bit_generator() is own
    finally:
        np.random.set_bit_generator(before)


def test_backward_passes_communicate_inside_ranks():
    torch = pytest.importorskip("torch")

    def body(comm):
        class SumOverRanks(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                total = torch.empty_like(x)
                comm.Allreduce(x.detach(), total)
                return total

            @staticmethod
            def backward(ctx, grad):
                total = torch.empty_like(grad)
                comm.Allreduce(grad.contiguous(), total)
                return total

        x = torch.full((3,), float(comm.rank), requires_grad=True)
        ((comm.rank + 1) * SumOverRanks.apply(x) ** 2).sum().backward()
        return x.grad[0].item()

    assert values(body, 2) == (6.0, 6.0)


def test_a_rank_blocked_in_a_backward_pass_is_called_out_and_the_next_run_is_fine():
    torch = pytest.importorskip("torch")

    def body(comm):
        class Stuck(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                comm.Recv(np.empty(1), 1 - comm.rank)

        Stuck.apply(torch.ones(1, requires_grad=True)).sum().backward()

    for seed in range(3):
        run = WORLD.run(lambda context, _: body(context.comm), ranks=2, seed=seed)
        assert [finding.kind for finding in run.findings] == ["deadlock"]
    assert values(lambda comm: comm.allreduce(1), 2) == (2, 2)


def test_grad_mode_is_fresh_in_every_rank():
    torch = pytest.importorskip("torch")

    def body(comm):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        comm.Barrier()
        return before

    for _ in range(3):
        assert values(body) == (True,) * 4
    assert torch.is_grad_enabled()


def test_ranks_see_the_callers_context_variables_and_keep_their_own_changes():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("caller")

    def body(comm):
        before = variable.get()
        variable.set(str(comm.rank))
        comm.Barrier()
        return before, variable.get()

    assert values(body, 2) == (("caller", "0"), ("caller", "1"))
    assert variable.get() == "caller"


def threads_since(before: set[threading.Thread]) -> set[threading.Thread]:
    """The threads that there are now and were not before: those of other worlds may end meanwhile."""
    return set(threading.enumerate()) - before


def test_threads_are_reused_from_run_to_run_and_ended_by_close():
    world, before = SimulatedWorld(4), set(threading.enumerate())
    world.run(lambda context, _: context.comm.Barrier())
    threads = threads_since(before)
    for _ in range(5):
        world.run(lambda context, _: context.comm.Barrier())
    assert threads
    assert threads_since(before) == threads
    world.close()
    assert not threads_since(before)


def test_the_threads_of_a_world_that_nobody_has_any_more_end():
    world, before = SimulatedWorld(4), set(threading.enumerate())
    world.run(lambda context, _: context.comm.Barrier())
    threads = threads_since(before)
    del world
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert len(threads) == 4
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_run_that_the_system_gives_too_few_threads_says_so_and_leaves_none_behind(monkeypatch, seed):
    start, room = threading.Thread.start, 5

    def limited(thread):
        nonlocal room
        if room == 0:
            raise RuntimeError("can't start new thread")
        room -= 1
        start(thread)

    world, before = SimulatedWorld(8), set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(RuntimeError, match="needs a thread, and the system allows this process no more"):
            world.run(lambda context, _: context.comm.Barrier(), seed=seed)
        assert len(threads_since(before)) == 5
    assert world.run(lambda context, _: context.comm.allreduce(1)).values == (8,) * 8
    world.close()
    assert not threads_since(before)


def test_ranks_that_never_wait_share_one_thread():
    def body(comm):
        return threading.get_ident()

    assert len(set(values(body))) == 1


class TooLate(Exception):
    """Raised by a handler of alarms, as one that limits the time of a test has it."""


def too_late(number, frame):
    raise TooLate


@pytest.mark.parametrize(
    ("number", "handler", "raised"),
    [
        # A shell makes its background jobs ignore the signal.
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGALRM, too_late, TooLate),
    ],
)
def test_an_exception_of_a_handler_of_signals_calls_all_ranks_out_and_reaches_the_caller(
    number, handler, raised
):
    unwound = []

    def body(comm):
        try:
            if comm.rank == 3:
                os.kill(os.getpid(), number)
                while True:
                    time.sleep(0.001)
            comm.Barrier()
        finally:
            unwound.append(comm.rank)

    state, before = random.getstate(), signal.signal(number, handler)
    try:
        with pytest.raises(raised):
            values(body)
    finally:
        signal.signal(number, before)
    assert sorted(unwound) == [0, 1, 2, 3]
    assert random.getstate() == state
    assert values(lambda comm: comm.allreduce(1)) == (4,) * 4


def test_torch_that_a_rank_imports_has_streams_and_levels_of_each_rank_in_the_first_case_too():
    script = """
import sys
from adjointlab.worlds.simulated.world import SimulatedWorld

def body(context, _):
    import torch
    def doubled(x):
        context.comm.barrier()
        return 2 * x
    torch.manual_seed(context.rank)
    context.comm.barrier()
    drawn = float(torch.rand(1))
    torch.manual_seed(context.rank)
    assert drawn == float(torch.rand(1))
    return torch.func.jvp(doubled, (torch.ones(1),), (torch.ones(1),))[1].tolist()

assert "torch" not in sys.modules
run = SimulatedWorld(2).lead(body, lambda run: run(None, 2))
assert run.completed and run.values == ([2.0], [2.0]), run.outcomes
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)


def test_a_rank_that_never_comes_back_does_not_keep_the_interpreter():
    script = """
import os, signal
from adjointlab.worlds.simulated import scheduler
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import WorldName
scheduler.GRACE = 0.2
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job would ignore

def body(context, _):
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        try:
            while True: pass
        except BaseException: pass

try:
    SimulatedWorld(2).run(body)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout == "interrupted\n"
    assert done.returncode == 0


def test_a_run_has_the_ranks_it_is_asked_for():
    assert values(lambda comm: (comm.rank, comm.Get_size()), 1) == ((0, 1),)
    assert len(values(lambda comm: comm.allreduce(1), 100)) == 100
    with pytest.raises(ValueError, match="ranks must be at least 1"):
        WORLD.run(lambda context, _: None, ranks=0)


def test_the_simulated_world_takes_schedules_has_one_process_and_never_runs_out():
    world = SimulatedWorld()
    assert (world.ranks, world.can_schedule, world.has_communicator, world.is_leader) == (8, True, True, True)
    # So their arrays on devices are not staged, as docs/design.md says.
    assert all(values(lambda comm: comm.takes_device_memory))
    # A hang is seen at once here, and needs no simulation.
    assert (world.can_revoke, world.is_exhausted) == (False, False)


def test_lead_hands_the_leader_the_runs():
    def conduct(run):
        return [run(payload, ranks, seed=seed).values for payload, ranks, seed in (("a", 2, 0), ("b", 1, 3))]

    found = WORLD.lead(lambda context, payload: payload + str(context.rank), conduct)
    assert found == [("a0", "a1"), ("b0",)]
    assert WORLD.share(found) is found
    assert WORLD.is_leader
    assert WORLD.name == "simulated"


def test_mpi_is_not_needed():
    script = """
import sys
sys.modules["mpi4py"] = None
import numpy as np
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import WorldName
assert SimulatedWorld(3).run(lambda context, _: context.comm.allreduce(1)).values == (3, 3, 3)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_simulated_world_has_eight_ranks_unless_told_and_leads_its_runs_alone():
    world = SimulatedWorld()
    assert world.ranks == 8
    assert (world.name, world.can_schedule, world.can_revoke) == (WorldName.SIMULATED, True, False)
    assert (world.has_communicator, world.is_leader, world.is_exhausted) == (True, True, False)
    assert world.share(world) is world


def test_without_a_seed_a_run_has_the_order_and_the_random_streams_of_seed_0():
    def body(context, _):
        arrived = [context.comm.recv() for _ in range(2 * context.comm.size - 2)] if context.rank == 0 else []
        for _ in range(2) if context.rank else ():
            context.comm.send(context.rank, 0)
        return arrived, draws()

    runs = [WORLD.run(body, seed=seed) for seed in (0, 1)]
    assert runs[0] != runs[1]
    assert WORLD.run(body) == runs[0]
    assert WORLD.lead(body, lambda run: run(None, 4)) == runs[0]
    assert WORLD.lead(body, lambda run: run(None, 4, seed=1)) == runs[1]


@pytest.mark.parametrize("other", [-1, 1])
def test_a_communicator_of_the_run_is_given_to_the_thread_of_the_running_rank_alone(monkeypatch, other):
    def body(context, _):
        run = context.comm._run
        assert run.communicator() is context.comm
        with monkeypatch.context() as patched:
            thread = threading.get_ident() + other
            patched.setattr("adjointlab.worlds.simulated.simulation.get_ident", lambda: thread)
            with pytest.raises(RuntimeError, match="a thread that user code has started"):
                run.communicator()
        return True

    result = WORLD.run(body, ranks=2)
    assert result.values == (True, True)
    assert [finding.text[:7] for finding in result.findings] == ["rank 0:", "rank 1:"]
