"""Messages through a key-value store: in order, of any size, and none is left in it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from adjointlab.worlds.rendezvous import RanksDiverged, Rendezvous  # noqa: E402
from adjointlab.worlds.torch.channel import StoreChannel  # noqa: E402


def channels(size: int) -> tuple[dist.HashStore, list[StoreChannel]]:
    store = dist.HashStore()
    return store, [StoreChannel(store, "test", rank, size) for rank in range(size)]


def test_messages_of_one_sender_and_tag_keep_their_order_and_others_do_not_wait_for_them() -> None:
    store, (first, second, third) = channels(3)
    for number in range(3):
        first.send(number, 1, 7)
    third.send("of another", 1, 7)
    first.send("of another tag", 1, 8)
    assert second.poll(2, 7) == "of another"
    assert second.poll(0, 8) == "of another tag"
    assert [second.poll(0, 7) for _ in range(4)] == [0, 1, 2, None]
    assert third.poll(0, 7) is None
    # A store of its own has one key.
    assert store.num_keys() <= 1


def test_a_message_may_be_false_or_larger_than_the_store_takes_at_once() -> None:
    store, (first, second) = channels(2)
    for message in (0, "", b"x" * (9 << 20)):
        first.send(message, 1, 1)
        assert second.receive(0, 1, lambda waited: None) == message
    assert store.num_keys() <= 1


def test_a_wait_for_a_message_can_be_given_up() -> None:
    class GivenUp(Exception):
        pass

    def give_up(waited: float) -> None:
        raise GivenUp

    _, (_, second) = channels(2)
    with pytest.raises(GivenUp):
        second.receive(0, 1, give_up)


def test_other_ranks_leave_after_the_first_which_has_a_report_to_print() -> None:
    store, (first, second) = channels(2)
    second.leave(patience=0.0)  # and not for ever
    first.leave(patience=0.0)
    second.leave(patience=float("inf"))
    assert store.num_keys() <= 1


def test_ranks_that_come_to_different_points_learn_of_it() -> None:
    _, (first, second) = channels(2)
    one, other = Rendezvous(first, patience=0.0), Rendezvous(second, patience=0.0)
    with pytest.raises(RanksDiverged, match="rank 1: no message"):
        one.allgather("here")
    with pytest.raises(RanksDiverged, match=r"rank 0: here\n  rank 1: there"):
        other.allgather("there")
