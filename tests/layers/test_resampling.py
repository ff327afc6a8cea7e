"""Interpolation, padding and adaptive averages: the matrices are torch's own, and its errors come on every rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from adjointlab.layers.padding import CircularPad1d, ReflectionPad1d, ZeroPad2d
from adjointlab.layers.pooling.adaptive import AdaptiveAvgPool2d
from adjointlab.layers.resampling import Taps
from adjointlab.layers.upsampling import Upsample, UpsamplingBilinear2d, UpsamplingNearest2d
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, reversed_line, run_on_ranks, sines

DOUBLE = torch.float64


@pytest.mark.parametrize(
    "function",
    [
        partial(functional.interpolate, size=150, mode="linear", align_corners=True),
        partial(functional.interpolate, scale_factor=0.4, mode="nearest"),
        partial(functional.pad, pad=(3, -2), mode="reflect"),
        partial(functional.pad, pad=(3, 2)),
        partial(functional.adaptive_avg_pool1d, output_size=7),
    ],
    ids=["linear", "nearest", "reflect", "zeros", "adaptive"],
)
def test_taps_are_the_whole_matrix_of_a_function(function: Any) -> None:
    side = 130  # more than two blocks of unit vectors
    taps, x = Taps.of(function, side, DOUBLE), sines(1, 2, side)
    want = function(x)
    torch.testing.assert_close(taps.applied(x, 2), want, rtol=2.0**-48, atol=2.0**-50)
    last = (want.shape[-1] - 5, want.shape[-1])
    start, stop = taps.needed(last)
    torch.testing.assert_close(taps.part(last).applied(x[..., start:stop], 2), want[..., -5:])


@pytest.mark.parametrize("dim", range(4))
@pytest.mark.parametrize(
    ("kind", "twin"),
    [
        (UpsamplingNearest2d, nn.UpsamplingNearest2d(scale_factor=2)),
        (UpsamplingBilinear2d, nn.UpsamplingBilinear2d(size=(9, 4))),
        (Upsample, nn.Upsample(scale_factor=(0.5, 1.7), mode="bicubic")),
        (ZeroPad2d, nn.ZeroPad2d((1, 0, 9, -2))),
        (AdaptiveAvgPool2d, nn.AdaptiveAvgPool2d((None, 3))),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_layer_is_torchs_along_every_dimension(
    adjointlab_world: World, kind: Any, twin: nn.Module, dim: int
) -> None:
    ranks, shape = min(adjointlab_world.ranks, 4), (2, 3, 5, 6)

    def body(comm: Any) -> None:
        layer = kind.from_sequential(twin, comm, reversed_line(ranks, dim, 4), shape, DOUBLE)
        assert_matches_twin(comm, layer, twin, sines(*shape), relative=2.0**-44)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("factor", [1.2, 2.1])
def test_the_nearest_element_in_two_dimensions_is_torchs_where_a_factor_keeps_or_doubles_a_side(
    adjointlab_world: World, factor: float, mode: str
) -> None:
    # There torch (2.13) chooses others in one dimension than in two.
    ranks, shape, twin = (
        min(adjointlab_world.ranks, 2),
        (1, 2, 4, 3),
        nn.Upsample(scale_factor=(factor, 1.7), mode=mode),
    )

    def body(comm: Any) -> None:
        layer = Upsample.from_sequential(twin, comm, reversed_line(ranks, 2, 4), shape, DOUBLE)
        assert_matches_twin(comm, layer, twin, sines(*shape))

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda *a: ReflectionPad1d(*a, (5, 0)), (1, 2, 5), "Padding size should be less than"),
        (lambda *a: CircularPad1d(*a, (6, 0)), (1, 2, 5), "wrapping around more than once"),
        (lambda *a: CircularPad1d(*a, (-1, 2)), (1, 2, 2), "unsupported operation"),
        (lambda *a: Upsample(*a, mode="bicubic", size=3), (1, 2, 5), "(got bicubic)"),
        (lambda *a: Upsample(*a, mode="linear", size=3), (1, 0, 5), "Non-empty 3D data tensor expected"),
        (lambda *a: Upsample(*a, scale_factor=0.1), (1, 2, 5), "should be greater than"),
    ],
)
def test_what_torch_refuses_is_refused_on_every_rank(
    adjointlab_world: World, make: Any, shape: tuple[int, ...], message: str
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    partition = reversed_line(ranks, len(shape) - 1, len(shape))
    told = error_of_every_rank(adjointlab_world, ranks, lambda comm: make(comm, partition, shape))
    assert message in told
