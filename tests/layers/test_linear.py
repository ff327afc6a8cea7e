"""The affine layer: features cut both ways, any leading dimensions, and workers that are left with nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.checks.layers.jacobian import JacobianCheck
from adjointlab.checks.verdict import Status
from adjointlab.core.partition import Partition
from adjointlab.engine.run_case import checks_of
from adjointlab.engine.search import Budget, investigate
from adjointlab.layers.linear import Linear
from adjointlab.layers.subjects import modules as subjects
from adjointlab.worlds.world import World

from .derivative_assertions import (
    assert_checkpoint_matches,
    assert_second_derivatives_match,
    assert_tangent_matches,
)
from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks

DOUBLE = torch.float64

UNEVEN: dict[str, Callable[[int], tuple[tuple[int, ...], tuple[int, ...], int, int]]] = {
    "fewer rows than workers": lambda workers: ((workers, 1, 1), (workers - 1, 3), 3, 4),
    "fewer inputs than workers": lambda workers: ((1, 1, workers), (2, workers - 1), workers - 1, 4),
    "fewer outputs than workers": lambda workers: ((1, workers, 1), (2, 3), 3, workers - 1),
    "an idle worker": lambda workers: ((1, 1, workers - 1, 1), (2, 2, 3), 3, 4),
    "no leading dimension": lambda workers: ((workers, 1), (3,), 3, workers - 1),
}
"""Of the number of workers: partition, shape and features, such that the last worker has nothing to do."""


def data(*shape: int) -> torch.Tensor:
    return torch.sin(torch.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=DOUBLE)).reshape(shape)


def check_with_idle_worker(world: World, case: str, bias: bool, assertion: Callable[..., None]) -> None:
    """Make `assertion` of a layer whose last worker has nothing to do."""
    ranks = min(world.ranks, 3)
    if ranks < 2:
        pytest.skip("needs 2 ranks")
    partition, shape, inputs, outputs = UNEVEN[case](ranks)

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        twin = nn.Linear(inputs, outputs, bias, dtype=DOUBLE)
        assertion(comm, Linear.from_sequential(twin, comm, Partition(partition), shape), twin, data(*shape))

    run_on_ranks(world, ranks, body)


def test_the_layer_is_coherent_with_its_sequential_twin(adjointlab_world: World) -> None:
    for check in checks_of(subjects.linears):
        report = investigate(adjointlab_world, subjects.linears, check, Budget(25, seed=3))
        assert report.status is Status.COHERENT, report.verdict


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", UNEVEN)
def test_a_worker_with_nothing_to_do_takes_part_in_every_derivative(
    adjointlab_world: World, case: str, bias: bool
) -> None:
    def assertions(*given: Any) -> None:
        names = ["weight", "bias"] if bias else ["weight"]
        for power in (1, 2):
            for wanted in (["x"], ["weight"], ["x", *names]):
                assert_second_derivatives_match(*given, power=power, wanted=wanted)

    check_with_idle_worker(adjointlab_world, case, bias, assertions)


@pytest.mark.parametrize("case", UNEVEN)
def test_a_worker_with_nothing_to_do_takes_part_in_a_checkpoint(adjointlab_world: World, case: str) -> None:
    check_with_idle_worker(adjointlab_world, case, True, assert_checkpoint_matches)


@pytest.mark.parametrize("case", UNEVEN)
def test_a_worker_with_nothing_to_do_takes_part_in_forward_mode(adjointlab_world: World, case: str) -> None:
    # A dual level is a state of the process: simulated ranks share one.
    with JacobianCheck().surroundings():
        check_with_idle_worker(adjointlab_world, case, True, assert_tangent_matches)


@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_goes_from_and_to_its_sequential_module(adjointlab_world: World, bias: bool) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        twin = nn.Linear(5, 4, bias, dtype=DOUBLE).eval()
        twin.weight.requires_grad_(False)
        layer = Linear.from_sequential(twin, comm, Partition((1, 1, ranks)), (2, 5))
        assert_matches_twin(comm, layer, twin, data(2, 5), relative=1e-14)
        back = layer.to_sequential()
        assert (repr(back), back.training) == (repr(twin), False)
        assert [p.requires_grad for p in back.parameters()] == [p.requires_grad for p in twin.parameters()]
        assert all(torch.equal(p, q) for p, q in zip(back.parameters(), twin.parameters(), strict=True))

    # The same values on every rank, whatever the generators of processes say.
    run_on_ranks(adjointlab_world, ranks, lambda comm: (torch.manual_seed(2), body(comm)))


def test_initial_values_are_torchs_for_the_same_seed(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        torch.manual_seed(7)
        twin = nn.Linear(5, 4)
        torch.manual_seed(7)
        state = Linear(comm, Partition((1, ranks, 1)), (2, 5), 5, 4).sequential_state_dict()
        assert all(torch.equal(value, twin.state_dict()[name]) for name, value in state.items())

    run_on_ranks(adjointlab_world, ranks, body)


def test_under_autocast_the_local_products_alone_are_of_the_lower_precision(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    x = data(2, 4).float()

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        twin = nn.Linear(4, 3)
        layer = Linear.from_sequential(twin, comm, Partition((1, 1, 1)), (2, 4))
        local = x if comm.Get_rank() == 0 else torch.zeros(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, want = layer(local), twin(x)
        assert (y.dtype, want.dtype) == (torch.float32, torch.bfloat16)
        assert comm.Get_rank() or torch.equal(y, want.float())
        y.sum().backward()

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("partition", "shape", "message"),
    [
        ((1, 1, 1), (2, 4), "input_shape: (2, 4) does not end in in_features = 5"),
        ((1, 1), (2, 5), "partition: of order 2"),
    ],
)
def test_what_does_not_fit_is_the_same_error_on_every_rank(
    adjointlab_world: World, partition: tuple[int, ...], shape: tuple[int, ...], message: str
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    raised = error_of_every_rank(
        adjointlab_world, ranks, lambda comm: Linear(comm, Partition(partition), shape, 5, 3)
    )
    assert raised.startswith(message)
