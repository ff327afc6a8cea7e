"""LeNet-5: outputs and every gradient are the sequential network's, on several grids, with idle workers and other orders."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import adjointlab as al
from adjointlab.layers.networks.lenet import LeNet5, sequential_lenet5
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, integer_cotangent, run_on_ranks

BOUND = 1e-13  # relative to the largest element of each tensor: some 500 units of rounding, for ten layers
GRIDS = (((1, 1), (1, 1)), ((2, 1), (1, 2)), ((1, 2), (2, 1)), ((1, 3), (1, 1)), ((2, 2), (2, 2)))


def apart(one: torch.Tensor, other: torch.Tensor, whole: torch.Tensor) -> float:
    return ((one - other).abs().max() / whole.abs().max()).item() if one.numel() else 0.0


@pytest.mark.parametrize(("spatial", "features"), GRIDS, ids=str)
def test_outputs_and_gradients_are_the_sequential_ones(
    adjointlab_world: World, spatial: tuple[int, int], features: tuple[int, int]
) -> None:
    workers = max(al.Partition(shape).size for shape in (spatial, features))
    ranks = min(workers + 1, adjointlab_world.ranks)
    if ranks < workers:
        pytest.skip(f"needs {workers} ranks")

    def body(comm: Any) -> dict[str, float]:
        from_last = [ranks - 1 - worker for worker in range(ranks)]
        over = [al.Partition(shape, from_last[: al.Partition(shape).size]) for shape in (spatial, features)]
        torch.manual_seed(5)
        network = LeNet5(comm, 3, *over, dtype=torch.float64)
        torch.manual_seed(5)
        twin = sequential_lenet5(dtype=torch.float64)
        whole = torch.randn(3, 1, 32, 32, dtype=torch.float64, requires_grad=True)
        expected = twin(whole)
        cotangent = integer_cotangent(expected)
        expected.backward(cotangent)
        (x, y), rank = (*network.domain.tensors, *network.codomain.tensors), comm.Get_rank()
        images = local_window(whole.detach(), x.layout, rank).requires_grad_()
        logits = network(images)
        logits.backward(local_window(cotangent, y.layout, rank))
        off = {"y": apart(logits, local_window(expected.detach(), y.layout, rank), expected)}
        pairs = {"x": (images, whole, x)}
        for tensor in network.parameter_space.tensors:
            pairs[tensor.name] = (network.get_parameter(tensor.name), twin.get_parameter(tensor.name), tensor)
        for name, (leaf, twins, tensor) in pairs.items():
            if leaf.numel():
                wanted = local_window(twins.grad, tensor.layout, rank)
                off[name] = apart(leaf.grad, wanted, twins.grad)
        return off

    for rank, off in enumerate(run_on_ranks(adjointlab_world, ranks, body)):
        assert max(off.values()) < BOUND, (rank, off)


def test_the_state_dict_round_trips_through_the_sequential_network(adjointlab_world: World) -> None:
    def body(comm: Any) -> list[str]:
        features = al.Partition((min(2, comm.Get_size()), 1))
        torch.manual_seed(3)
        network = LeNet5(comm, 2, al.Partition((1, features.size)), features, dtype=torch.float64)
        torch.manual_seed(3)
        state, whole = network.sequential_state_dict(), network.sequential().state_dict()
        wrong = [name for name, value in whole.items() if not torch.equal(value, state[name])]
        other = {name: value + 1 for name, value in state.items()}
        network.load_sequential_state_dict(other)
        back = network.sequential_state_dict()
        return wrong + [name for name in other if not torch.equal(back[name], other[name])]

    assert set(map(tuple, run_on_ranks(adjointlab_world, min(3, adjointlab_world.ranks), body))) == {()}


def test_partitions_of_another_order_are_refused(adjointlab_world: World) -> None:
    def body(comm: Any) -> LeNet5:
        return LeNet5(comm, 2, al.Partition((1,)), al.Partition((1, 1)))

    assert "are not both of order 2" in error_of_every_rank(adjointlab_world, 1, body)
