"""A mailbox matches messages with receives in order, and what it holds back arrives once somebody asks for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.arguments import elements
from adjointlab.worlds.simulated.matching import Mailbox, Message, PendingProbe, Receive, Send
from adjointlab.worlds.simulated.scheduler import Pending, Task
from adjointlab.worlds.simulated.schedules.strategies import RoundRobin

pytestmark = pytest.mark.mpi_skip

CALL: Any = SimpleNamespace(where="here.py:1")
TASKS = [Task(rank) for rank in range(3)]
MEMBERS = (0, 1, 2)


class Scripted(RoundRobin):
    """Deviates as told, and takes the last of the options."""

    orderly = False

    def __init__(self, *deviations: bool) -> None:
        self.deviations = list(deviations)

    def deviates(self) -> bool:
        return self.deviations.pop(0)

    def choose(self, options: Any) -> Any:
        return options[-1]


class Noting:
    """A scheduler that notes what is complete."""

    def __init__(self) -> None:
        self.completed: list[Pending] = []
        self.delayed: list[Any] = []
        self.matched: list[Any] = []
        self.crossed: list[Any] = []
        self.cancelled: list[int] = []
        self.events = 0

    def note_event(self) -> None:
        self.events += 1

    def complete(self, pending: Pending) -> None:
        pending.done = True
        self.completed.append(pending)

    def cancel(self, task: Task, outcome: Any) -> None:
        self.cancelled.append(task.rank)


def mailbox_of(*deviations: bool) -> tuple[Mailbox, Noting, Scripted]:
    scheduler, strategy = Noting(), Scripted(*deviations)
    return Mailbox(scheduler, strategy, []), scheduler, strategy  # type: ignore[arg-type]


def message(source: int, tag: int = 0, value: float = 1.0) -> Message:
    content = elements(np.array([value]), writable=False)
    return Message(TASKS[source], source, tag, content, False, CALL)


def receive(source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Receive:
    return Receive(TASKS[2], CALL, source, tag, MEMBERS, elements(np.zeros(1), writable=True))


def probe(source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> PendingProbe:
    return PendingProbe(TASKS[2], CALL, source, tag, MEMBERS)


def test_a_message_for_a_source_that_is_named_is_never_held_back() -> None:
    mailbox, scheduler, _ = mailbox_of()
    first, second = receive(1), receive(0)
    mailbox.post(first)
    mailbox.post(second)
    sent = message(0)
    mailbox.put(sent)
    assert scheduler.completed == [second]
    assert second.message is sent
    assert mailbox.arrived == []
    mailbox.put(message(1))
    assert scheduler.completed == [second, first]
    assert scheduler.matched == []
    assert scheduler.events == 4


def test_a_message_that_is_held_back_comes_with_the_next_one_that_is_not() -> None:
    mailbox, scheduler, strategy = mailbox_of(True, True, False)
    waiting = [receive(), receive(), receive()]
    for each in waiting:
        mailbox.post(each)
    sent = [message(0), message(1), message(0, tag=5)]
    mailbox.put(sent[0])
    mailbox.put(sent[1])
    assert scheduler.completed == []
    assert mailbox.arrived == sent[:2]
    assert len(scheduler.delayed) == 1
    mailbox.put(sent[2])
    # The strategy takes the last of the first of each source; those of one source stay in order.
    assert [each.message for each in waiting] == [sent[1], sent[0], sent[2]]
    assert scheduler.completed == waiting
    assert mailbox.arrived == []
    assert [matched.sender for matched in scheduler.matched] == [1, 0, 0]
    assert strategy.deviations == []


@pytest.mark.parametrize("how", ["the scheduler", "find", "post", "withdraw"])
def test_whoever_asks_gets_what_was_held_back(how: str) -> None:
    mailbox, scheduler, _ = mailbox_of(True)
    waiting, other = receive(), probe(1)
    mailbox.post(waiting)
    mailbox.watch(other)
    sent = message(0)
    mailbox.put(sent)
    assert scheduler.completed == []
    if how == "the scheduler":
        (deliver,) = scheduler.delayed
        deliver()
    elif how == "find":
        assert mailbox.find(probe()) is None
    elif how == "post":
        mailbox.post(receive())
    else:
        assert not mailbox.withdraw(waiting)
    assert scheduler.completed == [waiting]
    assert waiting.message is sent


def test_probes_are_complete_when_a_message_arrives_that_they_accept() -> None:
    mailbox, scheduler, _ = mailbox_of()
    probes = [probe(0), probe(1), probe(tag=3), probe(0, 4), probe()]
    for each in probes:
        mailbox.watch(each)
    mailbox.put(message(0, tag=3))
    assert scheduler.completed == [probes[0], probes[2], probes[4]]
    mailbox.put(message(0, tag=4))
    assert scheduler.completed == [probes[0], probes[2], probes[4], probes[3]]


@pytest.mark.parametrize("source", [MPI.ANY_SOURCE, 0, 1])
@pytest.mark.parametrize("tag", [MPI.ANY_TAG, 0, 3])
def test_a_receive_accepts_its_source_and_its_tag(source: int, tag: int) -> None:
    for each in (message(at, having) for at in (0, 1) for having in (0, 3)):
        fits = source in (MPI.ANY_SOURCE, each.source) and tag in (MPI.ANY_TAG, each.tag)
        assert receive(source, tag).accepts(each) is fits


def test_a_receive_is_withdrawn_once_and_from_its_own_mailbox() -> None:
    mailbox, scheduler, _ = mailbox_of()
    kept, waiting = receive(1), receive(0)
    mailbox.post(kept)
    mailbox.post(waiting)
    assert mailbox.withdraw(waiting)
    assert not mailbox.withdraw(waiting)
    assert not mailbox_of()[0].withdraw(kept)
    mailbox.put(message(0))
    assert scheduler.completed == []
    assert [each.source for each in mailbox.arrived] == [0]


def test_a_send_that_waits_is_complete_with_its_receive_whether_it_fits_or_not() -> None:
    for dtype, fits in (("f8", True), ("f4", False)):
        mailbox, scheduler, _ = mailbox_of()
        sent = message(0)
        send = sent.sent = Send(TASKS[0], CALL, sent, 2)
        waiting = Receive(TASKS[2], CALL, 0, 0, MEMBERS, elements(np.zeros(1, dtype), writable=True))
        mailbox.put(sent)
        mailbox.post(waiting)
        assert scheduler.completed == ([send, waiting] if fits else [send])
        assert scheduler.cancelled == ([] if fits else [2])
        assert len(mailbox._findings) == (not fits)


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("source", [MPI.ANY_SOURCE, 1])
def test_the_strategy_chooses_among_the_senders_of_a_wildcard_unless_ranks_run_in_turn(
    source: int, orderly: bool
) -> None:
    mailbox, scheduler, strategy = mailbox_of()
    strategy.orderly = orderly  # type: ignore[misc]
    asked: list[list[Message]] = []
    strategy.choose = lambda options: asked.append(list(options)) or options[-1]  # type: ignore[func-returns-value,method-assign]
    sent = [message(0), message(1), message(0), message(1)]
    for each in sent:
        mailbox.put(each)
    waiting = receive(source)
    mailbox.post(waiting)
    is_asked = source == MPI.ANY_SOURCE and not orderly
    assert asked == ([sent[:2]] if is_asked else [])
    assert waiting.message is (sent[0] if source == MPI.ANY_SOURCE and orderly else sent[1])
    assert scheduler.completed == [waiting]
