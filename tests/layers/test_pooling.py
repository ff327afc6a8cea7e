"""Distributed pooling: windows of the global tensor, whatever the cut; torch's padding, counting, ties and errors."""

from __future__ import annotations

import math
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
from adjointlab.layers import pooling
from adjointlab.layers.distributed import local_window
from adjointlab.layers.pooling import AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d
from adjointlab.layers.subjects import modules as subjects
from adjointlab.primitives.halo_geometry import halo_geometry
from adjointlab.worlds.world import World

from .beside import assert_beside, everywhere, same_error
from .derivatives import assert_checkpoint_beside, assert_second_beside, assert_tangent_beside

DOUBLE = torch.float64


@pytest.mark.parametrize("subject", [subjects.max_pools, subjects.average_pools], ids=lambda s: s.name)
def test_pooling_is_coherent_with_its_sequential_twin(adjointlab_world: World, subject: Any) -> None:
    for check in checks_of(subject):
        report = investigate(adjointlab_world, subject, check, Budget(25, seed=3))
        assert report.status is Status.COHERENT, report.verdict


def along(ranks: int, dim: int, order: int) -> Partition:
    """All workers along one dimension of an input of that order."""
    return Partition([ranks if d == dim % order else 1 for d in range(order)])


def ints(*shape: int) -> torch.Tensor:
    """Small integers, in no order, with equal ones among them."""
    return (torch.arange(math.prod(shape), dtype=DOUBLE) * 5 % 13 - 6).reshape(shape)


def beside(
    world: World, kind: str, shape: tuple[int, ...], dim: int = -1, x: Any = None, **given: Any
) -> None:
    """Compare a layer, cut over up to four workers along a dimension, with torch's."""
    ranks = min(world.ranks, 4)
    data = ints(*shape) if x is None else x
    partition = along(ranks, dim, len(shape))

    def body(comm: Any) -> None:
        layer = getattr(pooling, kind)(comm, partition, shape, **given, dtype=DOUBLE)
        assert_beside(comm, layer, getattr(nn, kind)(**given), data, relative=layer.rounding)

    everywhere(world, ranks, body)


@pytest.mark.parametrize(
    ("length", "workers", "halos"),
    [
        (10, 3, [(0, 0), (0, 1), (-1, 0)]),
        (20, 6, [(0, 0), (0, 0), (0, 1), (-1, 2), (-2, 1), (-1, 0)]),
    ],
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
        assert_beside(comm, layer, nn.MaxPool1d(2), ints(1, 1, length))
        (x,), (window,) = layer.exchange.domain.tensors, layer.exchange.codomain.tensors
        geometry = halo_geometry(x.layout, window.layout)
        return [geometry.halo(2, worker) for worker in range(workers)]

    assert everywhere(adjointlab_world, workers, body) == (halos,) * workers


def test_input_between_windows_is_trimmed_and_has_no_gradient(adjointlab_world: World) -> None:
    beside(adjointlab_world, "MaxPool2d", (2, 2, 17, 3), 2, kernel_size=(2, 1), stride=(5, 2))
    beside(adjointlab_world, "AvgPool2d", (2, 2, 17, 3), 2, kernel_size=(2, 1), stride=(5, 2))


@pytest.mark.parametrize("length", range(1, 10))
@pytest.mark.parametrize("kind", ["MaxPool1d", "AvgPool1d"])
def test_with_ceil_mode_the_last_window_may_end_beyond_the_padding(
    adjointlab_world: World, kind: str, length: int
) -> None:
    beside(adjointlab_world, kind, (1, 2, length), kernel_size=4, stride=3, padding=1, ceil_mode=True)


def test_a_kernel_larger_than_the_padded_input_has_one_output_with_ceil_mode(adjointlab_world: World) -> None:
    beside(adjointlab_world, "MaxPool2d", (1, 1, 2, 3), kernel_size=5, stride=5, ceil_mode=True)
    beside(adjointlab_world, "AvgPool2d", (1, 1, 2, 3), kernel_size=5, stride=5, ceil_mode=True)


def test_workers_without_output_are_legal(adjointlab_world: World) -> None:
    for dim in range(4):
        beside(adjointlab_world, "MaxPool2d", (1, 1, 3, 3), dim, kernel_size=3)
        beside(adjointlab_world, "AvgPool2d", (1, 1, 3, 3), dim, kernel_size=3)


POOLS: list[tuple[Any, Any, Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]]] = [
    (MaxPool1d, nn.MaxPool1d(3), lambda n: ((1, 1, n), (2, 2, 3))),
    (MaxPool2d, nn.MaxPool2d(2, 1, dilation=2), lambda n: ((1, 1, n, 1), (1, 2, n + 1, 4))),
    (MaxPool3d, nn.MaxPool3d(2), lambda n: ((n, 1, 1, 1), (n - 1, 4, 4, 4))),
    (AvgPool1d, nn.AvgPool1d(3), lambda n: ((1, 1, n), (2, 2, 3))),
    (AvgPool2d, nn.AvgPool2d(3), lambda n: ((1, n - 1, 1, 1), (1, n - 1, 4, 4))),
    (AvgPool3d, nn.AvgPool3d(2, 3), lambda n: ((1, n, 1, 1), (2, 5, 4, 4))),
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
        mine = layer.from_sequential(twin, comm, Partition(partition), shape, DOUBLE)
        for power in (1, 2):
            assert_second_beside(comm, mine, twin, x, power=power, wanted=["x"])
        assert_checkpoint_beside(comm, mine, twin, x)
        assert_tangent_beside(comm, mine, twin, x)

    # A dual level is a state of the process: simulated ranks share one.
    with JacobianCheck().surroundings():
        everywhere(adjointlab_world, ranks, body)


def test_max_pooling_never_takes_its_padding(adjointlab_world: World) -> None:
    beside(
        adjointlab_world,
        "MaxPool2d",
        (1, 2, 7, 6),
        x=ints(1, 2, 7, 6) - 100,
        kernel_size=3,
        stride=2,
        padding=1,
    )
    beside(
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
            beside(
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
    beside(adjointlab_world, kind, tuple(x.shape), x=x, kernel_size=3, stride=2, padding=1)


def test_indices_are_those_in_the_global_tensor(adjointlab_world: World) -> None:
    for dim in range(5):
        beside(
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

    values = everywhere(adjointlab_world, partition.size, body)
    assert [value for rank in values for value in rank] == [-math.inf]


@pytest.mark.parametrize("include", [True, False])
def test_average_pooling_counts_by_the_global_place_of_a_window(
    adjointlab_world: World, include: bool
) -> None:
    for dim in (2, 3):
        beside(
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

    exact, inexact, largest = everywhere(adjointlab_world, 1, body)[0]
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
            mine = layer.from_sequential(twin, comm, along(ranks, -1, 3), x.shape, DOUBLE)
            want = second(twin, x.clone().requires_grad_())
            layout = mine.domain.tensors[0].layout
            got = second(mine, local_window(x, layout, comm.Get_rank()).requires_grad_())
            assert torch.equal(got, local_window(want, layout, comm.Get_rank()))

        everywhere(adjointlab_world, ranks, body)


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
    dims = layer.dims

    def body(comm: Any) -> str:
        mine = layer.from_sequential(twin, comm, along(1, 0, dims + 2), (1, 1, *(8,) * dims))
        assert not mine.state_dict()
        return repr(mine.to_sequential())

    numbers = everywhere(adjointlab_world, 1, body)[0]
    whole = layer.module(**{name: getattr(mine_of(layer, twin), name) for name in layer.names})
    assert numbers == repr(whole)


def mine_of(layer: Any, twin: Any) -> Any:
    """The twin with its arguments spelled out for every dimension."""
    spelled = nn.Module()
    for name in layer.names:
        value = getattr(twin, name)
        sides = name in ("kernel_size", "stride", "padding", "dilation") and isinstance(value, int)
        setattr(spelled, name, (value,) * layer.dims if sides else value)
    return spelled


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
    beside(adjointlab_world, kind, (1, 2, 6, 7), **given)


BAD: list[tuple[Callable[..., Any], tuple[int, ...], dict[str, Any], str]] = [
    (MaxPool1d, (1, 1, 5), {"kernel_size": 0}, "kernel size should be greater than zero"),
    (AvgPool2d, (1, 1, 5, 5), {"kernel_size": 2, "stride": (1, 0)}, "stride should be greater than zero"),
    (MaxPool1d, (1, 1, 5), {"kernel_size": 2, "dilation": 0}, "dilation should be greater than zero"),
    (AvgPool1d, (1, 1, 5), {"kernel_size": 2, "padding": -1}, "pad must be non-negative, but got pad: -1"),
    (
        MaxPool2d,
        (1, 1, 5, 5),
        {"kernel_size": 3, "padding": 2},
        "padding should be at most half of kernel size, but got padding=2 and kernel_size=3",
    ),
    (
        AvgPool2d,
        (1, 1, 5, 5),
        {"kernel_size": 6},
        "Given input size: (1x5x5). Calculated output size: (1x0x0). Output size is too small",
    ),
    (MaxPool2d, (1, 1, 5, 5), {"kernel_size": (2, 2, 2)}, "a tuple of two ints"),
    (AvgPool1d, (1, 1, 5), {"kernel_size": 2, "stride": (1, 1)}, "stride must either be a single int"),
    (AvgPool2d, (1, 1, 5, 5), {"kernel_size": 2, "divisor_override": 0}, "divisor must be not zero"),
    (
        AvgPool3d,
        (1, 1, 2, 3, 3),
        {"kernel_size": 3, "padding": 1},
        "input image (T: 2 H: 3 W: 3) smaller than kernel size (kT: 3 kH: 3 kW: 3)",
    ),
    (MaxPool2d, (1, 0, 5, 5), {"kernel_size": 2}, "non-batch dimensions to have positive length"),
    (MaxPool2d, (5, 5), {"kernel_size": 2}, "Expected 3D or 4D (batch mode) tensor"),
]


@pytest.mark.parametrize(("layer", "shape", "given", "message"), BAD, ids=[bad[-1][:40] for bad in BAD])
def test_what_torch_rejects_is_the_same_error_on_every_rank(
    adjointlab_world: World, layer: Any, shape: tuple[int, ...], given: dict[str, Any], message: str
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    partition = along(ranks, -1, len(shape))
    assert message in same_error(adjointlab_world, ranks, lambda comm: layer(comm, partition, shape, **given))
    with pytest.raises(RuntimeError):
        layer.module(**given)(torch.zeros(shape))


def test_a_partition_of_another_order_is_the_same_error_on_every_rank(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    message = same_error(
        adjointlab_world, ranks, lambda comm: MaxPool2d(comm, Partition((1, ranks, 1)), (1, 2, 4, 4), 2)
    )
    assert message.startswith("partition: of order 3")
