"""Wrong programs of torch.distributed over MPI end, and are named in torch's words: ``mpiexec -n 3 python -m pytest --with-mpi``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import adjointlab as al
from adjointlab.worlds.launch import launched_world
from adjointlab.worlds.world import RankContext, World

pytestmark = pytest.mark.skipif(
    launched_world() != "mpi", reason="processes of MPI are needed: run under mpiexec -n 3"
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    real = al.MPIWorld(patience=1.0)
    yield real
    real.close()


def differing(rank: int) -> None:
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM)
    dist.broadcast(torch.ones(4), 0) if rank else dist.all_reduce(torch.ones(4))


def staying_away(rank: int) -> None:
    if rank:
        dist.all_reduce(torch.ones(4))


def unawaited(rank: int) -> None:
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()


def groups_in_different_order(rank: int) -> None:
    groups = [[0, 1], [1, 2], [0, 2]]
    for ranks in groups if rank else groups[::-1]:
        dist.new_group(ranks)


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (differing, ("mismatched collective", "op=SUM", "op=AVG")),
        (staying_away, ("all_reduce(op=SUM, count=4, dtype=float32)",)),
        (unawaited, ("request left open", "all_reduce(op=SUM, count=4, dtype=float32)")),
        (groups_in_different_order, ("new_group(ranks=[0, 2], name='1')",)),
    ],
)
def test_a_wrong_program_is_named(
    world: World, program: Callable[[int], None], named: tuple[str, ...]
) -> None:
    def body(context: RankContext, payload: None) -> None:
        with al.process_group(context.comm):
            program(context.rank)

    if world.ranks < 3:
        pytest.skip("needs 3 ranks")
    before = c10d._world
    found = world.run(body, None, 3)
    assert c10d._world is before
    assert not found.completed
    if world.is_leader:
        text = "\n".join(map(str, (*found.findings, *found.outcomes)))
        assert all(part in text for part in named), text
        assert f"{__file__}:" in text
