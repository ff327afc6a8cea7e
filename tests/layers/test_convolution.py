"""The convolution: channels, batch and features cut, torch's arguments and errors, and workers that are left with nothing."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers.convolution import Conv1d, Conv2d, Conv3d
from adjointlab.worlds.world import World

from .twin_assertions import (
    assert_goes_from_and_to,
    assert_matches_twin,
    error_of_every_rank,
    run_on_ranks,
    sines,
)

DOUBLE = torch.float64


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
        assert_matches_twin(comm, layer, twin, sines(*shape), relative=1e-13)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("padding", [(1, 1), ((1, 0), (0, 1))], ids=["even", "uneven"])
def test_a_convolution_without_a_bias_has_none(adjointlab_world: World, padding: Any) -> None:
    def body(comm: Any) -> None:
        layer = Conv2d(comm, (1, 1, 1, 1, 1), (1, 2, 4, 4), 2, 3, 3, padding=padding, bias=False)
        assert layer.bias is None
        assert list(layer.sequential_state_dict()) == ["weight"]

    run_on_ranks(adjointlab_world, 1, body)


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
        adjointlab_world, ranks, lambda comm: Conv2d(comm, Partition((1, 1, 1, ranks, 1)), shape, **arguments)
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
        partition = Partition((1, 1, 1, ranks, *(1,) * (dims - 1)))
        assert_goes_from_and_to(comm, kind, twin, partition, shape)

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


def test_a_convolution_says_who_sums_its_weight_and_how_many_bytes(adjointlab_world: World) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")

    def body(comm: Any) -> tuple[Any, ...]:
        over = Partition((2, 2, 1, 1), (3, 1, 2, 0))
        layer = Conv1d(comm, over, (3, 2, 5), 2, 3, 3)
        return layer.ranks_of_weight(), layer.bytes_of_gradients(), *layer.bytes_of_tensors()

    # Ranks 3 and 2 have two filters of 2 x 3 and their biases, 1 and 0 the third; 3 and 1 two samples, 2 and 0 the third, and
    # 3 and 2 the input. Four bytes each.
    assert run_on_ranks(adjointlab_world, 4, body) == (
        ((1, 0), 4 * (6 + 1), 0, 4 * 3),
        ((1, 0), 4 * (6 + 1), 0, 4 * 2 * 3),
        ((3, 2), 4 * 2 * (6 + 1), 4 * 2 * 5, 4 * 2 * 3),
        ((3, 2), 4 * 2 * (6 + 1), 4 * 2 * 2 * 5, 4 * 2 * 2 * 3),
    )


def test_a_weight_that_one_rank_alone_uses_is_summed_by_nobody(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    values = run_on_ranks(
        adjointlab_world,
        ranks,
        lambda comm: Conv1d(comm, Partition((1, ranks, 1, 1)), (1, 1, 4), 1, 2, 3).ranks_of_weight(),
    )
    assert values == ((),) * ranks


@pytest.mark.parametrize("cut", [2, 3, None])
def test_nothing_is_copied_for_the_padding_of_a_dimension_that_is_not_cut(
    adjointlab_world: World, cut: int | None
) -> None:
    """Autograd keeps a window with the sides of x there, and x itself where nothing is cut."""
    ranks = 1 if cut is None else min(adjointlab_world.ranks, 2)
    grid = tuple(ranks if dim == cut else 1 for dim in range(4))

    def body(comm: Any) -> None:
        layer = Conv2d(comm, Partition((1, *grid)), (2, 2, 6, 7), 2, 3, 5, padding=(1, 2), dtype=DOUBLE)
        x = torch.ones(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()), dtype=DOUBLE)
        kept: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            layer(x.requires_grad_())
        (window,) = (tensor for tensor in kept if tensor.ndim == 4 and tensor.shape[:2] == x.shape[:2])
        assert [dim for dim in range(4) if window.shape[dim] != x.shape[dim]] == [cut][: ranks - 1]
        assert ranks > 1 or window.data_ptr() == x.data_ptr()

    run_on_ranks(adjointlab_world, ranks, body)


def test_moving_the_parameters_of_a_layer_asks_their_class_for_little(adjointlab_world: World) -> None:
    """Their class looks at the caller's frames in each of its calls, for which function of torch takes a part for the whole."""
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        layer = Conv2d(comm, Partition((1, 1, 1, ranks, 1)), (1, 2, 6, 7), 2, 3, 3, dtype=DOUBLE)
        x = torch.ones(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()), dtype=DOUBLE)
        asked: list[str] = []

        def profile(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_name == "__torch_function__":
                asked.append(str(frame.f_locals["func"]))

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            layer(x)
        finally:
            sys.setprofile(before)
        assert len(asked) <= 4, asked  # 26 when every shape and element type was asked for

    run_on_ranks(adjointlab_world, ranks, body)
