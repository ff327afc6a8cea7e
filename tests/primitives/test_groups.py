"""Communicators for groups of ranks: one for each set, released by close alone."""

from __future__ import annotations

from typing import Any

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives import groups
from adjointlab.primitives.broadcast import Broadcast


def test_a_set_of_ranks_has_one_communicator_in_sorted_order(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        if comm.Get_rank() not in (1, 3):
            return None
        first = groups.communicator(comm, [3, 1])
        assert groups.communicator(comm, (1, 3)) is first
        assert first.Get_size() == 2
        assert first.Get_rank() == groups.rank_in([3, 1], comm.Get_rank())
        groups.close(comm)
        return True

    assert spmd(4, body) == (None, True, None, True)


def test_the_group_of_all_ranks_is_the_communicator_itself(spmd: Any) -> None:
    assert all(spmd(3, lambda comm: groups.communicator(comm, [2, 0, 1]) is comm))


def test_operators_on_the_same_sets_share_communicators_whatever_their_order(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        made = 0
        create = comm.Create_group

        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal made
            made += 1
            return create(*arguments, **named)

        comm.Create_group = counted
        for ranks in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 2, 3]):
            Broadcast(comm, Layout([2, 2], Partition([2, 1], ranks[::3])), Partition([2, 2], ranks))
        del comm.Create_group
        groups.close(comm)
        return made

    assert max(spmd(4, body)) <= 4


def test_close_releases_them_and_they_are_made_anew(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        if comm.Get_rank() == 2:
            return None
        first = groups.communicator(comm, [0, 1])
        groups.close(comm)
        second = groups.communicator(comm, [0, 1])
        assert second is not first
        total = second.allreduce(comm.Get_rank() + 1)
        groups.close(comm)
        return total

    assert spmd(3, body) == (3, 3, None)
