"""Layers over workers of which the last is left with nothing: it takes part in every derivative."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from adjointlab.core.partition import Partition
from adjointlab.layers import coalesced_broadcast, convolution
from adjointlab.layers.convolution import Conv1d, Conv2d, Conv3d
from adjointlab.layers.differentiable import connected
from adjointlab.layers.embedding import Embedding
from adjointlab.layers.linear import Linear
from adjointlab.layers.padding import ReflectionPad1d
from adjointlab.layers.pooling.adaptive import AdaptiveAvgPool1d, AdaptiveMaxPool1d
from adjointlab.layers.pooling.average import AvgPool1d
from adjointlab.layers.pooling.maximum import MaxPool1d
from adjointlab.layers.stationary_convolution import StationaryConv1d, StationaryConv2d
from adjointlab.layers.upsampling import Upsample
from adjointlab.worlds.forward_mode import dual_level
from adjointlab.worlds.world import World

from .derivative_assertions import (
    assert_checkpoint_matches,
    assert_second_derivatives_match,
    assert_tangent_matches,
)
from .twin_assertions import run_on_ranks, sines

DOUBLE = torch.float64

Case = tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]


def convolved(
    layer: Any,
    partition: tuple[int, ...],
    shape: tuple[int, ...],
    inputs: int = 2,
    outputs: int = 3,
    **given: Any,
) -> Case:
    arguments = {"in_channels": inputs, "out_channels": outputs, "kernel_size": 3, **given}
    return layer, partition, shape, arguments


def affine(partition: tuple[int, ...], shape: tuple[int, ...], outputs: int = 4) -> Case:
    return Linear, partition, shape, {"in_features": shape[-1], "out_features": outputs}


CONVOLUTIONS: dict[str, Callable[[int], Case]] = {
    "fewer outputs than workers": lambda n: convolved(Conv1d, (1, 1, 1, n), (2, 2, n + 1)),
    "a batch smaller than P_n": lambda n: convolved(Conv1d, (n, 1, 1, 1), (n - 1, 2, 4)),
    "fewer input channels than workers": lambda n: convolved(Conv1d, (1, 1, n, 1), (2, n - 1, 4), n - 1),
    "fewer output channels than workers": lambda n: convolved(Conv1d, (1, n, 1, 1), (2, 2, 4), 2, n - 1),
    "fewer groups than workers, outputs cut": lambda n: convolved(
        Conv1d, (1, n, 1, 1), (2, 2 * n - 2, 4), 2 * n - 2, n - 1, groups=n - 1
    ),
    "fewer groups than workers, inputs cut": lambda n: convolved(
        Conv1d, (1, 1, n, 1), (2, n - 1, 4), n - 1, 2 * n - 2, groups=n - 1
    ),
    "an idle worker": lambda n: convolved(
        Conv2d, (1, 1, 1, n - 1, 1), (2, 2, 5, 4), padding=(1, 2), stride=2
    ),
    "fewer planes than workers": lambda n: convolved(Conv3d, (1, 1, 1, n, 1, 1), (1, 2, n + 1, 3, 3)),
}
CASES: dict[str, Callable[[int], Case]] = {
    **{f"convolution, {name}": case for name, case in CONVOLUTIONS.items()},
    "stationary convolution, fewer input channels than workers": lambda n: convolved(
        StationaryConv1d, (1, n, 1, 1), (2, n - 1, 4), n - 1, 2 * n
    ),
    "stationary convolution, fewer filters than workers": lambda n: convolved(
        StationaryConv1d, (1, 1, n, 1), (2, 2 * n, 4), 2 * n, n - 1
    ),
    "stationary convolution, an idle worker": lambda n: convolved(
        StationaryConv2d, (1, n - 1, 1, 1), (2, 4, 5, 4), 4, 3, padding=(1, 2), stride=2
    ),
    "linear, fewer rows than workers": lambda n: affine((n, 1, 1), (n - 1, 3)),
    "linear, fewer inputs than workers": lambda n: affine((1, 1, n), (2, n - 1)),
    "linear, fewer outputs than workers": lambda n: affine((1, n, 1), (2, 3), n - 1),
    "linear, an idle worker": lambda n: affine((1, 1, n - 1, 1), (2, 2, 3)),
    "linear, no leading dimension": lambda n: affine((n, 1), (3,), n - 1),
}
"""Of the number of workers: layer, partition, shape and arguments, such that the last worker has nothing to do."""


def check_with_idle_worker(world: World, case: str, bias: bool, assertion: Callable[..., None]) -> None:
    """Make `assertion` of a layer whose last worker has nothing to do."""
    ranks = min(world.ranks, 3)
    if ranks < 2:
        pytest.skip("needs 2 ranks")
    layer, partition, shape, arguments = CASES[case](ranks)

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        twin = layer.torch_classes[0](**arguments, bias=bias, dtype=DOUBLE)
        assertion(comm, layer(comm, Partition(partition), shape, twin), twin, sines(*shape))

    run_on_ranks(world, ranks, body)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_worker_with_nothing_to_do_takes_part_in_every_derivative(
    adjointlab_world: World, case: str, bias: bool
) -> None:
    names = ["weight", "bias"] if bias else ["weight"]
    # In the bias alone the affine layer has no second derivative, which torch refuses to take.
    alone = names if case.startswith("convolution") else ["weight"]

    def assertions(*given: Any) -> None:
        for power in (1, 2):
            for wanted in (["x"], *([name] for name in alone), ["x", *names]):
                assert_second_derivatives_match(*given, power=power, wanted=wanted)

    check_with_idle_worker(adjointlab_world, case, bias, assertions)


@pytest.mark.parametrize("case", CASES)
def test_a_worker_with_nothing_to_do_takes_part_in_a_checkpoint(adjointlab_world: World, case: str) -> None:
    check_with_idle_worker(adjointlab_world, case, True, assert_checkpoint_matches)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(
    ("layer", "twin"),
    [
        (AdaptiveAvgPool1d, nn.AdaptiveAvgPool1d(3)),
        (AdaptiveMaxPool1d, nn.AdaptiveMaxPool1d(3)),
        (AvgPool1d, nn.AvgPool1d(2)),
        (MaxPool1d, nn.MaxPool1d(2)),
        (ReflectionPad1d, nn.ReflectionPad1d(1)),
        (Upsample, nn.Upsample(scale_factor=2)),
        (Embedding, nn.Embedding(4, 2, dtype=DOUBLE)),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_an_idle_worker_takes_part_in_a_checkpoint_of_a_layer_that_sends_nothing(
    adjointlab_world: World, layer: Any, twin: Any, power: int
) -> None:
    """No operator stands in the graph that would keep all ranks in step; with a second derivative, twice."""
    shape = (1,) if layer is Embedding else (1, 2, 5)

    def body(comm: Any) -> None:
        module = copy.deepcopy(twin)  # each rank's own
        distributed = layer(comm, Partition((1, 1, 1)), shape, module, dtype=DOUBLE)
        is_worker, leaves, wholes = (
            comm.Get_rank() == 0,
            list(distributed.parameters()),
            [*module.parameters()],
        )
        whole = torch.zeros(shape, dtype=torch.int64)
        x = whole if is_worker else whole[:0]
        if layer is not Embedding:
            whole = sines(*shape).requires_grad_()
            x = whole.detach()[: int(is_worker)].requires_grad_()
            leaves, wholes = [x], [whole]
        y, want = checkpoint(distributed, x, use_reentrant=False), module(whole)
        # Its second derivative has no other path than through the pool.
        if layer is not AdaptiveMaxPool1d:
            y, want = y**2, want**2
        wants = torch.autograd.grad(want.sum(), wholes, create_graph=power == 2)
        gots = torch.autograd.grad(y.sum(), leaves, create_graph=power == 2)
        if power == 2:
            wants = torch.autograd.grad((wants[0] ** 2).sum(), wholes)
            gots = torch.autograd.grad((gots[0] ** 2).sum(), leaves)
        torch.testing.assert_close(gots[0], wants[0] if is_worker else wants[0][:0].reshape_as(gots[0]))

    run_on_ranks(adjointlab_world, min(adjointlab_world.ranks, 2), body)


@pytest.mark.parametrize("case", CASES)
def test_a_worker_with_nothing_to_do_takes_part_in_forward_mode(adjointlab_world: World, case: str) -> None:
    # Opened before they begin: the ranks find it so.
    with dual_level():
        check_with_idle_worker(adjointlab_world, case, True, assert_tangent_matches)


@pytest.mark.parametrize(
    "case",
    [
        "fewer outputs than workers",
        "a batch smaller than P_n",
        "fewer output channels than workers",
        "fewer groups than workers, outputs cut",
        "fewer planes than workers",
    ],
)
def test_zeros_that_are_linear_in_x_and_weight_leave_a_second_derivative_to_the_others(
    adjointlab_world: World, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if adjointlab_world.name != "simulated":
        pytest.skip("a hang on real ranks costs its patience")
    case = f"convolution, {case}"

    def planted(shape: Any, _: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return connected(tensors[0].new_zeros(shape), *tensors)

    def assertion(*given: Any) -> None:
        assert_second_derivatives_match(*given, power=1, wanted=["bias"])

    # A message of both would take a worker through the weight's step where a derivative of the bias alone is wanted.
    monkeypatch.setattr(coalesced_broadcast, "MOST_BYTES", 0)
    check_with_idle_worker(adjointlab_world, case, True, assertion)
    monkeypatch.setattr(convolution, "of_nothing", planted)
    with pytest.raises(AssertionError, match=r"deadlock|PeerFailed"):
        check_with_idle_worker(adjointlab_world, case, True, assertion)
