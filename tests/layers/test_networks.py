"""A torch.nn.Sequential made of distributed layers computes what it does, and its state comes back bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import adjointlab as al
from adjointlab.layers import from_sequential, load_sequential_state_dict, sequential_state_dict
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks, sines

IMAGES = (4, 3, 8, 8)


def images_network() -> nn.Sequential:
    """Every kind of layer that a chain may have, with a chain in it; the same parameters for each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        features = nn.Sequential(nn.Conv2d(6, 4, 3, groups=2), nn.Tanh(), nn.MaxPool2d(2))
        network = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(6), features, nn.Flatten(),
            nn.Linear(36, 10), nn.GELU(), nn.Linear(10, 4), nn.LogSoftmax(1),
        )  # fmt: skip
    return network.double()


def tokens_network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        return nn.Sequential(nn.Embedding(7, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double()


@pytest.mark.parametrize(
    ("partition", "partitions"),
    [
        ((1, 1, 1, 1), {}),
        ((1, 1, 2, 2), {"7": (1, 2, 2)}),
        ((2, 1, 1, 2), {"0": (1, 2, 1, 2, 1), "5": (1, 2, 2), "6": (2, 1)}),
        ((1, 2, 2, 1), {"3.0": (1, 1, 2, 1, 2)}),
        (al.Partition((1, 1, 3, 1), (2, 0, 1)), {"1": (1, 3, 1, 1), "8": al.Partition((3, 1), (1, 2, 0))}),
    ],
    ids=str,
)
def test_outputs_and_gradients_are_the_sequential_networks(
    adjointlab_world: World, partition: Any, partitions: Any
) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")

    def body(comm: Any) -> list[str]:
        twin = images_network()
        network = from_sequential(twin, comm, partition, IMAGES, partitions=partitions)
        assert_matches_twin(comm, network, twin, sines(*IMAGES), relative=2.0**-40)
        wrong = [] if list(network.sequential_state_dict()) == list(twin.state_dict()) else ["names"]
        for tensor in network.parameter_space.tensors:
            gradient, whole = network.get_parameter(tensor.name).grad, twin.get_parameter(tensor.name).grad
            assert gradient is not None
            assert whole is not None
            off = (gradient - local_window(whole, tensor.layout, comm.Get_rank())).abs()
            wrong += [tensor.name] if off.numel() and off.max() > 2.0**-36 * whole.abs().max() else []
        return wrong

    assert run_on_ranks(adjointlab_world, 4, body) == ([],) * 4


def test_a_network_of_complex_parameters_takes_their_type(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        twin = nn.Sequential(nn.Linear(3, 2, dtype=torch.complex128), nn.Linear(2, 2, dtype=torch.complex128))
        for parameter in twin.parameters():
            parameter.data = sines(*parameter.shape) * (1 + 1j)
        network, x = from_sequential(twin, comm, (1, 1), (4, 3)), sines(4, 3) * (2 - 1j)
        assert torch.allclose(network(x), twin(x))

    run_on_ranks(adjointlab_world, 1, body)


def test_the_state_goes_to_one_rank_or_all_and_back_bit_for_bit(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def bits(state: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {
            name: value.reshape(-1).contiguous().view(torch.uint8).tolist() for name, value in state.items()
        }

    def body(comm: Any) -> None:
        twin = images_network()
        with torch.no_grad():  # values that a sum with zeros would change
            twin[0].bias[0], twin[5].weight[3, 4], twin[2].running_mean[1] = -0.0, torch.nan, -torch.inf
        wanted = bits(twin.state_dict())
        partition = (1, 1, ranks, 1)
        network = from_sequential(twin, comm, partition, IMAGES)
        first = bits(network.sequential_state_dict())
        on_last = bits(sequential_state_dict(network, root=ranks - 1))
        assert first == wanted
        assert on_last == (wanted if comm.Get_rank() == ranks - 1 else {})
        for root in (None, 0):
            other = from_sequential(images_network().apply(_zeroed), comm, partition, IMAGES)
            known = root is None or comm.Get_rank() == root
            load_sequential_state_dict(
                other, twin.state_dict() if known else {"nothing": torch.ones(1)}, root
            )
            assert bits(other.sequential_state_dict()) == wanted
        assert bits(network.to_sequential().state_dict()) == wanted

    run_on_ranks(adjointlab_world, ranks, body)


def _zeroed(module: nn.Module) -> None:
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        tensor.data.zero_()


def test_the_state_of_a_model_of_ones_own_has_the_sequential_models_names(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    class Residual(nn.Module):
        def __init__(self, make: Any) -> None:
            super().__init__()
            self.attention = make("MultiheadAttention", (1, ranks, 1), (3, 2, 4), nn.MultiheadAttention(4, 2))
            self.dense = make("Linear", (1, 1, ranks, 1), (3, 2, 4), nn.Linear(4, 4))
            self.again = self.dense

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        twin = Residual(lambda *a: a[-1])
        kept = copy.deepcopy(twin.state_dict())
        model = Residual(lambda name, *a: getattr(al.layers, name)(comm, *a))
        state = sequential_state_dict(model)
        assert list(state) == list(kept)
        load_sequential_state_dict(model, {name: value + 1 for name, value in state.items()})
        for name, value in sequential_state_dict(model).items():
            assert torch.equal(value, state[name] + 1), name

    run_on_ranks(adjointlab_world, ranks, body)


def test_indices_and_a_network_in_evaluation_are_taken_as_they_are(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        twin = tokens_network().eval()
        network = from_sequential(twin, comm, (ranks, 1), (4, 3), partitions={"2": (ranks, 1, 1, 1)})
        assert not any(module.training for module in network.modules())
        indices = torch.arange(12).reshape(4, 3) % 7
        (x,), (y,) = network.domain.tensors, network.codomain.tensors
        got = network(local_window(indices, x.layout, comm.Get_rank()))
        want = local_window(twin(indices).detach(), y.layout, comm.Get_rank())
        torch.testing.assert_close(got.detach(), want, rtol=2.0**-40, atol=2.0**-40)

    run_on_ranks(adjointlab_world, ranks, body)


_SHARED = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("network", "partitions", "message"),
    [
        (nn.Sequential(nn.Linear(3, 3)), {"1": (1, 1, 1)}, "partitions: '1' is not a layer of the network, which has 0"),
        (nn.Sequential(nn.Linear(3, 3)), {"0": (1, 1)}, "network: 0 (Linear): partition: of order 2 (1x1)"),
        (nn.Sequential(nn.PReLU()), {}, "network: 0 (PReLU): function: PReLU has weight"),
        (nn.Sequential(nn.Sequential(nn.GLU())), {}, "network: 0.0 (GLU): no layer is made from it, and it is not elementwise"),
        (nn.Sequential(_SHARED, nn.ReLU(), _SHARED), {}, "network: 0.weight and 2.weight are one tensor"),
        (nn.Sequential(nn.MSELoss()), {}, "network: 0 (MSELoss) has several inputs or outputs"),
    ],
    ids=["no such layer", "order", "parameters", "not elementwise", "tied", "inputs"],
)  # fmt: skip
def test_what_no_chain_is_made_of_is_the_same_error_on_every_rank(
    adjointlab_world: World, network: nn.Sequential, partitions: Any, message: str
) -> None:
    network.apply(_zeroed)  # as each process has drawn its own values
    text = error_of_every_rank(
        adjointlab_world,
        2,
        lambda comm: from_sequential(network, comm, (comm.size, 1), (4, 3), partitions=partitions),
    )
    assert message in text


@pytest.mark.parametrize("root", [None, 0])
def test_a_state_that_does_not_fit_changes_nothing(adjointlab_world: World, root: int | None) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    wrong = {"0.weight": torch.ones(3, 3), "1.bias": torch.ones(3)}

    def body(comm: Any) -> None:
        torch.manual_seed(0)
        network = from_sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), comm, (ranks, 1), (4, 3))
        before = network.sequential_state_dict()
        given = wrong if comm.Get_rank() == 0 or root is None else {}
        try:
            load_sequential_state_dict(network, given, root)
        finally:
            after = network.sequential_state_dict()
            assert all(torch.equal(value, after[name]) for name, value in before.items())

    assert "state: lacks 0.bias (3,), which the layer needs" in error_of_every_rank(
        adjointlab_world, ranks, body
    )
