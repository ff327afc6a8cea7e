"""A schedule is data: it determines a run, its record replays it, and different strategies reach different runs."""

import json
import random
from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

import adjointlab as al
from adjointlab import MPI, replaying, session
from adjointlab.checks.verdict import Status
from adjointlab.engine.discovery import found_as
from adjointlab.engine.interleavings import DEPENDS
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.store.reproducer import read
from adjointlab.worlds.schedule import Schedule, decode, schedules_from
from adjointlab.worlds.simulated.schedules.pct import PriorityWalk
from adjointlab.worlds.simulated.schedules.replay import DecisionRecorder, Replay
from adjointlab.worlds.simulated.schedules.strategies import RandomWalk, RoundRobin
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests import running

WORLD = SimulatedWorld(4)
SEVERAL = schedules_from(7, 15)


def run(body, ranks=3, schedule=None, seed=0):
    return WORLD.run(lambda context, _: body(context.comm), ranks=ranks, seed=seed, schedule=schedule)


def everything(comm):
    """Decisions of every kind, and a log of their results; rank 0 receives from the others in any order."""
    log = []
    if comm.rank == 0:
        requests = [comm.irecv(source=MPI.ANY_SOURCE, tag=1) for _ in range(comm.size - 1)]
        tests = 0
        while not MPI.Request.Testall(requests[:1]):
            tests += 1
        log.append(tests)
        for _ in range(comm.size - 1):
            status = MPI.Status()
            comm.Probe(MPI.ANY_SOURCE, 2, status)
            log.append(comm.recv(source=status.source, tag=2))
        log += [request.wait() for request in requests[1:]]
    else:
        comm.isend(comm.rank, 0, tag=1).wait()
        comm.send(comm.rank, 0, tag=2)
    total = np.zeros(1)
    comm.Iallreduce(np.ones(1), total).Wait()
    return (*log, float(total[0]))


# What a schedule is


def test_several_schedules_follow_from_a_seed_and_the_first_is_what_the_seed_alone_means():
    assert schedules_from(7, 15) == SEVERAL
    assert schedules_from(7, 4) == SEVERAL[:4]
    assert len(set(SEVERAL)) == 15
    assert {schedule.strategy for schedule in SEVERAL} == {"random", "pct"}
    assert SEVERAL[0] == Schedule.of(7) == Schedule("random", 7)
    assert schedules_from(0, 1) == (Schedule.of(0),) == (Schedule("round-robin"),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(strategy="fair"), "'fair' is not one of round-robin, random, pct"),
        (dict(strategy="pct"), "depth: at least 1 for pct"),
        (dict(strategy="random", depth=2), "and 0 for any other, not 2"),
        (
            dict(strategy="random", decisions="no record"),
            "decisions: 'no record' is not a record of a schedule",
        ),
    ],
)
def test_what_is_no_schedule_is_refused_with_what_is_legal(given, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**given)


def test_a_record_that_is_cut_off_or_would_unfold_without_end_is_refused():
    import base64
    import zlib

    cut = base64.b85encode(zlib.compress(b"\x84")).decode()
    with pytest.raises(ValueError, match="cut off"):
        Schedule("random", 1, decisions=cut)
    bomb = base64.b85encode(zlib.compress(bytes(2**25))).decode()
    with pytest.raises(ValueError, match="longer than"):
        Schedule("random", 1, decisions=bomb)


# Runs under schedules


@pytest.mark.parametrize("schedule", SEVERAL, ids=str)
def test_a_schedule_determines_the_run(schedule):
    first, second = run(everything, 4, schedule), run(everything, 4, schedule)
    assert first.completed, first
    assert first == second
    assert first.decisions == second.decisions
    assert [str(matched) for matched in first.matched] == [str(matched) for matched in second.matched]


def test_random_schedules_deviate_seldom_often_or_always():
    shares = {sum(walk.deviates() for _ in range(200)) for walk in map(RandomWalk, range(20))}
    assert min(shares) < 80
    assert max(shares) == 200
    assert any(80 < share < 120 for share in shares)


def test_a_bare_seed_and_its_schedule_are_one_run():
    for seed in range(5):
        assert run(everything, 4, seed=seed) == run(everything, 4, Schedule.of(seed), seed=seed)


def test_the_random_streams_of_the_ranks_do_not_depend_on_the_schedule():
    def body(comm):
        comm.Barrier()
        return random.random()

    drawn = {run(body, 3, schedule, seed=5).values for schedule in SEVERAL}
    assert len(drawn) == 1
    assert drawn != {run(body, 3, SEVERAL[0], seed=6).values}


@pytest.mark.parametrize("schedule", SEVERAL[:8], ids=str)
def test_a_record_replays_the_run_whatever_strategy_would_decide_otherwise(schedule):
    first = run(everything, 4, schedule)
    for otherwise in (Schedule("random", 999), Schedule("pct", 998, 3)):
        again = run(everything, 4, replace(otherwise, decisions=first.decisions))
        assert again == first
        assert again.decisions == first.decisions


def test_without_its_record_another_schedule_is_another_run():
    results = {run(everything, 4, schedule).values for schedule in SEVERAL}
    assert len(results) > 3


def test_a_record_of_other_code_is_left_where_it_does_not_fit_and_the_run_ends():
    def changed(comm):
        for _ in range(3):
            comm.allreduce(comm.rank)
        return everything(comm)

    recorded = run(everything, 4, SEVERAL[1]).decisions
    result = run(changed, 4, Schedule("random", 3, decisions=recorded))
    assert result.completed
    assert result.values[0][-1] == 4.0


def test_every_decision_is_written_down_and_read_back():
    @dataclass
    class ReadyRank:
        rank: int

    class Fixed(RoundRobin):
        orderly = False

        def next(self, ready):
            return ready.pop()

        def deviates(self):
            return True

        def choose(self, options):
            return options[-1]

    recorder = DecisionRecorder(Fixed())
    turns = [ReadyRank(0), ReadyRank(1000)]
    recorder.next(deque(turns))
    recorder.next(deque(turns[:1]))  # no choice, so no decision
    recorder.preempts(turns[0], deque())
    recorder.deviates()
    recorder.choose(list(range(300)))
    assert decode(recorder.decisions) == [(0, 1000), (1, 0), (2, 1), (3, 299)]

    replay = Replay(recorder.decisions, RoundRobin())
    assert replay.next(deque(turns)) is turns[1]
    assert replay.next(deque(turns[:1])) is turns[0]
    assert replay.preempts(turns[0], deque()) is False
    assert replay.deviates() is True
    assert replay.choose(list(range(300))) == 299
    assert replay.left_at is None
    assert replay.deviates() is False  # as round-robin decides
    assert replay.left_at == 4


@pytest.mark.parametrize("ranks", [2, 4])
def test_correct_code_completes_alike_under_every_schedule(ranks):
    def body(comm):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        field = np.arange(5.0) + 10 * comm.rank
        for _ in range(3):
            requests = [comm.Irecv(field[:1], left, 1), comm.Irecv(field[4:], right, 2)]
            requests += [comm.Isend(field[3:4], right, 1), comm.Isend(field[1:2], left, 2)]
            MPI.Request.Waitall(requests)
            total = np.zeros(1)
            comm.Allreduce(field.sum(keepdims=True), total)
            field[1:4] += total
        matched = (
            sorted(comm.recv(source=MPI.ANY_SOURCE) for _ in range(comm.size - 1)) if comm.rank == 0 else None
        )
        if comm.rank:
            comm.send(comm.rank, 0)
        return (tuple(field.tolist()), matched)

    results = [run(body, ranks, schedule) for schedule in (*SEVERAL, *map(Schedule.of, range(30)))]
    assert all(result.completed for result in results), results
    assert len({repr(result.values) for result in results}) == 1


def test_a_rank_that_polls_does_not_keep_the_others_from_running():
    def body(comm):
        if comm.rank == 0:
            comm.Send(np.ones(1), 1)
            return
        request = comm.Irecv(np.ones(1), 0)
        while not request.Test():
            pass

    for seed in range(1, 40):
        assert run(body, 2, Schedule("pct", seed, 3)).completed


@pytest.mark.parametrize("schedule", [Schedule(), Schedule("random", 5), Schedule("pct", 5, 3)], ids=str)
def test_deadlock_and_livelock_are_found_under_every_strategy(schedule):
    def receives(comm):
        comm.Recv(np.ones(1), (comm.rank + 1) % comm.size)

    def polls(comm):
        while not comm.Iprobe((comm.rank + 1) % comm.size):
            pass

    assert [finding.kind for finding in run(receives, 3, schedule).findings] == ["deadlock"]
    assert [finding.kind for finding in run(polls, 3, schedule).findings] == ["livelock"]


# What the strategies reach


def test_bounded_depth_reaches_what_a_random_walk_hardly_does():
    def share(schedules):
        """Count the runs in which rank 1 makes all of its hundred calls before the others have made one."""
        hits = 0
        for schedule in schedules:
            ended = []

            def body(comm, ended=ended):
                for _ in range(100 if comm.rank == 1 else 1):
                    comm.send(None, MPI.PROC_NULL)
                ended.append(comm.rank)

            assert run(body, 3, schedule).completed
            hits += ended[0] == 1
        return hits / len(schedules)

    assert share([Schedule("pct", seed, 2) for seed in range(1, 101)]) > 0.1
    assert share([Schedule("random", seed) for seed in range(1, 101)]) < 0.02


def test_priorities_change_at_no_more_than_the_points_that_the_depth_allows():
    @dataclass(frozen=True)
    class ReadyRank:
        rank: int

    turns = [ReadyRank(rank) for rank in range(3)]
    most = dict.fromkeys((1, 2, 4), 0)
    for seed in range(20):
        for depth in (1, 2, 4):
            walk = PriorityWalk(seed, depth)
            leaders = []
            for _ in range(5000):
                first = walk.next(deque(turns))
                walk.preempts(first, deque(turns))
                leaders.append(first.rank)
            changes = sum(one != other for one, other in pairwise(leaders))
            assert changes <= depth - 1
            most[depth] = max(most[depth], changes)
    assert most == {1: 0, 2: 1, 4: 3}


def test_a_message_may_be_overtaken_by_what_another_rank_sends_because_of_it():
    def body(comm):
        if comm.rank == 0:
            requests = [comm.irecv(source=MPI.ANY_SOURCE, tag=1) for _ in range(2)]
            comm.Barrier()  # both are posted before anything is sent
            return tuple(MPI.Request.waitall(requests))
        comm.Barrier()
        if comm.rank == 1:
            comm.send("cause", 0, tag=1)
            comm.send(None, 2)
        else:
            comm.recv(source=1)
            comm.send("effect", 0, tag=1)
        return None

    orders = {run(body, 3, schedule).values[0] for schedule in schedules_from(7, 60)}
    assert orders == {("cause", "effect"), ("effect", "cause")}
    assert run(body, 3).values[0] == ("cause", "effect")


@pytest.mark.parametrize("tags", [(1, 1, 1), (1, 2, 1)])
def test_messages_of_one_sender_do_not_overtake_each_other_though_they_are_delayed(tags):
    def body(comm):
        if comm.rank == 0:
            requests = [comm.irecv(source=MPI.ANY_SOURCE, tag=tag) for tag in tags for _ in (1, 2)]
            comm.Barrier()
            return MPI.Request.waitall(requests)
        comm.Barrier()
        for number, tag in enumerate(tags):
            comm.send((comm.rank, tag, number), 0, tag=tag)
        return None

    for schedule in SEVERAL:
        result = run(body, 3, schedule)
        assert result.completed, result
        for sender in (1, 2):
            for wanted in set(tags):
                numbers = [number for who, tag, number in result.values[0] if (who, tag) == (sender, wanted)]
                assert numbers == sorted(numbers)


def test_a_delayed_message_is_left_over_if_nobody_asks_for_it():
    def body(comm):
        if comm.rank == 0:
            request = comm.irecv(source=MPI.ANY_SOURCE)
            comm.Barrier()
            request.wait()
        else:
            comm.Barrier()
            comm.bsend(comm.rank, 0)

    for schedule in SEVERAL:
        assert [finding.kind for finding in run(body, 3, schedule).findings] == ["message left over"]


def test_a_receive_can_be_cancelled_or_has_its_message_under_every_schedule():
    def body(comm):
        if comm.rank == 0:
            request = comm.irecv(source=MPI.ANY_SOURCE)
            comm.Barrier()
            request.Cancel()
            got = request.wait()
            return got if got is not None else comm.recv(source=1)
        comm.send("here", 0)
        comm.Barrier()
        return None

    for schedule in SEVERAL:
        result = run(body, 2, schedule)
        assert result.completed, result
        assert result.values[0] == "here"


# Cases under several schedules


class Identity(al.LinearOperator):
    """Every worker keeps its local tensor."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(layout)

    def forward(self, x: Any) -> Any:
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        return np.array(y)

    def first_heard(self) -> int:
        """The rank whose message comes first to rank 0; 1 where only one is matched."""
        comm, size = self.comm, self.comm.Get_size()
        matched = None
        if comm.Get_rank() == 0:
            matched = [comm.recv(source=MPI.ANY_SOURCE, tag=3) for _ in range(size - 1)]
        else:
            comm.send(comm.Get_rank(), 0, tag=3)
        return (comm.bcast(matched) or [1])[0]


class WeighsByArrival(Identity):
    """Its weight is that of the message that came first: one for the whole instance, so no run alone shows it."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.weight = 1.0 + (self.first_heard() % 2)

    def forward(self, x: Any) -> Any:
        return np.array(x) * self.weight

    def adjoint(self, y: Any) -> Any:
        return np.array(y) * self.weight


class HangsByArrival(Identity):
    """Somebody stays away from a barrier if the last rank was matched first."""

    def forward(self, x: Any) -> Any:
        size, rank = self.comm.Get_size(), self.comm.Get_rank()
        if size < 3 or self.first_heard() != size - 1 or rank:
            self.comm.Barrier()
        return np.array(x)


class SumsByArrival(Identity):
    """Adds what the others send in the order in which it comes: right, whatever the order."""

    def forward(self, x: Any) -> Any:
        total = np.zeros(1)
        comm = self.comm
        if comm.Get_rank() == 0:
            received = np.zeros(1)
            for _ in range(comm.Get_size() - 1):
                comm.Recv(received, source=MPI.ANY_SOURCE)
                total += received
        else:
            comm.Send(np.array([x.sum()]), 0)
        comm.Bcast(total)
        return np.array(x) + 0 * total


class DupsInEachCall(Identity):
    """Takes a communicator for each call and frees none."""

    def forward(self, x: Any) -> Any:
        self.comm.Dup().Barrier()
        return np.array(x)


class DupsAndFrees(Identity):
    def forward(self, x: Any) -> Any:
        own = self.comm.Dup()
        own.Barrier()
        own.Free()
        return np.array(x)


class DupsOnce(Identity):
    """Takes a communicator with its first call, and keeps it."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.made, self.kept = comm.Dup(), None

    def forward(self, x: Any) -> Any:
        if self.kept is None:
            self.kept = self.comm.Dup()
        return np.array(x)


class FreesOneInEachCall(Identity):
    """Takes communicators when it is made, and needs fewer and fewer of them."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.kept = [comm.Dup() for _ in range(50)]

    def forward(self, x: Any) -> Any:
        if self.kept:
            self.kept.pop().Free()
        return np.array(x)


class Untidy(Identity):
    """Right numbers, and something wrong beside them."""

    def neighbours(self) -> tuple[int, int]:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        return (rank - 1) % size, (rank + 1) % size


class LeavesAMessage(Untidy):
    def forward(self, x: Any) -> Any:
        self.comm.bsend("for nobody", self.neighbours()[1])
        return np.array(x)


class LeavesARequest(Untidy):
    def forward(self, x: Any) -> Any:
        left, right = self.neighbours()
        self.comm.Isend(np.ones(1), right)
        self.comm.Recv(np.ones(1), left)
        return np.array(x)


class SpoilsASendBuffer(Untidy):
    def forward(self, x: Any) -> Any:
        left, right = self.neighbours()
        buffer = np.ones(1)
        request = self.comm.Isend(buffer, right)
        buffer[0] = 2.0
        self.comm.Recv(np.ones(1), left)
        request.Wait()
        return np.array(x)


def lines(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": draw(al.strategies.layouts(ranks, ndim=1))}


weighs_by_arrival = al.subject(WeighsByArrival)(lines)


def report_of(operator, check="adjoint", schedules=6, cases=40):
    return investigate(WORLD, al.subject(operator)(lines), check, Budget(cases, seed=2, schedules=schedules))


@pytest.mark.parametrize("check", ["adjoint", "matrix", "linearity", "purity"])
def test_a_result_that_depends_on_the_schedule_is_a_failure_of_its_own_kind(check):
    assert report_of(WeighsByArrival, check, schedules=1).status is Status.COHERENT
    report = report_of(WeighsByArrival, check)
    assert (report.verdict.kind, report.verdict.status) == (DEPENDS, Status.INCOHERENT)
    assert report.case.ranks == 3
    one, other = report.case.schedules
    lines_by_name = dict(report.verdict.lines)
    assert lines_by_name[f"under {one}"] != lines_by_name[f"under {other}"]
    assert "rank 0 in recv(source=ANY_SOURCE, tag=3) at " in lines_by_name["because"]
    assert " receives from rank " in lines_by_name["because"]


def test_the_two_schedules_stand_in_the_reproducer_which_replays_them(tmp_path):
    found = found_as(al.subject(WeighsByArrival)(lines))
    entry = session.run_check(WORLD, found, "matrix", Budget(40, seed=2, schedules=6), tmp_path)
    stored = read(entry.written.json)
    assert stored.kind == DEPENDS
    assert stored.case == entry.result.case
    assert len(stored.case.schedules) == 2
    again = replaying.replay(WORLD, found.subject, stored.case)
    assert again.verdict.lines == entry.result.verdict.lines
    mended = found_as(al.subject(Identity, name="WeighsByArrival")(lines))
    assert replaying.replay(WORLD, mended.subject, stored.case).status is Status.COHERENT


def test_a_reproducer_with_a_bad_schedule_is_refused(tmp_path):
    found = found_as(al.subject(WeighsByArrival)(lines))
    entry = session.run_check(WORLD, found, "matrix", Budget(40, seed=2, schedules=6), tmp_path)
    content = json.loads(entry.written.json.read_text())
    content["case"]["schedules"][0]["strategy"] = "fair"
    entry.written.json.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="fair"):
        read(entry.written.json)


def test_a_hang_under_some_schedules_only_is_found_and_reported_with_one_that_hangs():
    report = report_of(HangsByArrival)
    # Who stays away waits in the next collective, if there is one.
    assert report.verdict.kind in ("deadlock", "mismatched collective")
    assert report.case.ranks == 3
    (schedule,) = report.case.schedules
    assert schedule.decisions or schedule.strategy == "round-robin"


@pytest.mark.parametrize("check", ["adjoint", "reentrancy", "matrix"])
def test_what_is_right_in_every_order_is_no_failure(check):
    report = report_of(SumsByArrival, check, schedules=4, cases=15)
    assert report.status is Status.COHERENT
    assert report.tried == 15


def test_a_case_without_schedules_is_stored_as_ever():
    report = report_of(HangsByArrival, schedules=1)
    data = report.case.data() if report.case else {"schedule": 0}
    assert "schedules" not in data


@pytest.mark.parametrize("schedules", [1, 3])
@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        (LeavesAMessage, "message left over"),
        (LeavesARequest, "request left open"),
        (SpoilsASendBuffer, "buffer misused"),
    ],
)
def test_what_the_world_finds_fails_the_case_though_its_numbers_are_right(operator, kind, schedules):
    report = report_of(operator, schedules=schedules, cases=3)
    assert report.verdict.kind == kind
    assert report.status is Status.UNJUDGED


def test_the_command_line_takes_schedules_and_replays_what_they_found(tmp_path):
    given = f"{__file__}:weighs_by_arrival"
    arguments = ("check", given, "--check", "matrix", "--cases", "40", "--seed", "2", "--ranks", "4")
    assert running.run("adjointlab", *arguments, cwd=tmp_path).returncode == 0
    found = running.run("adjointlab", *arguments, "--schedules", "6", cwd=tmp_path)
    assert found.returncode == 1
    assert f"WeighsByArrival: {DEPENDS}" in found.stdout
    (file,) = tmp_path.glob(".adjointlab/*.json")
    again = running.run("adjointlab", "replay", file, "--subject", given, cwd=tmp_path)
    assert again.returncode == 1
    because = next(line for line in found.stdout.splitlines() if "because" in line)
    assert because.split() == next(line for line in again.stdout.splitlines() if "because" in line).split()


def test_pytest_takes_schedules(tmp_path):
    tests = tmp_path / "test_weights.py"
    tests.write_text(
        "import adjointlab as al\nfrom tests.worlds.simulated.test_schedules import weighs_by_arrival\n"
        "TestWeights = al.coherence_tests(weighs_by_arrival, checks=['matrix'])\n"
    )
    options = ("-p", "no:cacheprovider", "--adjointlab-seed=2", "--adjointlab-ranks=4", tests)
    found = running.run("pytest", *options, "--adjointlab-schedules=6", cwd=tmp_path)
    assert found.returncode == 1
    assert "under 6 schedules" in found.stdout
    assert DEPENDS in found.stdout


def test_schedules_must_be_some():
    with pytest.raises(ValueError, match="schedules: 0 is not a whole number of at least 1"):
        Budget(schedules=0)


def test_schedules_are_data():
    data = msgspec.json.encode(SEVERAL)
    assert msgspec.json.decode(data, type=tuple[Schedule, ...]) == SEVERAL


# Communicators that calls leave behind


@pytest.mark.parametrize("check", ["reentrancy", "linearity", "adjoint"])
def test_a_leak_leaves_the_other_verdicts_as_they_are(check):
    assert report_of(DupsInEachCall, check, schedules=1, cases=5).status is Status.COHERENT


def test_a_communicator_for_each_call_that_is_never_freed_is_reported_with_its_line():
    report = report_of(DupsInEachCall, "purity", schedules=1, cases=3)
    assert report.verdict.kind == "communicator left open"
    assert report.status is Status.UNJUDGED
    line = dict(report.verdict.lines)["forward"]
    place = f"{__file__}:{DupsInEachCall.forward.__code__.co_firstlineno + 1}"
    assert line == f"each call leaves one more behind: the communicator of ranks 0, made at {place}"


@pytest.mark.parametrize("operator", [DupsAndFrees, DupsOnce, FreesOneInEachCall])
@pytest.mark.parametrize("check", ["reentrancy", "linearity", "purity"])
def test_communicators_that_are_freed_or_kept_are_no_leak(operator, check):
    assert report_of(operator, check, schedules=1, cases=5).status is Status.COHERENT
