"""Wrong programs of torch.distributed are named, in torch's words, and leave nothing behind; so are wrong calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.failed_runs import verdict_on_failure
from adjointlab.torch_distributed.opening import GroupsInOtherOrder
from adjointlab.torch_distributed.real_group import _require_one_order
from adjointlab.worlds.run import FindingKind, PeerFailed, Raised, Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.torch import requirements
from adjointlab.worlds.world import RankContext

Body = Callable[[RankContext], object]


def run(world: al.SimulatedWorld, program: Body, ranks: int = 2, **keywords: Any) -> Run:
    def body(context: RankContext, payload: None) -> object:
        with al.process_group(context.comm):
            return program(context)

    return world.run(body, None, ranks, **keywords)


def finding(found: Run) -> str:
    assert not found.completed
    return "\n".join(f"{each.kind}: {each.text}" for each in found.findings)


def line_of(function: Callable[..., object], offset: int) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


# Collectives that do not match


def by_kind(rank: int, x: torch.Tensor) -> None:
    dist.all_reduce(x) if rank else dist.broadcast(x, 0)


def by_operation(rank: int, x: torch.Tensor) -> None:
    dist.all_reduce(x, op=dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM)


def by_root(rank: int, x: torch.Tensor) -> None:
    dist.broadcast(x, rank)


def by_type(rank: int, x: torch.Tensor) -> None:
    dist.all_reduce(x.bfloat16() if rank else x.half())


def by_count(rank: int, x: torch.Tensor) -> None:
    dist.all_reduce(x[rank:].clone())


def by_split_sizes(rank: int, x: torch.Tensor) -> None:
    dist.all_to_all_single(torch.empty(4), x, [2, 2], [1, 3] if rank else [2, 2])


def by_strides(rank: int, x: torch.Tensor) -> None:
    dist.broadcast(x.reshape(2, 2).t() if rank else x.reshape(2, 2), 0)


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (by_strides, ("count=4, dtype", "count=4, strides=(1, 2), dtype")),
        (by_kind, ("all_reduce(op=SUM", "broadcast(src=0")),
        (by_operation, ("op=SUM", "op=AVG")),
        (by_root, ("src=0", "src=1")),
        (by_type, ("dtype=float16", "dtype=bfloat16")),
        (by_count, ("count=4", "count=3")),
        (
            by_split_sizes,
            (
                "rank 1 sends 1 element to rank 0, which expects 2",
                "sending [1, 3] and expecting [2, 2] elements",
            ),
        ),
    ],
)
def test_collectives_that_differ_are_named_with_both_lines(
    world: al.SimulatedWorld, program: Callable[..., None], named: tuple[str, ...]
) -> None:
    for seed in range(3):
        text = finding(run(world, lambda context: program(context.rank, torch.ones(4)), seed=seed))
        assert text.startswith("mismatched collective")
        assert all(part in text for part in named), text
        assert text.count(line_of(program, 1)) >= 2, text


# Waits that do not end


def test_a_rank_that_stays_away_is_named_in_a_deadlock(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        if context.rank:
            dist.all_reduce(torch.ones(1))

    text = finding(run(world, program, 3))
    assert "rank 1 in all_reduce(op=SUM, count=1, dtype=float32)" in text
    assert line_of(program, 2) in text


class SummedTwiceOnRank0(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        total = gradients[0].clone()
        if dist.get_rank() == 0:
            dist.all_reduce(total)
        return total


def test_a_deadlock_names_the_first_collective_in_which_forward_met_backward(
    world: al.SimulatedWorld,
) -> None:
    def program(context: RankContext) -> None:
        if context.rank == 0:
            dist.broadcast(torch.ones(1), 0)
        else:
            dist.broadcast(torch.empty(1), 0)  # another line, as is legal
        x = torch.ones(3, requires_grad=True)
        for _ in range(2):
            SummedTwiceOnRank0.apply(x).sum().backward()

    text = finding(run(world, program))
    forward = line_of(SummedTwiceOnRank0.forward, 3)
    backward = line_of(SummedTwiceOnRank0.backward, 4)
    assert f"rank 0 in all_reduce(op=SUM, count=3, dtype=float32) at {forward}" in text
    assert (
        f"  collective 3 was called from different places: rank 0 at {backward} in backward; rank 1 at {forward}"
        in text.splitlines()
    )


def test_a_deadlock_names_the_first_collective_that_different_lines_called(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        dist.barrier()
        if context.rank == 0:
            dist.barrier()
        dist.barrier()

    text = finding(run(world, program, ranks=3))
    second, third = line_of(program, 3), line_of(program, 4)
    assert (
        f"  collective 2 was called from different places: rank 0 at {second}; ranks 1, 2 at {third}" in text
    )


def test_a_ring_of_receives_is_a_deadlock(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        dist.recv(torch.ones(1), 1 - context.rank)
        dist.send(torch.ones(1), 1 - context.rank)

    text = finding(run(world, program))
    assert text.startswith("deadlock")
    assert "recv(src=1, tag=0)" in text
    assert "recv(src=0, tag=0)" in text


def test_a_group_that_a_member_never_makes_is_explained(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        if context.rank < 2:
            dist.new_group([0, 2])

    text = finding(run(world, program, 3))
    assert "rank 0 in new_group(ranks=[0, 2], name='1')" in text


@pytest.mark.parametrize(
    "groups", [[[0, 1], [1, 2], [0, 2]], [[0, 1], [2, 3]]], ids=["that meet", "disjoint"]
)
@pytest.mark.parametrize("by_members_alone", [False, True])
def test_groups_made_in_different_order_are_explained(
    world: al.SimulatedWorld, groups: list[list[int]], by_members_alone: bool
) -> None:
    def program(context: RankContext) -> None:
        for ranks in groups if context.rank < 2 or by_members_alone else groups[::-1]:
            if context.rank in ranks or not by_members_alone:
                dist.new_group(ranks)

    found = run(world, program, 4)
    raised = [outcome.message for outcome in found.outcomes if isinstance(outcome, Raised)]
    assert raised
    assert all("makes group number" in text for text in raised)
    assert all("all ranks have to make all groups, in one order" in text for text in raised)
    verdict = verdict_on_failure(found)
    assert verdict.headline == "ranks make process groups in different orders"
    assert verdict.status is Status.INCOHERENT


def test_real_ranks_compare_their_groups_in_the_store_before_they_meet() -> None:
    case: Any = SimpleNamespace(store=dist.HashStore())
    for ranks in ([0, 1], [0, 1]):
        _require_one_order(case, "1", ranks)
    _require_one_order(case, "2", [2, 3])
    with pytest.raises(
        GroupsInOtherOrder, match=r"group number 1 of ranks \[2, 3\], and on another rank that is .* \[0, 1\]"
    ):
        _require_one_order(case, "1", [2, 3])
    _require_one_order(case, "1", [])  # the default group


def test_groups_that_members_alone_make_and_that_synchronise_alone_are_made(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> int:
        group = dist.new_group([0, 1] if context.rank < 2 else [2, 3], use_local_synchronization=True)
        x = torch.tensor(context.rank)
        dist.all_reduce(x, group=group)
        return int(x)

    assert list(run(world, program, 4).values) == [1, 1, 5, 5]


def test_collectives_of_two_groups_in_different_order_are_found(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        for group in groups if context.rank else groups[::-1]:
            dist.all_reduce(torch.ones(1), group=group)

    assert "different orders" in finding(run(world, program))


# Operations that are not waited for


def test_work_that_nobody_waits_for_is_a_finding(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        dist.all_reduce(torch.ones(1), async_op=True)

    text = finding(run(world, program))
    assert text.startswith("request left open")
    assert f"never completed all_reduce(op=SUM, count=1, dtype=float32) at {line_of(program, 1)}" in text


def test_a_buffer_touched_before_wait_is_a_finding(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        x = torch.ones(3)
        work = dist.all_reduce(x, async_op=True)
        x.fill_(3)
        work.wait()

    findings = [run(world, program, schedule=Schedule.of(seed)).findings for seed in range(6)]
    assert any(each.kind is FindingKind.BUFFER_MISUSED for found in findings for each in found)


def test_a_result_read_before_wait_is_late_in_some_schedule(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> float:
        x = torch.ones(1)
        work = dist.all_reduce(x, async_op=True)
        early = float(x)
        work.wait()
        return early

    seen = {value for seed in range(8) for value in run(world, program, seed=seed).values}
    assert seen - {2.0}


def test_a_functional_collective_completes_when_its_result_is_used(world: al.SimulatedWorld) -> None:
    from torch.distributed._functional_collectives import all_reduce

    def program(context: RankContext) -> float:
        return float(all_reduce(torch.ones(2), "sum", dist.group.WORLD).sum())

    for seed in range(4):
        assert run(world, program, seed=seed).values == (4.0, 4.0)


def test_a_functional_collective_whose_result_nobody_uses_is_named_with_its_line(
    world: al.SimulatedWorld,
) -> None:
    from torch.distributed._functional_collectives import all_reduce

    def program(context: RankContext) -> None:
        all_reduce(torch.ones(2), "sum", dist.group.WORLD)

    text = finding(run(world, program))
    assert f"never completed all_reduce(op=SUM, count=2, dtype=float32) at {line_of(program, 1)}" in text


# What is left of a case


def state() -> tuple[object, ...]:
    return (
        c10d._world,
        c10d._new_process_group_helper,
        DeviceMesh.__init__,
        dist.is_initialized(),
        dict(c10d._pg_map),
        c10d._group_count,
    )


def test_a_hundred_failing_cases_leave_no_group_behind(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        if context.rank == 1:
            raise ValueError("this rank fails")
        dist.all_reduce(torch.ones(1), group=group)

    before = state()
    for seed in range(100):
        assert not run(world, program, seed=seed).completed
        assert state() == before
    with pytest.raises((LookupError, RuntimeError), match="group"):
        c10d._resolve_process_group("0")


# Wrong calls


def test_a_second_default_group_is_refused(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        with al.process_group(context.comm):
            pass

    outcomes = run(world, program).outcomes
    assert all(
        isinstance(each, Raised) and "is open on this rank already" in each.message for each in outcomes
    )


def test_the_group_of_another_rank_is_refused_by_name(world: al.SimulatedWorld) -> None:
    kept: list[Any] = []

    def program(context: RankContext) -> None:
        kept.append(dist.group.WORLD)
        dist.barrier()
        dist.all_reduce(torch.ones(1), group=kept[0])

    found = finding(run(world, program))
    assert "group in shared module state: rank 1: a process group of rank 0 is used" in found


def test_a_process_group_is_not_there_outside(world: al.SimulatedWorld) -> None:
    def body(context: RankContext, payload: None) -> None:
        with al.process_group(context.comm):
            pass
        dist.all_reduce(torch.ones(1))

    outcomes = world.run(body, None, 2).outcomes
    assert all(isinstance(each, Raised) and "process_group=True" in each.message for each in outcomes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
            "ReduceOp.BAND is not defined for torch.float32",
        ),
        (lambda: dist.broadcast(torch.ones(2).to_sparse(), 0), "moves dense tensors"),
        (
            lambda: dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX),
            "sparse tensors are added up alone, by ReduceOp.SUM, not MAX",
        ),
        (lambda: dist.all_gather([torch.ones(1)], torch.ones(1)), "has 1 tensors, and the group 2 ranks"),
        (
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)),
            "3 rows, which 2 ranks cannot share evenly",
        ),
        (
            lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), torch.tensor([1, 1]), [1, 1]),
            "the split sizes of the output are tensor([1, 1]), and should be a list of integers",
        ),
        (lambda: dist.distributed_c10d._get_default_store().get("key"), "has no key-value store"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    world: al.SimulatedWorld, call: Callable[[], object], message: str
) -> None:
    outcomes = run(world, lambda context: call()).outcomes
    assert all(isinstance(each, Raised) and message in each.message for each in outcomes), outcomes


def test_a_mesh_that_does_not_fit_the_ranks_is_refused(world: al.SimulatedWorld) -> None:
    def body(context: RankContext, payload: None) -> None:
        with al.device_mesh(context.comm, (2, 2)):
            raise AssertionError

    outcomes = world.run(body, None, 3).outcomes
    assert all("has 4 entries, and the communicator 3 ranks" in str(each) for each in outcomes)


@pytest.mark.parametrize(
    ("version", "is_available", "message"),
    [
        ("2.5.1", True, "this is torch 2.5.1"),
        ("2.13.0+cpu", False, "built without it"),
        ("", True, "not installed"),
    ],
)
def test_a_torch_that_will_not_do_is_named(
    monkeypatch: pytest.MonkeyPatch, version: str, is_available: bool, message: str
) -> None:
    class Torch:
        __version__ = version

        class distributed:
            @staticmethod
            def is_available() -> bool:
                return is_available

    def imported(name: str) -> object:
        if not version:
            raise ModuleNotFoundError(name)
        return Torch

    monkeypatch.setattr(requirements.importlib, "import_module", imported)
    with pytest.raises(requirements.MissingTorch, match=message):
        requirements.check_torch()


# What code asks


@pytest.mark.filterwarnings("ignore:Attempted to get default timeout for nccl")
def test_groups_of_every_backend_are_made_and_destroyed(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        assert dist.get_backend() == "gloo"
        assert dist.get_world_size() == context.size
        for backend in (None, "gloo", "nccl", "cpu:gloo,cuda:nccl"):
            group = dist.new_group([0, 1], backend=backend)
            assert dist.get_rank(group) == context.rank
            dist.all_reduce(torch.ones(1), group=group)
            dist.destroy_process_group(group)
        subgroup, groups = dist.new_subgroups(1)
        assert len(groups) == context.size
        assert dist.get_process_group_ranks(subgroup) == [context.rank]
        dist.destroy_process_group()
        assert not dist.is_initialized()

    assert run(world, program).completed


def test_a_communicator_of_mpi4py_is_refused() -> None:
    class Comm:
        __module__ = "mpi4py.MPI"

    with pytest.raises(TypeError, match="not mpi4py's own"), al.process_group(Comm()):
        raise AssertionError


def test_a_rank_whose_own_part_does_not_fit_is_named_once(world: al.SimulatedWorld) -> None:
    def program(context: RankContext) -> None:
        sent = [1, 0] if context.rank == 0 else [0, 1]
        dist.all_to_all_single(torch.empty(1), torch.ones(1), sent[::-1], sent)

    lines = finding(run(world, program)).splitlines()
    assert len(lines) == len(set(lines))


def test_the_failed_peers_of_a_rank_are_named_once() -> None:
    assert str(PeerFailed("barrier()", "train.py:1", (0, 0))).endswith("because rank 0 failed")
    assert str(PeerFailed("barrier()", "train.py:1", (2, 0))).endswith("because ranks 0, 2 failed")
