"""Distributed pooling: windows of the global tensor, whatever the cut; torch's padding, counting, ties and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers import pooling
from adjointlab.layers.pooling import (
    AdaptiveMaxPool1d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from adjointlab.layers.torch_modules import spatial_dims
from adjointlab.layers.windows import local_window
from adjointlab.primitives.halo_geometry import halo_geometry
from adjointlab.worlds.forward_mode import dual_level
from adjointlab.worlds.world import World

from .derivative_assertions import (
    assert_checkpoint_matches,
    assert_second_derivatives_match,
    assert_tangent_matches,
)
from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks

DOUBLE = torch.float64


def along(ranks: int, dim: int, order: int) -> Partition:
    """All workers along one dimension of an input of that order."""
    return Partition([ranks if d == dim % order else 1 for d in range(order)])


def ints(*shape: int) -> torch.Tensor:
    """Small integers, in no order, with equal ones among them."""
    return (torch.arange(math.prod(shape), dtype=DOUBLE) * 5 % 13 - 6).reshape(shape)


def compare_with_torch(
    world: World, kind: str, shape: tuple[int, ...], dim: int = -1, x: Any = None, **given: Any
) -> None:
    """Compare a layer, cut over up to four workers along a dimension, with torch's."""
    ranks = min(world.ranks, 4)
    data = ints(*shape) if x is None else x
    partition = along(ranks, dim, len(shape))

    def body(comm: Any) -> None:
        layer = getattr(pooling, kind)(comm, partition, shape, **given, dtype=DOUBLE)
        assert_matches_twin(comm, layer, getattr(nn, kind)(**given), data, relative=layer.rounding)

    run_on_ranks(world, ranks, body)


@pytest.mark.parametrize(
    ("length", "workers", "halos"),
    [(10, 3, [(0, 0), (0, 1), (-1, 0)]), (20, 6, [(0, 0), (0, 0), (0, 1), (-1, 2), (-2, 1), (-1, 0)])],
    ids=["simple", "complex"],
)
def test_the_halos_are_those_of_appendix_b(
    length: int, workers: int, halos: list[tuple[int, int]], adjointlab_world: World
) -> None:
    partition = along(workers, -1, 3)
    if adjointlab_world.ranks < workers:
        pytest.skip(f"needs {workers} ranks")

    def body(comm: Any) -> Any:
        layer = MaxPool1d(comm, partition, (1, 1, length), 2, dtype=DOUBLE)
        assert_matches_twin(comm, layer, nn.MaxPool1d(2), ints(1, 1, length))
        (x,), (window,) = layer.exchange.domain.tensors, layer.exchange.codomain.tensors
        geometry = halo_geometry(x.layout, window.layout)
        return [geometry.halo(2, worker) for worker in range(workers)]

    assert run_on_ranks(adjointlab_world, workers, body) == (halos,) * workers


def test_input_between_windows_is_trimmed_and_has_no_gradient(adjointlab_world: World) -> None:
    compare_with_torch(adjointlab_world, "MaxPool2d", (2, 2, 17, 3), 2, kernel_size=(2, 1), stride=(5, 2))
    compare_with_torch(adjointlab_world, "AvgPool2d", (2, 2, 17, 3), 2, kernel_size=(2, 1), stride=(5, 2))


@pytest.mark.parametrize("length", range(1, 10))
@pytest.mark.parametrize("kind", ["MaxPool1d", "AvgPool1d"])
def test_with_ceil_mode_the_last_window_may_end_beyond_the_padding(
    adjointlab_world: World, kind: str, length: int
) -> None:
    compare_with_torch(
        adjointlab_world, kind, (1, 2, length), kernel_size=4, stride=3, padding=1, ceil_mode=True
    )


def test_a_kernel_larger_than_the_padded_input_has_one_output_with_ceil_mode(adjointlab_world: World) -> None:
    compare_with_torch(adjointlab_world, "MaxPool2d", (1, 1, 2, 3), kernel_size=5, stride=5, ceil_mode=True)
    compare_with_torch(adjointlab_world, "AvgPool2d", (1, 1, 2, 3), kernel_size=5, stride=5, ceil_mode=True)


def test_workers_without_output_are_legal(adjointlab_world: World) -> None:
    for dim in range(4):
        compare_with_torch(adjointlab_world, "MaxPool2d", (1, 1, 3, 3), dim, kernel_size=3)
        compare_with_torch(adjointlab_world, "AvgPool2d", (1, 1, 3, 3), dim, kernel_size=3)


POOLS: list[tuple[Any, Any, Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]]] = [
    (MaxPool1d, nn.MaxPool1d(3), lambda n: ((1, 1, n), (2, 2, 3))),
    (MaxPool2d, nn.MaxPool2d(2, 1, dilation=2), lambda n: ((1, 1, n, 1), (1, 2, n + 1, 4))),
    (MaxPool3d, nn.MaxPool3d(2), lambda n: ((n, 1, 1, 1), (n - 1, 4, 4, 4))),
    (AvgPool1d, nn.AvgPool1d(3), lambda n: ((1, 1, n), (2, 2, 3))),
    (AvgPool2d, nn.AvgPool2d(3), lambda n: ((1, n - 1, 1, 1), (1, n - 1, 4, 4))),
    (AvgPool3d, nn.AvgPool3d(2, 3), lambda n: ((1, n, 1, 1), (2, 5, 4, 4))),
    (LPPool1d, nn.LPPool1d(2.0, 3), lambda n: ((1, 1, n), (2, 2, 3))),
    (AdaptiveMaxPool1d, nn.AdaptiveMaxPool1d(1), lambda n: ((1, 1, n), (2, 2, 5))),
    (AdaptiveMaxPool3d, nn.AdaptiveMaxPool3d((1, 2, 2)), lambda n: ((1, n, 1, 1), (2, 5, 4, 3))),
]
"""Of the number of workers, partition and shape such that the last one has no outputs, or no part in it."""


@pytest.mark.parametrize(("layer", "twin", "made"), POOLS, ids=[layer.__name__ for layer, _, _ in POOLS])
def test_a_worker_without_output_takes_part_in_every_derivative(
    adjointlab_world: World, layer: Any, twin: Any, made: Any
) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    if ranks < 2:
        pytest.skip("needs 2 ranks")
    partition, shape = made(ranks)
    x = ints(*shape)

    def body(comm: Any) -> None:
        distributed = layer.from_sequential(twin, comm, Partition(partition), shape, DOUBLE)
        for power in (1, 2):
            assert_second_derivatives_match(comm, distributed, twin, x, power=power, wanted=["x"])
        assert_checkpoint_matches(comm, distributed, twin, x)
        assert_tangent_matches(comm, distributed, twin, x)

    # Opened before they begin: the ranks find it so.
    with dual_level():
        run_on_ranks(adjointlab_world, ranks, body)


def test_max_pooling_never_takes_its_padding(adjointlab_world: World) -> None:
    compare_with_torch(
        adjointlab_world,
        "MaxPool2d",
        (1, 2, 7, 6),
        x=ints(1, 2, 7, 6) - 100,
        kernel_size=3,
        stride=2,
        padding=1,
    )
    compare_with_torch(
        adjointlab_world,
        "MaxPool1d",
        (1, 2, 9),
        x=ints(1, 2, 9) - 100,
        kernel_size=4,
        padding=2,
        ceil_mode=True,
    )


@pytest.mark.parametrize("padding", [0, 1])
def test_equal_elements_tie_as_in_torch(adjointlab_world: World, padding: int) -> None:
    for value in (0.0, -math.inf):
        same = torch.full((1, 1, 7, 8), value, dtype=DOUBLE)
        for dim in (2, 3):
            compare_with_torch(
                adjointlab_world,
                "MaxPool2d",
                tuple(same.shape),
                dim,
                x=same,
                kernel_size=3,
                stride=2,
                padding=padding,
                return_indices=True,
            )


@pytest.mark.parametrize("kind", ["MaxPool2d", "AvgPool2d"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_reaches_the_outputs_that_it_reaches_in_torch(
    adjointlab_world: World, kind: str, value: float
) -> None:
    x = ints(1, 2, 6, 9)
    x[0, 0, 3, 4], x[0, 1, 0, 0], x[0, 1, 5, 8] = value, value, value
    compare_with_torch(adjointlab_world, kind, tuple(x.shape), x=x, kernel_size=3, stride=2, padding=1)


def test_indices_are_those_in_the_global_tensor(adjointlab_world: World) -> None:
    for dim in range(5):
        compare_with_torch(
            adjointlab_world,
            "MaxPool3d",
            (2, 2, 5, 4, 6),
            dim,
            kernel_size=(2, 3, 2),
            stride=2,
            padding=(1, 1, 0),
            dilation=(2, 1, 3),
            return_indices=True,
        )


def test_a_dilated_window_that_misses_the_tensor_has_no_element(adjointlab_world: World) -> None:
    # torch's own backward pass writes beyond the tensor here.
    partition = along(min(adjointlab_world.ranks, 4), -1, 3)

    def body(comm: Any) -> Any:
        layer = MaxPool1d(comm, partition, (1, 1, 2), 2, 1, 1, 3, dtype=DOUBLE)
        x = local_window(ints(1, 1, 2), layer.domain.tensors[0].layout, comm.Get_rank()).requires_grad_()
        y = layer(x)
        y.sum().backward()
        assert x.grad is not None
        assert not x.grad.any()
        return y.detach().flatten().tolist()

    values = run_on_ranks(adjointlab_world, partition.size, body)
    assert [value for rank in values for value in rank] == [-math.inf]


@pytest.mark.parametrize("include", [True, False])
def test_average_pooling_counts_by_the_global_place_of_a_window(
    adjointlab_world: World, include: bool
) -> None:
    for dim in (2, 3):
        compare_with_torch(
            adjointlab_world,
            "AvgPool2d",
            (1, 2, 6, 7),
            dim,
            kernel_size=(4, 3),
            stride=(3, 2),
            padding=(2, 1),
            ceil_mode=True,
            count_include_pad=include,
        )


def test_sums_that_are_divided_by_powers_of_two_are_exact(adjointlab_world: World) -> None:
    def body(comm: Any) -> Any:
        one, shape = Partition((1, 1, 1, 1)), (1, 1, 8, 8)
        return [
            layer(comm, one, shape, 3, **given, dtype=DOUBLE).rounding
            for layer, given in (
                (AvgPool2d, {"divisor_override": -4}),
                (AvgPool2d, {}),
                (MaxPool2d, {"padding": 1}),
            )
        ]

    exact, inexact, largest = run_on_ranks(adjointlab_world, 1, body)[0]
    assert exact == largest == 0.0
    assert 0.0 < inexact < 1e-13


def test_a_second_derivative_goes_through_the_exchange(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    x = ints(1, 1, 9)

    def second(module: Any, x: torch.Tensor) -> Any:
        y = module(x)
        (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        (first**2).sum().backward()
        return x.grad

    for layer, twin in ((MaxPool1d, nn.MaxPool1d(3, 2)), (AvgPool1d, nn.AvgPool1d(4, 2))):

        def body(comm: Any, layer: Any = layer, twin: Any = twin) -> None:
            distributed = layer.from_sequential(twin, comm, along(ranks, -1, 3), x.shape, DOUBLE)
            want = second(twin, x.clone().requires_grad_())
            layout = distributed.domain.tensors[0].layout
            got = second(distributed, local_window(x, layout, comm.Get_rank()).requires_grad_())
            assert torch.equal(got, local_window(want, layout, comm.Get_rank()))

        run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("layer", "twin"),
    [
        (MaxPool1d, nn.MaxPool1d(3, 2, 1, 2, True, True)),
        (MaxPool3d, nn.MaxPool3d((3, 2, 1), None, (1, 1, 0))),
        (AvgPool1d, nn.AvgPool1d(4, None, 2, True, False)),
        (AvgPool3d, nn.AvgPool3d(2, (1, 2, 3), 1, False, False, 5)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_layer_goes_from_and_to_its_sequential_module(
    adjointlab_world: World, layer: Any, twin: Any
) -> None:
    dims = spatial_dims(twin)

    def body(comm: Any) -> str:
        distributed = layer.from_sequential(twin, comm, along(1, 0, dims + 2), (1, 1, *(8,) * dims))
        assert not distributed.state_dict()
        return repr(distributed.to_sequential())

    assert run_on_ranks(adjointlab_world, 1, body) == (repr(twin),)


@pytest.mark.parametrize("kind", ["MaxPool2d", "AvgPool2d"])
@pytest.mark.parametrize(
    "given",
    [
        {"kernel_size": np.int64(2)},
        {"kernel_size": (2,), "stride": [1], "padding": (np.int32(1),)},
        {"kernel_size": 2, "stride": ()},
        {"kernel_size": torch.Size([2, 3]), "stride": []},
    ],
    ids=str,
)
def test_sizes_are_given_as_torch_takes_them(
    adjointlab_world: World, kind: str, given: dict[str, Any]
) -> None:
    compare_with_torch(adjointlab_world, kind, (1, 2, 6, 7), **given)


REFUSED: list[tuple[Callable[..., Any], tuple[int, ...], dict[str, Any]]] = [
    (MaxPool1d, (1, 1, 5), {"kernel_size": 0}),
    (AvgPool2d, (1, 1, 5, 5), {"kernel_size": 2, "stride": (1, 0)}),
    (MaxPool1d, (1, 1, 5), {"kernel_size": 2, "dilation": 0}),
    (AvgPool1d, (1, 1, 5), {"kernel_size": 2, "padding": -1}),
    (MaxPool2d, (1, 1, 5, 5), {"kernel_size": 3, "padding": 2}),
    (AvgPool2d, (1, 1, 5, 5), {"kernel_size": 6}),
    (MaxPool2d, (1, 1, 5, 5), {"kernel_size": (2, 2, 2)}),
    (AvgPool1d, (1, 1, 5), {"kernel_size": 2, "stride": (1, 1)}),
    (AvgPool2d, (1, 1, 5, 5), {"kernel_size": 2, "divisor_override": 0}),
    (AvgPool3d, (1, 1, 2, 3, 3), {"kernel_size": 3, "padding": 1}),
    (MaxPool2d, (0, 0, 5, 5), {"kernel_size": 2}),
    (MaxPool2d, (5, 5), {"kernel_size": 2}),
    (AvgPool2d, (1, 1, 1, 5, 5), {"kernel_size": 2}),
    (MaxPool3d, (2, 2, 2), {"kernel_size": 2}),
]


@pytest.mark.parametrize(("layer", "shape", "given"), REFUSED, ids=str)
def test_what_torch_refuses_is_the_same_error_on_every_rank_in_torchs_words(
    adjointlab_world: World, layer: Any, shape: tuple[int, ...], given: dict[str, Any]
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    partition = along(ranks, -1, len(shape))
    with pytest.raises(RuntimeError) as refused:
        layer.torch_classes[0](**given)(torch.zeros(shape))
    message = error_of_every_rank(
        adjointlab_world, ranks, lambda comm: layer(comm, partition, shape, **given)
    )
    assert message == str(refused.value)


def test_a_partition_of_another_order_is_the_same_error_on_every_rank(adjointlab_world: World) -> None:
    message = error_of_every_rank(
        adjointlab_world, 2, lambda comm: MaxPool2d(comm, Partition((1, comm.size, 1)), (1, 2, 4, 4), 2)
    )
    assert message.startswith("partition: of order 3")
