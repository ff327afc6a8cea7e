"""The convolution: channels, batch and features cut, torch's arguments and errors, and workers that are left with nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adjointlab.checks.layers.jacobian import JacobianCheck
from adjointlab.checks.verdict import Status
from adjointlab.core.partition import Partition
from adjointlab.engine.run_case import checks_of
from adjointlab.engine.search import Budget, investigate
from adjointlab.layers import convolution
from adjointlab.layers.convolution import Conv1d, Conv2d, Conv3d
from adjointlab.layers.distributed import connected
from adjointlab.layers.subjects import modules as subjects
from adjointlab.worlds.world import World

from .derivative_assertions import (
    assert_checkpoint_matches,
    assert_second_derivatives_match,
    assert_tangent_matches,
)
from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks

DOUBLE = torch.float64

Case = tuple[Any, dict[str, Any], tuple[int, ...], tuple[int, ...]]

UNEVEN: dict[str, Callable[[int], Case]] = {
    "fewer outputs than workers": lambda n: (Conv1d, {}, (1, 1, 1, n), (2, 2, n + 1)),
    "a batch smaller than P_b": lambda n: (Conv1d, {}, (n, 1, 1, 1), (n - 1, 2, 4)),
    "fewer input channels than workers": lambda n: (
        Conv1d,
        {"in_channels": n - 1},
        (1, 1, n, 1),
        (2, n - 1, 4),
    ),
    "fewer output channels than workers": lambda n: (
        Conv1d,
        {"out_channels": n - 1},
        (1, n, 1, 1),
        (2, 2, 4),
    ),
    "fewer groups than workers, outputs cut": lambda n: (
        Conv1d,
        {"in_channels": 2 * n - 2, "out_channels": n - 1, "groups": n - 1},
        (1, n, 1, 1),
        (2, 2 * n - 2, 4),
    ),
    "fewer groups than workers, inputs cut": lambda n: (
        Conv1d,
        {"in_channels": n - 1, "out_channels": 2 * n - 2, "groups": n - 1},
        (1, 1, n, 1),
        (2, n - 1, 4),
    ),
    "an idle worker": lambda n: (
        Conv2d,
        {"padding": (1, 2), "stride": 2},
        (1, 1, 1, n - 1, 1),
        (2, 2, 5, 4),
    ),
    "fewer planes than workers": lambda n: (Conv3d, {}, (1, 1, 1, n, 1, 1), (1, 2, n + 1, 3, 3)),
}
"""Of the number of workers: layer, arguments, partition and shape, such that the last worker has nothing to do."""


def data(*shape: int) -> torch.Tensor:
    return torch.sin(torch.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=DOUBLE)).reshape(shape)


def check_with_idle_worker(world: World, case: str, bias: bool, assertion: Callable[..., None]) -> None:
    """Make `assertion` of a layer whose last worker has nothing to do."""
    ranks = min(world.ranks, 3)
    if ranks < 2:
        pytest.skip("needs 2 ranks")
    kind, given, partition, shape = UNEVEN[case](ranks)
    arguments = {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "bias": bias, **given}

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        twin = kind.torch_classes[0](**arguments, dtype=DOUBLE)
        assertion(comm, kind.from_sequential(twin, comm, Partition(partition), shape), twin, data(*shape))

    run_on_ranks(world, ranks, body)


def test_the_layer_is_coherent_with_its_sequential_twin(adjointlab_world: World) -> None:
    for check in checks_of(subjects.convolutions):
        report = investigate(adjointlab_world, subjects.convolutions, check, Budget(25, seed=3))
        assert report.status is Status.COHERENT, report.verdict


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", UNEVEN)
def test_a_worker_with_nothing_to_do_takes_part_in_every_derivative(
    adjointlab_world: World, case: str, bias: bool
) -> None:
    def assertions(*given: Any) -> None:
        names = ["weight", "bias"] if bias else ["weight"]
        for power in (1, 2):
            for wanted in (["x"], *([name] for name in names), ["x", *names]):
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


@pytest.mark.parametrize(
    "case",
    [
        "fewer outputs than workers",
        "a batch smaller than P_b",
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

    def planted(shape: Any, _: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return connected(tensors[0].new_zeros(shape), *tensors)

    def assertion(*given: Any) -> None:
        assert_second_derivatives_match(*given, power=1, wanted=["bias"])

    check_with_idle_worker(adjointlab_world, case, True, assertion)
    monkeypatch.setattr(convolution, "of_nothing", planted)
    with pytest.raises(AssertionError, match=r"deadlock|PeerFailed"):
        check_with_idle_worker(adjointlab_world, case, True, assertion)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"padding": (1,)}, {"padding": 1}),
        ({"stride": (2,), "dilation": [1]}, {"stride": 2}),
        ({"kernel_size": np.int64(3), "padding": np.int32(1)}, {"padding": 1}),
        ({"kernel_size": torch.Size([3, 3]), "padding": np.array([1, 2])}, {"padding": (1, 2)}),
        ({"padding": [(1, 1), (2, 2)]}, {"padding": (1, 2)}),
        ({"padding": [(1, 1)]}, {"padding": 1}),
        ({"padding": (0, [1, 1])}, {"padding": (0, 1)}),
    ],
    ids=str,
)
def test_sizes_are_given_as_torch_takes_them(
    adjointlab_world: World, given: dict[str, Any], same: dict[str, Any]
) -> None:
    ranks, shape = min(adjointlab_world.ranks, 2), (2, 2, 6, 7)

    def body(comm: Any) -> None:
        layer = Conv2d(
            comm,
            Partition((1, 1, 1, ranks, 1)),
            shape,
            **{"in_channels": 2, "out_channels": 3, "kernel_size": 3, **given},
            dtype=DOUBLE,
        )
        twin = nn.Conv2d(2, 3, 3, **same, dtype=DOUBLE)
        assert repr(layer.sequential()) == repr(twin)
        twin.load_state_dict(layer.sequential_state_dict())
        assert_matches_twin(comm, layer, twin, data(*shape), relative=1e-13)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kernel_size": 7}, None),
        ({"kernel_size": (2, 9)}, None),
        ({"stride": 0}, None),
        ({"dilation": 0}, None),
        ({"padding": -1}, None),
        ({"groups": 0}, None),
        ({"groups": 3}, None),
        ({"padding": "same", "stride": 2}, None),
        ({"padding_mode": "circular", "padding": 7, "kernel_size": 8}, None),
        ({"kernel_size": (3, 3, 3)}, "kernel_size must either be a single int, or a tuple of two ints"),
        ({"kernel_size": 3.0}, "kernel_size must either be a single int, or a tuple of two ints, not 3.0"),
        ({"stride": "2"}, "stride must either be a single int, or a tuple of two ints, not '2'"),
        ({"dilation": ()}, "dilation must either be a single int, or a tuple of two ints, not ()"),
        ({"kernel_size": 0}, "kernel size should be greater than zero, but got 0x0"),
        ({"padding": (1, 1, 1)}, "padding must either be a single int, or one int or (left, right) for each"),
        ({"padding": (1, (1, 2, 3))}, "padding must either be a single int, or a tuple of two ints"),
        ({"padding": 3}, "padding: (3, 3) in dimension 2"),
        ({"padding_mode": "reflect"}, "padding_mode: 'reflect' is neither 'zeros' nor 'circular'"),
    ],
    ids=str,
)
def test_an_illegal_argument_is_the_same_error_on_every_rank_in_torchs_words(
    adjointlab_world: World, given: dict[str, Any], message: str | None
) -> None:
    ranks, shape = min(adjointlab_world.ranks, 2), (2, 4, 6, 6)
    arguments = {"in_channels": 4, "out_channels": 4, "kernel_size": 3, **given}
    raised = error_of_every_rank(
        adjointlab_world,
        ranks,
        lambda comm: Conv2d(comm, Partition((1, 1, 1, ranks, 1)), shape, **arguments),
    )
    if message is None:
        with pytest.raises((ValueError, RuntimeError)) as refused:
            nn.Conv2d(**arguments)(torch.zeros(shape))
        message = str(refused.value)
    assert raised.startswith(message)


def test_groups_cut_over_inputs_and_outputs_at_once_are_the_same_error_on_every_rank(
    adjointlab_world: World,
) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")
    raised = error_of_every_rank(
        adjointlab_world, 4, lambda comm: Conv1d(comm, Partition((1, 2, 2, 1)), (1, 4, 5), 4, 4, 3, groups=2)
    )
    assert raised == (
        "groups: 2 groups over 2 workers for output channels and 2 for input channels; one of both must be 1"
    )


@pytest.mark.parametrize(
    "twin",
    [
        nn.Conv1d(2, 4, 3, 2, 1, 2, 2, dtype=DOUBLE),
        nn.Conv2d(2, 3, (3, 2), bias=False, padding="same", padding_mode="circular", dtype=DOUBLE),
        nn.Conv3d(2, 3, 2, padding=(1, 0, 1), dtype=DOUBLE),
    ],
    ids=lambda twin: type(twin).__name__,
)
def test_a_layer_goes_from_and_to_its_sequential_module(adjointlab_world: World, twin: Any) -> None:
    ranks, dims = min(adjointlab_world.ranks, 3), twin.weight.ndim - 2
    kind = (Conv1d, Conv2d, Conv3d)[dims - 1]
    shape = (1, 2, *(6,) * dims)

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        whole = type(twin)(
            **{name: getattr(twin, name) for name in ("in_channels", "out_channels", "kernel_size")},
            **{name: getattr(twin, name) for name in ("stride", "padding", "dilation", "groups")},
            bias=twin.bias is not None,
            padding_mode=twin.padding_mode,
            dtype=DOUBLE,
        ).eval()
        layer = kind.from_sequential(whole, comm, Partition((1, 1, 1, ranks, *(1,) * (dims - 1))), shape)
        assert_matches_twin(comm, layer, whole, data(*shape), relative=1e-13)
        back = layer.to_sequential()
        assert not back.training
        assert all(torch.equal(value, whole.state_dict()[name]) for name, value in back.state_dict().items())
        assert torch.equal(back(data(*shape)), whole(data(*shape)))

    run_on_ranks(adjointlab_world, ranks, body)


def test_initial_values_are_torchs_for_the_same_seed(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        torch.manual_seed(7)
        twin = nn.Conv1d(2, 3, 3)
        torch.manual_seed(7)
        state = Conv1d(comm, Partition((1, 1, ranks, 1)), (2, 2, 5), 2, 3, 3).sequential_state_dict()
        assert all(torch.equal(value, twin.state_dict()[name]) for name, value in state.items())

    run_on_ranks(adjointlab_world, ranks, body)
