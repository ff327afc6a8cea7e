"""Each way in which a run goes wrong is found, and reported with rank, call and line."""

import itertools
import re
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.call_labels import CallLabel, called_as
from adjointlab.worlds.run import Blocked, PeerFailed, Raised, Returned
from adjointlab.worlds.simulated.moment import Moment
from adjointlab.worlds.simulated.object_collectives import pickled
from adjointlab.worlds.simulated.scheduler import FRUITLESS_POLLS, Scheduler
from adjointlab.worlds.simulated.schedules.strategies import RoundRobin
from adjointlab.worlds.simulated.simulation import Diagnosis
from adjointlab.worlds.simulated.workers import WorkerPool
from adjointlab.worlds.simulated.world import SimulatedWorld

WORLD = SimulatedWorld(4)
HERE = Path(__file__).name


def run(body, ranks=2, seed=0):
    return WORLD.run(lambda context, _: body(context.comm), ranks=ranks, seed=seed)


def typed(datatype):
    return [np.ones(2), ([1, 1], [0, 8]), [datatype] * 2]


def line():
    """The caller's line, for the line after it."""
    return sys._getframe(1).f_lineno + 1


def only(kind, result):
    assert [finding.kind for finding in result.findings] == [kind], result
    assert not result.completed
    return result.findings[0].text


@pytest.mark.parametrize("seed", range(4))
def test_a_circle_of_receives_is_a_deadlock_with_its_cycle(seed):
    lines = {}

    def body(comm):
        lines["here"] = line()
        comm.Recv(np.empty(1), source=(comm.rank + 1) % 3, tag=7)

    result = run(body, 3, seed)
    text = only("deadlock", result)
    for rank in range(3):
        other = (rank + 1) % 3
        assert f"rank {rank} in Recv(source={other}, tag=7) at " in text
        outcome = result.outcomes[rank]
        assert isinstance(outcome, Blocked)
        assert outcome.waits_for == (other,)
        assert outcome.call == f"Recv(source={other}, tag=7)"
        assert outcome.where.endswith(f"{HERE}:{lines['here']}")
    assert re.search(r"cycle: rank 0 → rank 1 → rank 2 → rank 0", text)


def test_waiting_for_a_rank_that_has_ended_is_a_deadlock():
    def body(comm):
        if comm.rank == 0:
            comm.Barrier()

    text = only("deadlock", run(body))
    assert "rank 0 in Barrier()" in text
    assert "waits for rank 1 (which has ended)" in text


def test_a_message_with_the_wrong_tag_is_named_beside_the_deadlock():
    def body(comm):
        if comm.rank == 0:
            comm.Send(np.ones(3), 1, tag=1)
        else:
            comm.Recv(np.ones(3), 0, tag=2)

    text = only("deadlock", run(body))
    assert "rank 1 has not received Send(dest=1, tag=1)" in text
    assert "on rank 0, 3 x float64" in text


def test_a_wait_names_the_requests_it_waits_for():
    def body(comm):
        requests = [comm.Irecv(np.empty(1), 1 - comm.rank, tag) for tag in (1, 2)]
        comm.Send(np.ones(1), 1 - comm.rank, 2)
        MPI.Request.Waitall(requests)

    text = only("deadlock", run(body))
    assert "rank 0 in Waitall(requests=2)" in text
    assert "for Irecv(source=1, tag=1)" in text
    assert "tag=2) at" not in text


def test_an_unbuffered_exchange_of_sends_deadlocks_under_some_seed_only():
    def body(comm):
        comm.Send(np.ones(1), 1 - comm.rank)
        comm.Recv(np.ones(1), 1 - comm.rank)

    assert run(body).completed
    found = [result for seed in range(1, 20) if not (result := run(body, seed=seed)).completed]
    assert found
    assert "MPI promises no buffering" in only("deadlock", found[0])


def test_synchronous_sends_to_each_other_always_deadlock():
    def body(comm):
        comm.Ssend(np.ones(1), 1 - comm.rank)
        comm.Recv(np.ones(1), 1 - comm.rank)

    only("deadlock", run(body))


@pytest.mark.parametrize("seed", range(3))
def test_asking_for_ever_is_a_livelock(seed):
    def body(comm):
        request = comm.Irecv(np.empty(1), 1 - comm.rank)
        while not request.Test():
            pass

    result = run(body, seed=seed)
    text = only("livelock", result)
    assert "rank 0 in Test()" in text
    assert all(isinstance(outcome, Blocked) for outcome in result.outcomes)


def test_asking_while_the_other_waits_for_ever_is_a_livelock():
    def body(comm):
        if comm.rank == 0:
            comm.Recv(np.empty(1), 1)
        while not comm.Iprobe(0):
            pass

    only("livelock", run(body))


def test_asking_some_hundred_times_is_no_livelock():
    def body(comm):
        if comm.rank == 0:
            return sum(comm.Iprobe(1) for _ in range(400))
        return None

    assert run(body).completed


@pytest.mark.parametrize("seed", range(3))
def test_loops_of_asking_that_end_by_themselves_are_no_livelock(seed):
    def until_later(comm):
        request = comm.Irecv(np.empty(1), 1 - comm.rank)
        end = time.monotonic() + 0.02
        while not request.Test() and time.monotonic() < end:
            pass
        comm.Send(np.ones(1), 1 - comm.rank)
        request.Wait()

    def often(comm):
        return sum(comm.Iprobe() for _ in range(3000))

    assert run(until_later, seed=seed).completed
    assert run(often, seed=seed).completed


@pytest.mark.parametrize(("seconds", "is_found"), [(0.0, False), (0.49, False), (0.5, True), (1.0, True)])
def test_ranks_that_have_polled_in_vain_for_half_a_second_each_are_a_livelock(seconds, is_found):
    def body(comm):
        scheduler = comm._run.scheduler
        scheduler._stuck_handler.on_livelock([scheduler.tasks[1]], seconds)
        return comm.rank

    result = run(lambda comm: body(comm) if comm.rank == 0 else comm.Barrier())
    assert ("livelock" in {finding.kind for finding in result.findings}) is is_found


def test_the_time_of_polling_in_vain_counts_from_the_last_rank_that_began():
    seconds = []

    class Handler:
        def on_livelock(self, stuck, found):
            seconds.append(found)

    scheduler = Scheduler(2, WorkerPool(), None, RoundRobin(), Handler(), None)
    now = Moment.now()
    for task, ago in zip(scheduler.tasks, (100.0, 0.0), strict=True):
        task.polled_at, task.fruitless = scheduler.progress, FRUITLESS_POLLS
        task.polling_since = Moment(now.wall - ago, now.processor - ago)
    scheduler._check_for_livelock()
    assert len(seconds) == 1
    assert seconds[0] < 20


@pytest.mark.parametrize(("seconds", "is_livelock"), [(0.0, False), (0.49, False), (0.5, True), (9.0, True)])
def test_ranks_that_poll_in_vain_for_half_a_second_are_a_livelock(seconds, is_livelock):
    def ask(comm):
        Diagnosis(comm._run).on_livelock([comm._task], seconds)
        comm.Iprobe()

    found = WORLD.run(lambda context, _: ask(context.comm), ranks=1).findings
    assert [finding.kind for finding in found] == ["livelock"] * is_livelock


def test_ranks_that_sleep_between_their_questions_are_a_livelock_too():
    """They need hardly any processor time: a tenth of what passes on the wall counts in any case."""
    assert Moment(0.0, 0.0).until(Moment(6.0, 0.01)) == 0.6
    assert Moment(1.0, 1.0).until(Moment(2.0, 1.75)) == 0.75
    assert Moment(0.0, 0.0).until(Moment(1.0, 3.0)) == 1.0  # other threads of the process work as well


def test_a_livelock_takes_little_time_to_find_and_none_once_a_rank_has_failed():
    def body(comm):
        if comm.rank == 0 and comm.size == 2:
            raise RuntimeError("gone")
        while not comm.Iprobe():
            pass

    # Processor time: other processes may slow this one down.
    started = time.process_time()
    assert isinstance(run(body, ranks=2).outcomes[1], PeerFailed)
    assert time.process_time() - started < 0.4
    only("livelock", run(body, ranks=3))
    assert time.process_time() - started < 3


@pytest.mark.parametrize("seed", range(4))
def test_an_exception_calls_the_waiting_out_and_lets_the_others_end(seed):
    def body(comm):
        if comm.rank == 0:
            raise ValueError("broken")
        if comm.rank == 1:
            return "well"
        if comm.rank == 2:
            return comm.recv(source=0)
        while not comm.Iprobe(0):
            pass
        return None

    result = run(body, 4, seed)
    raised, well, waiting, polling = result.outcomes
    assert isinstance(raised, Raised)
    assert (raised.kind, raised.message) == ("ValueError", "broken")
    assert 'raise ValueError("broken")' in raised.traceback
    assert isinstance(raised.exception, ValueError)
    assert well == Returned("well")
    assert isinstance(waiting, PeerFailed)
    assert waiting.peers == (0,)
    assert waiting.call.startswith("recv(source=0")
    assert isinstance(polling, PeerFailed)
    assert result.findings == ()


def labelled(comm, label):
    """A collective that a library calls for what its user called by another name."""
    total = np.empty(1)
    with called_as(label):
        request = comm.Iallreduce(np.ones(1), total)
    request.Wait()
    return total[0]


def test_collectives_of_one_label_match():
    label = CallLabel("all_reduce", (("op", "AVG"),))
    assert run(lambda comm: labelled(comm, label)).values == (2.0, 2.0)


MISMATCHES = {
    "they call different collectives": (lambda c: c.Barrier(), lambda c: c.Bcast(np.ones(1))),
    "1, they call different collectives": (
        lambda c: c.Barrier(),
        lambda c: c.Ibarrier().Wait(),  # [MPI41, section 6.12]
    ),
    "1, they call different collectives, neither of which blocks": (
        lambda c: c.Ibarrier().Wait(),
        lambda c: c.Ibcast(np.ones(1)).Wait(),
    ),
    "1, they call different collectives, of which the labels differ": (
        lambda c: labelled(c, CallLabel("all_reduce", (("op", "AVG"),))),
        lambda c: labelled(c, CallLabel("all_reduce", (("op", "SUM"),))),
    ),
    "1, they call different collectives, of which one has a label": (
        lambda c: labelled(c, CallLabel("Iallreduce")),
        lambda c: c.Iallreduce(np.ones(1), np.empty(1)).Wait(),
    ),
    "the root is 0 on one and 1 on the other": (
        lambda c: c.Bcast(np.ones(1), root=0),
        lambda c: c.Bcast(np.ones(1), root=1),
    ),
    "the operation is SUM on one and MAX on the other": (
        lambda c: c.Allreduce(np.ones(1), np.ones(1)),
        lambda c: c.Allreduce(np.ones(1), np.ones(1), MPI.MAX),
    ),
    "the datatype is float64 on one and float32 on the other": (
        lambda c: c.Allreduce(np.ones(1), np.ones(1)),
        lambda c: c.Allreduce(np.ones(1, "f"), np.ones(1, "f")),
    ),
    "the count or shape is 2 on one and 3 on the other": (
        lambda c: c.Bcast(np.ones(2)),
        lambda c: c.Bcast(np.ones(3)),
    ),
    "the count or shape is (2, 1) on one and (1, 2) on the other": (
        lambda c: c.Reduce_scatter(np.ones(3), np.empty(2), [2, 1]),
        lambda c: c.Reduce_scatter(np.ones(3), np.empty(2), [1, 2]),
    ),
    "rank 0 sends DOUBLE to rank 1, which expects INT64_T": (
        lambda c: c.Alltoallw([np.ones(2), ([1, 1], [0, 8]), [MPI.INT64_T, MPI.DOUBLE]], typed(MPI.INT64_T)),
        lambda c: c.Alltoallw(typed(MPI.INT64_T), typed(MPI.INT64_T)),
    ),
    "rank 1 sends 2 elements to rank 0, which expects 1": (
        lambda c: c.Gatherv(np.ones(2), [np.ones(3), [2, 1]]),
        lambda c: c.Gatherv(np.ones(2), None),
    ),
    "1, the operation is SUM on one and MAX on the other": (
        lambda c: c.allreduce(1),
        lambda c: c.allreduce(1, op=MPI.MAX),
    ),
    "1, the operation is MIN on one and an operation of user code on the other": (
        lambda c: c.reduce(1, MPI.MIN),
        lambda c: c.reduce(1, max),
    ),
    "rank 1, a member of the group, gives another one": (
        lambda c: c.Create(c.group),
        lambda c: c.Create(c.group.Incl([1])),
    ),
    "in collective 2, they call different collectives": (
        lambda c: (c.Barrier(), c.allreduce(1), c.Barrier()),
        lambda c: (c.Barrier(), c.Barrier(), c.allreduce(1)),
    ),
}


@pytest.mark.parametrize("why", MISMATCHES)
@pytest.mark.parametrize("seed", range(2))
def test_collectives_that_do_not_match_are_reported_with_both_calls(why, seed):
    first, second = MISMATCHES[why]
    result = run(lambda comm: (first if comm.rank == 0 else second)(comm), seed=seed)
    text = only("mismatched collective", result)
    if seed == 0:
        assert re.sub(", (neither )?of which .*", "", why) in text
    assert re.search(rf"rank 0 calls \w+\(.*\) at .*{HERE}:\d+", text)
    assert re.search(rf"rank 1 calls \w+\(.*\) at .*{HERE}:\d+", text)
    assert all(isinstance(outcome, Blocked) for outcome in result.outcomes)


COUNTED = {
    "Allgather": lambda c, n: c.Allgather(np.ones(n), np.empty(2 * n)),
    "Allgather in place": lambda c, n: c.Allgather(MPI.IN_PLACE, np.ones(2 * n)),
    "Alltoall": lambda c, n: c.Alltoall(np.ones(2 * n), np.empty(2 * n)),
    "Alltoall in place": lambda c, n: c.Alltoall(MPI.IN_PLACE, np.ones(2 * n)),
    "Allreduce": lambda c, n: c.Allreduce(np.ones(n), np.empty(n)),
    "Allreduce in place": lambda c, n: c.Allreduce(MPI.IN_PLACE, np.ones(n)),
    "Reduce_scatter_block": lambda c, n: c.Reduce_scatter_block(np.ones(2 * n), np.empty(n)),
    "Reduce_scatter_block in place": lambda c, n: c.Reduce_scatter_block(MPI.IN_PLACE, np.ones(2 * n)),
    "Gather": lambda c, n: c.Gather(np.ones(n), np.empty(2 * n)),
    "Gather in place": lambda c, n: c.Gather(np.ones(n) if c.rank else MPI.IN_PLACE, np.ones(2 * n)),
    "Scatter": lambda c, n: c.Scatter(np.ones(2 * n), np.empty(n)),
    "Scatter in place": lambda c, n: c.Scatter(np.ones(2 * n), np.empty(n) if c.rank else MPI.IN_PLACE),
    "Scan": lambda c, n: c.Scan(np.ones(n), np.empty(n)),
    "Reduce in place": lambda c, n: c.Reduce(np.ones(n) if c.rank else MPI.IN_PLACE, np.empty(n)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counts_that_differ_between_ranks_are_told_in_place_too(name):
    call = COUNTED[name]
    assert run(lambda comm: call(comm, 3)).completed
    text = only("mismatched collective", run(lambda comm: call(comm, 2 + 2 * comm.rank)))
    assert "the count or shape is 2 on one and 4 on the other" in text


def test_counts_that_do_not_sum_to_what_is_sent_are_told_with_the_first_and_the_last_call():
    def body(comm):
        comm.Reduce_scatter(np.ones(7), np.empty(comm.rank + 1))

    text = only("mismatched collective", run(body, 3))
    assert "send count 7, but the receive counts [1, 2, 3] sum to 6" in text
    assert "rank 0 calls Reduce_scatter(" in text
    assert "rank 2 calls Reduce_scatter(" in text


def test_operations_of_user_code_are_taken_to_agree_and_makers_are_shown_with_their_groups():
    assert run(lambda comm: comm.allreduce(comm.rank, lambda a, b: max(a, b))).values == (1, 1)
    made = only(
        "mismatched collective", run(lambda comm: comm.Create(comm.group.Incl([[0, 1], [1]][comm.rank])))
    )
    assert "rank 0 calls Create(group=[0, 1]) at" in made
    assert "rank 1 calls Create(group=[1]) at" in made


@pytest.mark.parametrize("seed", range(3))
def test_collectives_of_two_communicators_in_different_orders_are_a_mismatch_with_both_named(seed):
    lines = {}

    def body(comm):
        lines["one"] = line()
        one = comm.Dup()
        lines["other"] = line()
        other = comm.Dup()
        first, second = (one, other) if comm.rank == 0 else (other, one)
        first.Barrier()
        second.Barrier()

    text = only("mismatched collective", run(body, seed=seed))
    assert "rank 0 and rank 1 call collectives of two communicators in different orders" in text
    for rank, made in ((0, "one"), (1, "other")):
        place = rf"the communicator of ranks 0 1, made at .*{HERE}:{lines[made]}"
        assert re.search(rf"rank {rank} is in one of {place}", text)
    assert "cycle: rank 0 → rank 1 → rank 0" in text


def test_a_collective_that_waits_for_a_receive_is_no_such_mismatch():
    def body(comm):
        other = comm.Dup()
        if comm.rank == 0:
            other.Barrier()
        else:
            comm.Recv(np.ones(1), 0)

    only("deadlock", run(body))


def test_bystanders_of_a_mismatch_are_called_out_as_peers():
    def body(comm):
        if comm.rank < 2:
            comm.Bcast(np.ones(1), root=comm.rank)
        else:
            comm.Recv(np.ones(1), 0)

    result = run(body, 3)
    only("mismatched collective", result)
    assert isinstance(result.outcomes[2], PeerFailed)
    assert result.outcomes[2].peers == (0, 1)


@pytest.mark.parametrize("receive_first", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("sent", "buffer", "why"),
    [
        (np.ones(3), np.ones(2), "24 bytes were sent, and the receive buffer holds 16"),
        (np.ones(3), np.ones(3, "f"), "float64 was sent, and float32 is received"),
        (np.ones(3), np.ones(3, "i8"), "float64 was sent, and int64 is received"),
    ],
)
def test_a_message_that_does_not_fit_is_reported_with_both_calls(sent, buffer, why, receive_first, seed):
    def body(comm):
        if comm.rank == 0:
            if receive_first:
                comm.recv(source=1)
            comm.Send(sent, 1, 5)
        else:
            request = comm.Irecv(buffer, 0, 5)
            comm.send("ready", 0) if receive_first else None
            request.Wait()

    text = only("mismatched message", run(body, seed=seed))
    assert why in text
    assert re.search(rf"sent      Send\(dest=1, tag=5\) at .*{HERE}:\d+ on rank 0", text)
    assert re.search(rf"received  Irecv\(source=0, tag=5\) at .*{HERE}:\d+ on rank 1", text)


def test_an_object_received_as_an_array_is_a_mismatch_and_so_is_the_reverse():
    def objects(comm):
        comm.send([1], 1) if comm.rank == 0 else comm.Recv(np.ones(100), 0)

    def arrays(comm):
        comm.Send(np.ones(1), 1) if comm.rank == 0 else comm.recv(source=0)

    assert "an object was sent, and float64 is received" in only("mismatched message", run(objects))
    assert "an object is received" in only("mismatched message", run(arrays))


@pytest.mark.parametrize(
    ("dtype", "fits"), [("u1", True), ("i1", False), ("?", False), ("i2", False), ("f4", False)]
)
def test_an_object_is_received_as_the_bytes_of_its_pickle_by_a_buffer_of_bytes_alone(dtype, fits):
    def body(comm):
        if comm.rank == 0:
            comm.send([1], 1)
            return None
        buffer, status = np.zeros(100, dtype), MPI.Status()
        comm.Recv(buffer, 0, status=status)
        return buffer.tobytes()[: status.count] == pickled([1])

    result = run(body)
    if fits:
        assert result.values[1]
    else:
        text = only("mismatched message", result)
        assert text.startswith(f"an object was sent, and {np.dtype(dtype)} is received\n")


def test_a_message_never_received_is_left_over():
    def body(comm):
        if comm.rank == 0:
            comm.Send(np.ones(4, "f"), 1, 9)

    result = run(body)
    text = only("message left over", result)
    assert re.match(
        rf"rank 1 never received Send\(dest=1, tag=9\) at .*{HERE}:\d+ on rank 0, 4 x float32", text
    )
    assert all(isinstance(outcome, Returned) for outcome in result.outcomes)


def test_a_request_never_completed_is_left_open():
    def body(comm):
        comm.Isend(np.ones(1), 1 - comm.rank)
        comm.Recv(np.ones(1), 1 - comm.rank)

    result = run(body)
    assert [finding.kind for finding in result.findings] == ["request left open"] * 2
    assert "rank 0 never completed Isend(dest=1, tag=0) at" in result.findings[0].text


def test_a_run_after_a_failure_is_as_good_as_new():
    def bad(comm):
        comm.Recv(np.ones(1), 1 - comm.rank)

    for _ in range(3):
        assert not run(bad).completed
        assert run(lambda comm: comm.allreduce(1), 4).values == (4, 4, 4, 4)


def test_user_code_that_swallows_every_exception_is_called_out_again():
    def body(comm):
        for _ in range(3):
            try:
                comm.Recv(np.ones(1), 1 - comm.rank)
            except BaseException:  # noqa: S112
                continue
        return "as if nothing had happened"

    result = run(body)
    only("deadlock", result)
    assert all(isinstance(outcome, Blocked) for outcome in result.outcomes)


def test_the_place_is_that_of_the_innermost_frame_outside_the_worlds():
    lines = {}

    def helper(comm):
        lines["here"] = line()
        comm.Barrier()

    result = run(lambda comm: helper(comm) if comm.rank else None)
    assert result.outcomes[1].where.endswith(f"{HERE}:{lines['here']}")


@pytest.mark.parametrize(
    "use", [lambda comm: comm.allreduce(1), lambda comm: comm.rank, lambda comm: comm.Get_rank()]
)
def test_a_communicator_that_a_cache_gives_another_rank_is_refused_with_a_hint(use):
    class Plan:
        """Equal on all ranks, as dataclasses are of which the communicator is no part."""

        def __init__(self, comm):
            self.comm = comm

        def __eq__(self, other):
            return isinstance(other, Plan)

        def __hash__(self):
            return 0

    @cache
    def planned(plan):
        return plan.comm

    result = run(lambda comm: use(planned(Plan(comm))))
    failures = [outcome for outcome in result.outcomes if isinstance(outcome, Raised)]
    assert "rank 1 uses the communicator of rank 0" in failures[0].message
    assert "functools.cache" in failures[0].message


def test_a_communicator_used_after_its_run_is_refused():
    kept = WORLD.run(lambda context, _: context.comm, ranks=1).values[0]
    with pytest.raises(RuntimeError, match="a run that is over"):
        kept.Barrier()


@pytest.mark.parametrize("seed", range(3))
def test_abort_ends_the_run_of_all_ranks_and_is_reported_as_the_end_of_a_job_is(seed):
    lines = {}

    def body(comm):
        if comm.rank == 1:
            try:
                lines["here"] = line()
                comm.Abort(5)
            except BaseException:
                return "handled"
        comm.Barrier()
        return None

    result = run(body, 3, seed)
    text = only("a rank called MPI_Abort(5)", result)
    assert re.fullmatch(rf"rank 1 called Abort\(5\) at .*{HERE}:{lines['here']}", text)
    assert str(result.outcomes[1]) == "dead: called Abort(5)"
    assert str(result.outcomes[0]) == str(result.outcomes[2]) == "dead: ended with the job"


def test_a_method_that_is_not_there_is_reported_with_what_is_and_who_has_it():
    internal = ("new_shared", "note_backward", "note_return", "view", "root", "unfreed")

    def body(comm):
        messages = []
        for name in ("Rsend", "Allredcue", "Nonsense", *(f"{name}s" for name in internal)):
            with pytest.raises(AttributeError) as caught:
                getattr(comm, name)
            messages.append(str(caught.value))
        return messages

    ((other, misspelt, nobody, *of_internal),) = run(body, 1).values
    assert re.search(r"has no 'Rsend'.*: use Send or Isend, which do not need [^;]*$", other)
    assert "has no 'Allredcue'; it has Allreduce" in misspelt
    assert nobody.endswith("has no 'Nonsense'")
    for text in of_internal:
        assert not set(internal) & set(text.partition("; it has ")[2].split(", "))


@pytest.mark.parametrize("seed", range(3))
def test_who_joins_a_collective_that_others_contradict_is_a_peer_and_nothing_is_computed(seed):
    calls = {
        "Allreduce": lambda comm: comm.Allreduce(np.ones(1), np.empty(1)),
        "allgather": lambda comm: comm.allgather(1),
        "bcast": lambda comm: comm.bcast(1),
        "Barrier": lambda comm: comm.Barrier(),
        "Bcast": lambda comm: comm.Bcast(np.empty(2)),
        "Split": lambda comm: comm.Split(0),
        "Iallreduce": lambda comm: comm.Iallreduce(np.ones(1), np.empty(1)).Wait(),
    }
    for names in itertools.product(calls, repeat=3):
        if len(set(names)) > 1:
            result = run(lambda comm, names=names: calls[names[comm.rank]](comm), 3, seed)
            assert {finding.kind for finding in result.findings} == {"mismatched collective"}, names
            assert all(isinstance(each, Blocked | PeerFailed) for each in result.outcomes), (
                names,
                result.outcomes,
            )
