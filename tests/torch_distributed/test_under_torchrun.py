"""Cases on real process groups: what is wrong is named, what hangs is ended, and nothing is left of a case.

``torchrun --nproc-per-node 3 -m pytest tests/torch_distributed``
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import adjointlab as al
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search_result import Budget
from adjointlab.session import run_check
from adjointlab.torch_distributed.opening import lone_group
from adjointlab.worlds.launch import launched_world
from adjointlab.worlds.run import Blocked, PeerFailed, Raised, Run
from adjointlab.worlds.world import RankContext, World
from tests.torch_distributed import parallel_state

pytestmark = pytest.mark.skipif(
    launched_world() != "torch",
    reason="real process groups are needed: run under torchrun --nproc-per-node 3",
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    real = al.TorchWorld(patience=2.0)
    if real.ranks < 3:
        pytest.skip("needs 3 ranks")
    yield real
    real.close()


def run(world: World, program: Callable[[int], object], ranks: int = 3) -> Run:
    def body(context: RankContext, payload: None) -> object:
        with al.process_group(context.comm):
            return program(context.rank)

    return world.run(body, None, ranks)


def text_of(found: Run) -> str:
    assert not found.completed
    return "\n".join([*(f"{each.kind}: {each.text}" for each in found.findings), *map(str, found.outcomes)])


def differing(rank: int) -> None:
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
    dist.broadcast(torch.ones(4), 0) if rank else dist.all_reduce(torch.ones(4))


def of_other_lengths(rank: int) -> None:
    dist.all_reduce(torch.ones(4 + rank))


def exchange(splits: tuple[list[int], list[int]], x: torch.Tensor | None = None) -> None:
    sent, expected = splits
    x = torch.ones(sum(sent)) if x is None else x
    dist.all_to_all_single(torch.empty(sum(expected)), x, expected, sent)


def other_splits(rank: int) -> None:
    """Only ranks 0 and 2 do not fit: rank 1 may be late, and find the group gone."""
    exchange(([0, 0, 1] if rank == 0 else [0, 0, 0], [0, 0, 0]))


def staying_away(rank: int) -> None:
    if rank:
        dist.all_reduce(torch.ones(4))


def receiving_in_a_ring(rank: int) -> None:
    dist.recv(torch.ones(1), (rank + 1) % 3)


def groups_in_different_order(rank: int) -> None:
    groups = [[0, 1], [1, 2], [0, 2]]
    for ranks in groups if rank else groups[::-1]:
        dist.new_group(ranks)


def waiting_long(rank: int) -> None:
    """The timeout that user code asks for is too long to wait for."""
    group = dist.new_group(timeout=dist.default_pg_timeout)
    if rank:
        dist.all_reduce(torch.ones(4), group=group)


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (
            differing,
            ("mismatched collective: in collective 1, they call different collectives", "op=SUM", "op=MAX"),
        ),
        (of_other_lengths, ("mismatched collective", "count=4", "count=5")),
        (
            other_splits,
            (
                "mismatched collective: in collective 1, rank 0 sends 1 element to rank 2, which expects 0",
                "sending [0, 0, 1] and expecting [0, 0, 0] elements",
                "SplitMismatch: rank",
            ),
        ),
        (staying_away, ("only some ranks take part", "all_reduce(op=SUM, count=4, dtype=float32)")),
        (waiting_long, ("only some ranks take part", "all_reduce(op=SUM, count=4, dtype=float32)")),
        (receiving_in_a_ring, ("deadlock: 3 of 3 ranks wait", "recv(dtype=float32)")),
        (
            groups_in_different_order,
            ("GroupsInOtherOrder: new_group at", "ranks [0, 2]", "ranks [0, 1]", "in one order"),
        ),
    ],
)
def test_a_wrong_program_ends_and_is_named(
    world: World, program: Callable[[int], None], named: tuple[str, ...]
) -> None:
    text = text_of(run(world, program))
    assert all(part in text for part in named), text
    assert f"{__file__}:" in text
    assert run(world, lambda rank: rank).values == (0, 1, 2)


def test_a_rank_that_fails_takes_the_others_out_of_their_waits(world: World) -> None:
    def failing(rank: int) -> None:
        if rank == 1:
            raise ValueError("this rank fails")
        dist.all_reduce(torch.ones(1))

    first, second, third = run(world, failing).outcomes
    assert isinstance(second, Raised)
    assert second.kind == "ValueError"
    assert all(isinstance(each, PeerFailed) and each.peers == (1,) for each in (first, third))


def test_a_mismatch_is_not_claimed_where_functional_collectives_pass_the_log_by(world: World) -> None:
    from torch.distributed._functional_collectives import all_reduce

    def both_ways(rank: int) -> float:
        if rank:
            return float(all_reduce(torch.ones(2), "sum", dist.group.WORLD).sum())
        x = torch.ones(2)
        dist.all_reduce(x)
        return float(x.sum())

    found = run(world, both_ways)
    assert found.values == (6.0, 6.0, 6.0), found
    assert found.communicating == {0, 1, 2}


def diagonal(elements: int, rank: int) -> tuple[list[int], list[int]]:
    return ([elements if each == rank else 0 for each in range(3)],) * 2


def test_a_call_that_was_refused_and_tried_again_is_no_mismatch(world: World) -> None:
    def trying_again(rank: int) -> None:
        if rank == 0:
            with pytest.raises(ValueError, match="contiguous"):
                exchange(diagonal(2, rank), torch.ones(2, 2)[:, 0])
        exchange(diagonal(2, rank))
        exchange(diagonal(5, rank))

    assert run(world, trying_again).completed


def test_what_the_sequential_module_calls_in_its_own_group_is_no_call_of_the_case(world: World) -> None:
    def with_a_twin(context: RankContext, payload: None) -> float:
        with al.process_group(context.comm):
            dist.all_reduce(x := torch.ones(2))
            if context.rank == 0:
                with lone_group(context.comm):
                    dist.all_reduce(x)
                    dist.all_gather([torch.empty(2)], x)
            dist.all_reduce(x)
            return float(x.sum())

    found = world.run(with_a_twin, None, 3)
    assert found.completed, text_of(found)
    assert found.values == (18.0, 18.0, 18.0)


def test_ranks_that_send_nothing_do_not_count_as_communicating(world: World) -> None:
    assert run(world, lambda rank: dist.get_rank()).communicating == frozenset()


def test_a_smaller_case_leaves_ranks_out(world: World) -> None:
    found = run(world, lambda rank: (dist.get_world_size(), dist.get_rank(), dist.get_backend()), 2)
    assert found.values == ((2, 0, "gloo"), (2, 1, "gloo"))


def test_the_lab_has_messages_of_its_own(world: World) -> None:
    def body(context: RankContext, payload: None) -> tuple[object, ...]:
        comm = context.comm
        return comm.allgather("x" * context.rank), comm.bcast(context.rank, 1), comm.allreduce(context.rank)

    assert world.run(body).values == ((["", "x", "xx"], 1, 3),) * 3


def state() -> tuple[object, ...]:
    return (
        c10d._world,
        c10d._new_process_group_helper,
        sys.excepthook,
        dist.is_initialized(),
        c10d._group_count,
    )


def test_failing_cases_leave_no_group_behind(world: World) -> None:
    def failing(rank: int) -> None:
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1))
        raise ValueError(group.group_name)

    before = state()
    for _ in range(3):
        assert not run(world, failing).completed
        assert state() == before
    with pytest.raises((LookupError, RuntimeError), match="group"):
        c10d._resolve_process_group("0")


def test_a_group_of_the_users_own_is_there_again_after_a_case(world: World) -> None:
    dist.init_process_group("gloo")
    try:
        own = dist.group.WORLD
        assert run(world, lambda rank: dist.get_world_size(), 2).values == (2, 2)
        assert dist.group.WORLD is own
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == world.ranks
    finally:
        dist.destroy_process_group()


def test_a_second_default_group_is_refused(world: World) -> None:
    def body(context: RankContext, payload: None) -> None:
        with al.process_group(context.comm), al.process_group(context.comm):
            pass

    assert all("is open on this rank already" in str(each) for each in world.run(body).outcomes)


def test_a_library_that_keeps_its_groups_in_variables_makes_them_anew_in_each_case(world: World) -> None:
    def body(context: RankContext, payload: None) -> float:
        subject = replace(with_communicator, process_group=True, rank_local=(parallel_state.__name__,))
        with subject.surroundings(context.comm):
            return float(parallel_state.sum_over_group(torch.ones(1)))

    for ranks in (3, 2, 3):
        assert world.run(body, None, ranks).values == (ranks,) * ranks


def test_a_call_of_a_communicator_says_where_there_is_one(world: World) -> None:
    def body(context: RankContext, payload: None) -> None:
        context.comm.Send(None, 1)

    text = text_of(world.run(body))
    assert "Send: under torchrun there is no communicator" in text
    assert "mpiexec" in text


def identity(comm: object, x: object) -> object:
    return x


@al.subject.pair(identity, identity)
def with_communicator(draw, ranks):  # type: ignore[no-untyped-def]
    cut = al.Space(al.Layout((ranks,), al.Partition((ranks,))))
    return dict(domain=cut, codomain=cut)


def test_a_subject_that_takes_a_communicator_is_not_judged(world: World) -> None:
    result = run_check(world, found_as(with_communicator), "adjoint", Budget(5), Path("not written to"))
    assert "it takes a communicator, which ranks of torchrun do not have" in result.result.verdict.headline
    assert result.status.value != "coherent"


def test_user_code_that_swallows_the_error_of_a_wait_is_not_taken_for_blocked(world: World) -> None:
    def swallowing(rank: int) -> str:
        try:
            if rank:
                dist.all_reduce(torch.ones(1))
        except RuntimeError:
            return "swallowed"
        return "nothing"

    found = run(world, swallowing)
    assert not any(isinstance(each, Blocked) for each in found.outcomes)
    assert "only some ranks take part" in text_of(found)
