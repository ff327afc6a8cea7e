"""Ranks may share a flattened parameter, as torch's FullyShardedDataParallel has it: each holds consecutive elements, padded or not."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.tensor import Replicate

import adjointlab as al
from adjointlab.core.flattened import Flattened
from adjointlab.torch_distributed.flat_parts import begins_of, flattened
from adjointlab.torch_distributed.held_parts import HeldPart

pytestmark = [
    pytest.mark.mpi_skip,
    pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning"),
]

EXAMPLE = torch.zeros(4, 3)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)))


def wrapped(module: Any, mesh: DeviceMesh, **given: Any) -> nn.Module:
    made: Any = partial(
        FullyShardedDataParallel, use_orig_params=True, device_id=torch.device("cpu"), **given
    )
    if "device_mesh" not in given:
        made = partial(made, process_group=mesh.get_group())
    module[2] = made(module[2])
    result: nn.Module = made(module)
    return result


def test_parameters_that_torch_flattens_are_compared(world: al.SimulatedWorld) -> None:
    adam: Any = partial(torch.optim.Adam, lr=0.1)
    given: Any = dict(data_parallel="mean", optimizer=adam, steps=2, cases=6, world=world)
    al.check_parallel(model, wrapped, EXAMPLE, **given)


def test_parameters_may_be_flattened_along_one_mesh_dimension_and_copied_along_the_other(
    world: al.SimulatedWorld,
) -> None:
    def hybrid(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return wrapped(module, mesh, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)

    both: Any = {"copied": "mean", "cut": "mean"}
    mesh = {"copied": 2, "cut": 2}
    al.check_parallel(model, hybrid, EXAMPLE, data_parallel=both, mesh=mesh, cases=4, world=world)


def test_a_wrong_gradient_of_a_flattened_parameter_is_found(world: al.SimulatedWorld) -> None:
    def doubled(module: Any) -> None:
        if dist.get_rank() and (gradient := module.module[2].module[1].weight.grad) is not None:
            gradient.mul_(2)

    given: Any = dict(data_parallel="mean", mesh=(2,), frozen=(), cases=4, world=world)
    with pytest.raises(AssertionError, match=r"parameter gradient +2\.1\.weight"):
        al.check_parallel(model, wrapped, EXAMPLE, after_backward=doubled, **given)


def test_flattened_parameters_without_their_names_are_told_how_to_keep_them(world: al.SimulatedWorld) -> None:
    def nameless(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return FullyShardedDataParallel(module, device_id=torch.device("cpu"))

    with pytest.raises(AssertionError, match=r"FullyShardedDataParallel\(\.\.\., use_orig_params=True\)"):
        al.check_parallel(
            model, nameless, EXAMPLE, data_parallel="mean", frozen=(), mesh=(2,), cases=1, world=world
        )


class Gathered(torch.autograd.Function):
    """A whole vector of parts of one length; the backward pass sums up its gradient, of which each rank gets its part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        dist.all_reduce(total := gradient.contiguous().clone())
        return total.chunk(dist.get_world_size())[dist.get_rank()]


class Padded(nn.Linear):
    """A linear layer whose weight is padded, so that the parts of all ranks are equally long."""

    shift = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.ndim == 1:
            shape = (self.out_features, self.in_features)
            weight = Gathered.apply(self.weight)[: math.prod(shape)].view(shape)
            return nn.functional.linear(x, weight, Gathered.apply(self.bias)[: self.out_features])
        return super().forward(x)


def padded(module: Any, mesh: DeviceMesh, *, shift: int = 0) -> None:
    for name, whole in list(module.named_parameters()):
        flat, ranks = whole.detach().flatten().roll(shift), mesh.size()
        longest = -(-flat.numel() // ranks)
        flat = torch.cat([flat, flat.new_zeros(ranks * longest - flat.numel())])
        own = flat[mesh.get_local_rank() * longest :][:longest].clone()
        setattr(module, name, nn.Parameter(own, requires_grad=whole.requires_grad))


@pytest.mark.parametrize("ranks", [2, 3])
def test_flat_parts_may_be_padded_to_one_length(world: al.SimulatedWorld, ranks: int) -> None:
    adam: Any = partial(torch.optim.Adam, lr=0.1)
    given: Any = dict(data_parallel="sum", accumulates=True, mesh=(ranks,), cases=6, world=world)
    al.check_parallel(partial(Padded, 3, 5), padded, EXAMPLE, optimizer=adam, steps=2, **given)
    with pytest.raises(AssertionError, match="no placement changes the number of dimensions"):
        al.check_parallel(partial(Padded, 3, 5), partial(padded, shift=1), EXAMPLE, **given)


def account(shape: tuple[int, ...], length: int, begins: frozenset[int] | None = None) -> HeldPart:
    return HeldPart((Replicate(), Replicate()), shape, (length,), "float64", begins)


@pytest.mark.parametrize(
    ("lengths", "ends", "partition"),
    [
        # Along either dimension of a mesh of 2 x 2 ranks, along both, and padded.
        ((2, 2, 4, 4), (2, 6), (2, 2)),
        ((2, 4, 2, 4), (2, 6), (2, 2)),
        ((1, 2, 0, 3), (1, 3, 3, 6), (4,)),
        ((4, 4, 4, 4), (4, 6), (2, 2)),
        ((2, 2, 2, 2), (2, 4, 6, 6), (4,)),
        # Neither.
        ((1, 1, 1, 1), None, None),
        ((2, 3, 4, 5), None, None),
    ],
)
def test_lengths_tell_how_ranks_share_a_flattened_parameter(lengths: Any, ends: Any, partition: Any) -> None:
    parts = {rank: account((2, 3), length) for rank, length in enumerate(lengths)}
    found = [flattened("w", parts, al.Partition((2, 2)), rank) for rank in range(4)]
    if ends is None:
        assert found == [None] * 4
        return
    for rank, each in enumerate(found):
        assert each is not None
        tensor, pieces = each
        assert tensor.layout.windows == (tuple(zip((0, *ends), ends, strict=False)),)
        assert tensor.layout.partition.shape == partition
        assert pieces == Flattened(tensor.layout.local_size(rank), lengths[rank])


@pytest.mark.parametrize("begins", [(0, 0, 3, 3), (0, 3, 0, 3)])
def test_values_tell_along_which_dimension_halves_are_cut(begins: Any) -> None:
    parts = {rank: account((2, 3), 3, frozenset({begin})) for rank, begin in enumerate(begins)}
    parts[0] = account((2, 3), 3)  # of values of its own
    found = flattened("w", parts, al.Partition((2, 2)), 1)
    assert found is not None
    windows = [found[0].layout.window(rank) for rank in range(4)]
    assert windows == [((begin, begin + 3),) for begin in begins]


def test_parts_begin_where_their_values_are_found() -> None:
    whole = np.array([[1.0, 2.0, 1.0], [2.0, 1.0, 2.0]])
    assert begins_of(np.array([1.0, 2.0]), whole) == {0, 2, 4}
    assert begins_of(np.array([2.0, 1.0, 2.0]), whole) == {1, 3, 5}  # the last one may be padded
    assert begins_of(np.array([2.0, 2.0]), whole) == {5}
    assert begins_of(np.array([7.0]), whole) is None
    assert begins_of(np.zeros(0), whole) is None
    long = np.arange(40.0)
    assert begins_of(np.append(long[10:27], 0.0), long) is None
    assert begins_of(long[10:], long) == {10}


def test_elements_are_taken_apart_and_joined_with_their_padding() -> None:
    last = Flattened(2, 4)
    assert last.apart(np.array([5.0, 6.0, 0.0, 0.0])).tolist() == [5.0, 6.0]
    assert last.apart(np.arange(6.0).reshape(2, 3)).tolist() == list(range(6))
    assert last.joined(np.array([5.0, 6.0]), (4,)).tolist() == [5.0, 6.0, 0.0, 0.0]
    assert last.joined(np.arange(6.0), (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert last.joined(torch.tensor([5.0, 6.0]), (4,)).tolist() == [5.0, 6.0, 0.0, 0.0]
