"""The answers of a process group's backend to the questions of several versions of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import adjointlab as al
from adjointlab.worlds.world import RankContext

CPU = torch.device("cpu")


@pytest.mark.parametrize("question", ["supports_coalescing", "supports_splitting", "supports_time_estimate"])
def test_a_backend_has_nothing_beyond_the_calls_of_its_group(world: al.SimulatedWorld, question: str) -> None:
    """torch 2.14 asks for the first before `batch_isend_irecv`, and takes what has no backend at all for an error."""

    def program(context: RankContext, _: object) -> tuple[bool, bool]:
        with al.process_group(context.comm):
            group = dist.group.WORLD
            assert group is not None
            backend = group._get_backend(CPU)
            return getattr(backend, question), backend.supports_tensor_alloc(CPU)

    assert world.run(program, None, 2).values == ((False, False),) * 2


def test_each_rank_scales_by_its_own_factor_before_a_sum(world: al.SimulatedWorld) -> None:
    def program(context: RankContext, _: object) -> float:
        with al.process_group(context.comm):
            x = torch.ones(1)
            dist.all_reduce(x, op=dist._make_nccl_premul_sum(torch.tensor([2.0 + context.rank])))
            return float(x)

    assert world.run(program, None, 2).values == (5.0, 5.0)


def test_an_exchange_in_one_memory_is_refused_in_the_words_of_torchs_names(world: al.SimulatedWorld) -> None:
    def program(context: RankContext, _: object) -> None:
        with al.process_group(context.comm):
            x = torch.ones(2, dtype=torch.bfloat16)
            dist.all_to_all_single(x, x)

    run = world.run(program, None, 2)
    assert "all_to_all_single: the input and the output share memory" in str(run.outcomes[0])


def test_an_input_that_another_ranks_part_overwrites_is_refused_in_the_words_of_torchs_names(
    world: al.SimulatedWorld,
) -> None:
    def program(context: RankContext, part: int) -> None:
        with al.process_group(context.comm):
            x = torch.ones(4)
            parts = x.chunk(2)
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            gather(x, parts[(context.rank + part) % 2])

    assert world.run(program, 0, 2).values == (None, None)
    run = world.run(program, 1, 2)
    assert "all_gather_into_tensor: the input lies in the output" in str(run.outcomes[0])


@pytest.mark.parametrize("tag", [-1, 2**29])
def test_a_tag_that_mpi_has_not_is_refused_with_those_that_it_has(world: al.SimulatedWorld, tag: int) -> None:
    def program(context: RankContext, _: object) -> None:
        with al.process_group(context.comm):
            exchange = dist.recv if context.rank else dist.send
            exchange(torch.ones(2), 1 - context.rank, tag=tag)

    run = world.run(program, None, 2)
    for call, outcome in zip(("send", "recv"), run.outcomes, strict=True):
        assert f"ValueError: {call}: tag={tag}: adjointlab takes tags from 0 to 536870911" in str(outcome)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda group, x, y: group.allreduce([x, y]), "all_reduce"),
        (lambda group, x, y: group.broadcast([x, y]), "broadcast"),
    ],
    ids=["all_reduce", "broadcast"],
)
def test_several_tensors_of_a_rank_in_one_call_are_refused_as_gloo_mixes_them(
    world: al.SimulatedWorld,
    call: Callable[[dist.ProcessGroup, torch.Tensor, torch.Tensor], dist.Work],
    name: str,
) -> None:
    def program(context: RankContext, _: object) -> None:
        with al.process_group(context.comm):
            group = dist.group.WORLD
            assert group is not None
            call(group, torch.ones(2), torch.ones(2)).wait()

    run = world.run(program, None, 2)
    assert f"ValueError: {name}: a rank passes 2 tensors in one call" in str(run.outcomes[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda flat, square: dist.all_gather(flat, square[0]),
        lambda flat, square: dist.gather(square[0], flat if dist.get_rank() == 0 else None),
        lambda flat, square: dist.scatter(square[0], flat if dist.get_rank() == 0 else None),
        lambda flat, square: dist.reduce_scatter(square[0], flat),
        lambda flat, square: dist.all_to_all(flat, square),
    ],
    ids=["all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"],
)
def test_parts_of_another_shape_are_refused_as_gloo_does(
    world: al.SimulatedWorld, call: Callable[[list[torch.Tensor], list[torch.Tensor]], object]
) -> None:
    def program(context: RankContext, _: object) -> None:
        with al.process_group(context.comm):
            call([torch.zeros(4), torch.zeros(4)], [torch.ones(2, 2), torch.ones(2, 2)])

    run = world.run(program, None, 2)
    assert "invalid tensor size at index 0 (expected (2, 2), got (4,))" in str(run.outcomes[0])


@pytest.mark.parametrize("peer", [-1, 2])
@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x, peer: dist.send(x, peer), "send: dst"),
        (lambda x, peer: dist.recv(x, peer), "recv: src"),
        (lambda x, peer: dist.broadcast(x, peer), "broadcast: src"),
        (lambda x, peer: dist.reduce(x, peer), "reduce: dst"),
        (lambda x, peer: dist.gather(x, None, peer), "gather: dst"),
        (lambda x, peer: dist.scatter(x, None, peer), "scatter: src"),
    ],
    ids=["send", "recv", "broadcast", "reduce", "gather", "scatter"],
)
def test_a_rank_that_a_group_has_not_is_named_with_those_that_it_has(
    world: al.SimulatedWorld, call: Callable[[torch.Tensor, int], object], argument: str, peer: int
) -> None:
    def program(context: RankContext, _: object) -> None:
        with al.process_group(context.comm):
            call(torch.ones(2), peer)

    run = world.run(program, None, 2)
    assert f"ValueError: {argument}={peer} is not a rank of the group, which has 0 to 1" in str(
        run.outcomes[0]
    )
