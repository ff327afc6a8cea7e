"""A rank without the loss adds terms of its own, which get the gradient that they have in the sequential model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.layers import from_sequential, local_window, sequential_gradients
from adjointlab.layers.losses import AbsentLoss, MSELoss
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, run_on_ranks, sines


def plus_equal(loss: Any, penalty: Any) -> Any:
    loss += penalty
    return loss


def of_two(loss: Any, penalty: Any) -> Any:
    return sum([loss, penalty / 2, 2 * loss]) + penalty


SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "loss + 0.1 penalty": lambda loss, penalty: loss + 0.1 * penalty,
    "0.1 penalty + loss": lambda loss, penalty: 0.1 * penalty + loss,
    "(loss - penalty) / 4": lambda loss, penalty: (loss - penalty) / 4,
    "3 (penalty - loss)": lambda loss, penalty: 3 * (penalty - loss),
    "-(1 - loss - penalty) * tensor": lambda loss, penalty: -(1 - loss - penalty) * torch.tensor(0.5),
    "torch.add": lambda loss, penalty: torch.add(loss, penalty, alpha=2).sum(),
    "loss += penalty": plus_equal,
    "sums of sums": of_two,
}


def trained(comm: Any, combine: Callable[[Any, Any], Any]) -> float:
    """The largest difference of a gradient from the sequential network's, for a loss that is combined with a penalty."""
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    size = comm.Get_size()
    network = from_sequential(twin, comm, (1, size), (5, 3), partitions={"1": (1, 1, size)})
    error = MSELoss(comm, network.output_partition, (5, 2), dtype=torch.float64, root=size - 1)
    whole, targets, rank = sines(5, 3), sines(5, 2), comm.Get_rank()
    x, y = network.domain.tensors[0].layout, error.domain.tensors[1].layout
    loss = error(network(local_window(whole, x, rank)), local_window(targets, y, rank))
    assert isinstance(loss, AbsentLoss) is (rank != size - 1)
    combine(loss, sum((p**2).sum() for p in network.parameters())).backward()
    penalty: Any = sum((p**2).sum() for p in twin.parameters())
    combine(nn.functional.mse_loss(twin(whole), targets), penalty).backward()
    gradients = sequential_gradients(network)
    return max(
        float((gradients[name] - p.grad).abs().max())
        for name, p in twin.named_parameters()
        if p.grad is not None
    )


@pytest.mark.parametrize("combine", SUMS.values(), ids=SUMS)
def test_a_penalty_on_each_ranks_parameters_has_its_gradient(
    adjointlab_world: World, combine: Callable[[Any, Any], Any]
) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    assert max(run_on_ranks(adjointlab_world, ranks, lambda comm: trained(comm, combine))) < 2.0**-44


OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "a product": lambda loss, penalty: loss * penalty,
    "a function of the sum": lambda loss, penalty: (loss + penalty).log(),
    "a quotient": lambda loss, penalty: (loss + penalty) / loss,
    "a list": lambda loss, penalty: torch.cat([loss, penalty.reshape(1)]),
    "autograd.grad": lambda loss, penalty: torch.autograd.grad(loss + penalty, penalty, torch.zeros(0)),
}


@pytest.mark.parametrize("combine", OTHERS.values(), ids=OTHERS)
def test_what_depends_on_the_value_of_the_loss_is_refused_where_it_is_not(
    adjointlab_world: World, combine: Callable[[Any, Any], Any]
) -> None:
    def body(comm: Any) -> None:
        loss = torch.zeros(0, requires_grad=True).as_subclass(AbsentLoss)
        combine(loss, torch.ones((), requires_grad=True))

    assert "only sums of both and their multiples" in error_of_every_rank(adjointlab_world, 1, body)


def test_the_gradient_of_a_loss_alone_may_be_asked_for_by_autograd_grad() -> None:
    weight = torch.ones(0, requires_grad=True)
    other = torch.ones(2, requires_grad=True)
    loss = (2 * weight).as_subclass(AbsentLoss)
    gradients = torch.autograd.grad(loss, [weight, other], torch.zeros(0), allow_unused=True)
    assert [None if each is None else each.tolist() for each in gradients] == [[], None]


def test_the_number_of_a_loss_is_asked_for_on_its_root(adjointlab_world: World) -> None:
    loss = torch.zeros(0, requires_grad=True).as_subclass(AbsentLoss)
    for ask in (AbsentLoss.item, float, "{:.3f}".format, lambda loss: bool(loss < 1)):
        with pytest.raises(RuntimeError, match=r"comm.bcast\(loss.tolist\(\), root\)"):
            ask(loss)
    with pytest.raises(ValueError, match="gradient: multiply the loss by it on every rank"):
        (loss + torch.ones((), requires_grad=True)).backward(torch.zeros(0))


def gradients(comm: Any, ask: Callable[[Any, list[Any]], Any]) -> float:
    """The largest difference of a gradient from the sequential network's, asked for by a function of torch's."""
    torch.manual_seed(0)
    twin = nn.Linear(3, 4).double()
    network = from_sequential(nn.Sequential(twin), comm, (1, comm.Get_size()), (5, 3))
    error = MSELoss(comm, network.output_partition, (5, 4), dtype=torch.float64)
    whole, targets, rank = sines(5, 3), sines(5, 4), comm.Get_rank()
    x, y = network.domain.tensors[0].layout, error.domain.tensors[1].layout
    own = list(network.parameters())
    loss = error(network(local_window(whole, x, rank)), local_window(targets, y, rank))
    given = ask(loss, own)
    for parameter, gradient in zip(own, given or (), strict=False):
        parameter.grad = gradient
    nn.functional.mse_loss(twin(whole), targets).backward()
    found = sequential_gradients(network)
    return max(float((found[f"0.{name}"] - p.grad).abs().max()) for name, p in twin.named_parameters())


@pytest.mark.parametrize(
    "ask",
    [
        lambda loss, own: torch.autograd.grad(loss, own),
        lambda loss, own: torch.autograd.grad(loss, own, create_graph=True),
        lambda loss, own: torch.autograd.grad(loss, own, torch.ones_like(loss)),
        lambda loss, own: torch.autograd.backward(loss),
        lambda loss, own: torch.autograd.backward([loss], [None], inputs=own),
    ],
    ids=["grad", "grad with a graph", "grad with a cotangent", "backward", "backward of a list"],
)
def test_torchs_functions_of_a_backward_pass_need_no_cotangent_of_an_absent_loss(
    adjointlab_world: World, ask: Callable[[Any, list[Any]], Any]
) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    assert max(run_on_ranks(adjointlab_world, ranks, lambda comm: gradients(comm, ask))) < 2.0**-44


def test_a_backward_pass_by_torchs_function_has_the_ranks_own_terms() -> None:
    loss, weight = (
        torch.zeros(0, requires_grad=True).as_subclass(AbsentLoss),
        torch.ones(2, requires_grad=True),
    )
    torch.autograd.backward(3 * (loss + (weight**2).sum()))
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0, 6.0]
    with pytest.raises(ValueError, match="grad_tensors: multiply the loss"):
        torch.autograd.backward(loss + weight.sum(), torch.zeros(0))
