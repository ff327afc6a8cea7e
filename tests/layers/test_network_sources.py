"""A network made of a torch.nn.Sequential has every module of it, each in its mode, or is refused on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.layers import from_sequential
from adjointlab.layers.networks.network import Network
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks, sines


def shared_network() -> nn.Sequential:
    """A function, a pool and a chain without parameters, each in two places."""
    relu, pool = nn.ReLU(), nn.MaxPool2d(2)
    block = nn.Sequential(nn.Tanh(), pool)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), relu, pool, nn.Conv2d(2, 1, 3, padding=1), relu, block, block
    ).double()


def test_a_module_that_stands_there_twice_is_applied_twice(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        torch.manual_seed(3)
        twin = shared_network()
        network = from_sequential(
            twin, comm, (1, 1, ranks, 1), (2, 1, 17, 19), partitions={"6.1": (1, 1, 1, ranks)}
        )
        assert_matches_twin(comm, network, twin, sines(2, 1, 17, 19), relative=2.0**-40)
        x = sines(2, 1, 17, 19)
        assert torch.equal(network.to_sequential()(x), twin(x))

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_layer_that_stands_in_a_network_twice_is_in_its_sequential_network_twice(
    adjointlab_world: World,
) -> None:
    def body(comm: Any) -> None:
        layer = from_sequential(nn.Sequential(nn.Linear(3, 3)), comm, (1, 1), (2, 3))[0]
        whole = Network({"0": layer, "1": layer}).to_sequential()
        assert whole[0] is whole[1]
        assert len(whole) == 2

    run_on_ranks(adjointlab_world, 1, body)


@pytest.mark.parametrize("training", [False, True], ids=["in evaluation", "in training"])
def test_each_layer_has_the_mode_of_its_module_also_on_the_way_back(
    adjointlab_world: World, training: bool
) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        torch.manual_seed(0)
        twin = nn.Sequential(
            nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3), nn.AlphaDropout()), nn.RReLU()
        ).double()
        twin.train(training)
        twin[1][0].train(not training)
        twin[2].train(not training)
        network = from_sequential(twin, comm, (ranks, 1), (4, 3))
        for each in (network, network.to_sequential()):
            found = (each.training, each[0].training, each[1].training, each[1][0].training, each[2].training)
            assert found == (training, training, training, not training, not training)
        assert network[2].function.training is not training
        network.train(not training)
        assert (twin.training, twin[1][1].training) == (training, training), "modes are not shared"

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("tensor", ["0.weight", "1.num_batches_tracked", "2.bias"])
def test_values_that_differ_by_rank_as_without_a_seed_are_the_same_error_on_every_rank(
    adjointlab_world: World, tensor: str
) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    if ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        torch.manual_seed(0)
        twin = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(torch.bfloat16)
        from_sequential(twin, comm, (1, 1), (4, 3))  # other ranks are idle
        if comm.Get_rank() == ranks - 1:
            twin.state_dict()[tensor].reshape(-1)[-1:] += 1
        from_sequential(twin, comm, (1, 1), (4, 3))

    assert error_of_every_rank(adjointlab_world, ranks, body).startswith(
        f"network: {tensor} has other values on rank {ranks - 1} than on rank 0; every rank gives the same module: call torch.manual_seed"
    )


def test_a_module_without_values_is_refused(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        from_sequential(nn.Sequential(nn.Linear(3, 3, device="meta")), comm, (1, 1), (4, 3))

    message = error_of_every_rank(adjointlab_world, 1, body)
    assert message.startswith("network: 0.weight lies on the device meta, which has no values")


def test_a_network_is_copied_and_averaged_with_parameters_of_its_own(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        torch.manual_seed(4)
        twin = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2))).double()
        network = from_sequential(twin, comm, (ranks, 1), (4, 3))
        for other in (copy.deepcopy(network), torch.optim.swa_utils.AveragedModel(network).module):
            with torch.no_grad():
                other[1][1].weight.add_(1)
            assert_matches_twin(comm, network, twin, sines(4, 3), relative=2.0**-40)
            assert other.comm is comm
            assert other[0].weight is not network[0].weight

    run_on_ranks(adjointlab_world, ranks, body)


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def _hooked(register: str, path: str = "1") -> nn.Sequential:
    network = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)))
    getattr(network.get_submodule(path), register)(lambda *_: None)
    return network


def _patched(path: str) -> nn.Sequential:
    network = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)))
    network.get_submodule(path).forward = lambda x: 0 * x  # type: ignore[method-assign]
    return network


def _watched(register: str) -> nn.Sequential:
    network = nn.Sequential(nn.Linear(3, 3))
    getattr(network[0].weight, register)(lambda gradient: None)
    return network


ADDED: dict[str, tuple[Callable[[], nn.Sequential], str]] = {
    "forward hook": (
        lambda: _hooked("register_forward_hook", "1.0"),
        "network: 1.0 (ReLU) has forward hooks",
    ),
    "pre-hook of a chain": (
        lambda: _hooked("register_forward_pre_hook"),
        "network: 1 (Sequential) has forward pre hooks",
    ),
    "backward hook of the network": (
        lambda: _hooked("register_full_backward_hook", ""),
        "network: the network itself has backward hooks",
    ),
    "backward pre-hook": (
        lambda: _hooked("register_full_backward_pre_hook", "1.1"),
        "network: 1.1 (Linear) has backward pre hooks",
    ),
    "state hook": (
        lambda: _hooked("register_state_dict_post_hook", "0"),
        "network: 0 (Linear) has state dict hooks",
    ),
    "gradient hook": (lambda: _watched("register_hook"), "network: 0 (Linear) has hooks of its weight"),
    "accumulation hook": (
        lambda: _watched("register_post_accumulate_grad_hook"),
        "network: 0 (Linear) has hooks of its weight",
    ),
    "forward of an instance": (lambda: _patched("0"), "network: 0 (Linear) has a forward of its own"),
    "forward of a chain": (lambda: _patched("1"), "network: 1 (Sequential) has a forward of its own"),
    "parametrization": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))),
        "network: 0 (ParametrizedLinear) has parametrizations",
    ),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(3)),
        "network: 0.weight has no shape yet; call the module once",
    ),
    "nothing": (nn.Sequential, "network: has no modules"),
    "list": (
        lambda: nn.Sequential(nn.ModuleList([nn.ReLU()])),
        "network: 0 (ModuleList): no layer is made from it",
    ),
}


@pytest.mark.parametrize("added", ADDED)
def test_what_a_layer_would_not_have_of_its_module_is_refused(adjointlab_world: World, added: str) -> None:
    make, message = ADDED[added]
    text = error_of_every_rank(
        adjointlab_world, 1, lambda comm: from_sequential(make(), comm, (1, 1), (4, 3))
    )
    assert message in text


def test_a_sequential_with_a_forward_of_its_own_is_told_from_what_is_none(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(
            TypeError, match=r"a Residual is a torch\.nn\.Sequential with a forward of its own"
        ):
            from_sequential(Residual(nn.Linear(3, 3)), comm, (1, 1), (4, 3))
        with pytest.raises(TypeError, match=r"a Linear is not a torch\.nn\.Sequential"):
            from_sequential(nn.Linear(3, 3), comm, (1, 1), (4, 3))  # type: ignore[arg-type]

    run_on_ranks(adjointlab_world, 1, body)


DIFFERING: dict[str, Callable[[Any, int], object]] = {
    "input_shape": lambda comm, r: from_sequential(nn.Sequential(nn.ReLU()), comm, (2, 1), (4 + r, 3)),
    "partition": lambda comm, r: from_sequential(nn.Sequential(nn.ReLU()), comm, (2 - r, 1 + r), (4, 4)),
    "partitions": lambda comm, r: from_sequential(
        nn.Sequential(nn.ReLU()), comm, (2, 1), (4, 3), partitions={"0": (1, 2)} if r else {}
    ),
    "dtype": lambda comm, r: from_sequential(
        nn.Sequential(nn.ReLU()), comm, (2, 1), (4, 3), dtype=(torch.float32, torch.float64)[r]
    ),
    "network: 1": lambda comm, r: from_sequential(
        nn.Sequential(nn.Linear(3, 3), nn.Dropout() if r else nn.ReLU()), comm, (2, 1), (4, 3)
    ),
}


@pytest.mark.parametrize("name", DIFFERING)
def test_an_argument_that_differs_by_rank_is_the_same_error_on_every_rank(
    adjointlab_world: World, name: str
) -> None:
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")
    make = DIFFERING[name]
    text = error_of_every_rank(adjointlab_world, 2, lambda comm: make(comm, comm.Get_rank()))
    assert text.startswith(f"{name}: differs by rank: ")
