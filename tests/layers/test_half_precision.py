"""In half precision layers add up in float32, as torch's kernels do: sums neither overflow nor lose the digits of their terms."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import adjointlab as al

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from adjointlab.layers import (  # noqa: E402
    AdaptiveAvgPool2d,
    Attention,
    AvgPool2d,
    BatchNorm2d,
    CrossEntropyLoss,
    GroupNorm,
    InstanceNorm2d,
    LayerNorm,
    LogSoftmax,
    LPPool2d,
    MultiheadAttention,
    RMSNorm,
    Softmax,
    Upsample,
    local_window,
)

pytestmark = pytest.mark.mpi_skip

HALF = (torch.bfloat16, torch.float16)
ROWS, PLANES = (2, 1), (1, 1, 2, 1)


def applied(kind: Any, partition: tuple[int, ...], module: Any, x: Any) -> list[tuple[Any, Any]]:
    """The results of two ranks, each beside its part of torch's in double precision, of the same parameters."""
    whole = copy.deepcopy(module).double()(x.double()).detach()

    def body(context: Any, _: object) -> tuple[Any, Any]:
        layer = kind(context.comm, partition, tuple(x.shape), module, dtype=x.dtype)
        source, target = layer.domain.tensors[0].layout, layer.codomain.tensors[0].layout
        y = layer(local_window(x, source, context.rank))
        return y.detach(), local_window(whole, target, context.rank)

    world = al.SimulatedWorld(2)
    run = world.run(body)
    world.close()
    assert run.completed, run
    return list(run.values)


def shifted(*shape: int) -> Any:
    """Values of which the mean is large beside their deviations."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) + 100


def of_small_variance(module: Any) -> Any:
    """In evaluation, where a half-precision `eps` beside the variance would be 0."""
    module.running_var.zero_()
    module.running_mean.fill_(1e-3)
    return module.eval()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("kind", "partition", "module", "x"),
    [
        (AvgPool2d, PLANES, lambda: nn.AvgPool2d(8), torch.full((1, 1, 16, 16), 1100.0)),
        (AdaptiveAvgPool2d, PLANES, lambda: nn.AdaptiveAvgPool2d(1), torch.ones(1, 1, 112, 112)),
        (AdaptiveAvgPool2d, PLANES, lambda: nn.AdaptiveAvgPool2d(1), torch.full((1, 1, 30, 30), 100.0)),
        (Upsample, PLANES, lambda: nn.Upsample(scale_factor=2, mode="bicubic"), shifted(1, 1, 6, 6)),
        (LayerNorm, ROWS, lambda: nn.LayerNorm(64), shifted(2, 64)),
        (GroupNorm, PLANES, lambda: nn.GroupNorm(2, 4), shifted(1, 4, 6, 6)),
        (BatchNorm2d, PLANES, lambda: nn.BatchNorm2d(2), shifted(2, 2, 6, 6)),
        (InstanceNorm2d, PLANES, lambda: nn.InstanceNorm2d(2), shifted(1, 2, 6, 6)),
        (
            BatchNorm2d,
            PLANES,
            lambda: of_small_variance(nn.BatchNorm2d(2, eps=1e-8)),
            shifted(2, 2, 6, 6) / 1e5,
        ),
        (
            InstanceNorm2d,
            PLANES,
            lambda: of_small_variance(nn.InstanceNorm2d(2, eps=1e-8, track_running_stats=True)),
            shifted(1, 2, 6, 6) / 1e5,
        ),
        (Softmax, ROWS, lambda: nn.Softmax(0), torch.ones(70_000, 1)),
        (Softmax, ROWS, lambda: nn.Softmax(0), shifted(1000, 2)),
        (LogSoftmax, ROWS, lambda: nn.LogSoftmax(0), shifted(1000, 2)),
        (RMSNorm, ROWS, lambda: nn.RMSNorm(64, eps=torch.finfo(torch.float32).eps), shifted(2, 64) / 1e4),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_layer_of_half_precision_rounds_its_result_alone(
    kind: Any, partition: tuple[int, ...], module: Callable[[], Any], x: Any, dtype: Any
) -> None:
    for ours, whole in applied(kind, partition, module().to(dtype), x.to(dtype)):
        assert ours.dtype is dtype
        step = 2 * torch.finfo(dtype).eps
        largest = float(whole.abs().max()) if whole.numel() else 0.0
        torch.testing.assert_close(ours.double(), whole, rtol=step, atol=step * min(1.0, largest))


@pytest.mark.parametrize(
    ("norm_type", "told"),
    [(float("inf"), "norm_type: inf is not supported"), ("x", "norm_type: 'x' is not a number")],
)
def test_power_averages_of_an_infinite_order_or_of_none_are_refused(norm_type: Any, told: str) -> None:
    world = al.SimulatedWorld(1)
    run = world.run(
        lambda context, _: LPPool2d(context.comm, (1, 1, 1, 1), (1, 1, 4, 4), nn.LPPool2d(norm_type, 2))
    )
    world.close()
    assert told in str(run.outcomes[0])


@pytest.mark.parametrize("algorithm", ["ring", "all-to-all"])
def test_attention_over_a_cut_sequence_takes_autocast(algorithm: str) -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(8, 2), torch.randn(5, 2, 8)
    (whole, _) = module(x, x, x, need_weights=False)

    def body(context: Any, _: object) -> Any:
        layer = MultiheadAttention(context.comm, (1, 1, 2), (5, 2, 8), module, algorithm=algorithm)
        part = local_window(x, layer.domain.tensors[0].layout, context.rank)
        with torch.autocast("cpu", torch.bfloat16):
            y, _ = layer(part, part, part, need_weights=False)
        y.sum().backward()
        return y.detach(), local_window(whole.detach(), layer.codomain.tensors[0].layout, context.rank)

    world = al.SimulatedWorld(2)
    run = world.run(body)
    world.close()
    assert run.completed, run
    for ours, theirs in run.values:
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_an_epsilon_of_none_is_that_of_float32_in_half_precision_as_in_torch(dtype: Any) -> None:
    module, x = nn.RMSNorm(8, dtype=dtype), (torch.randn(2, 8) * 0.01).to(dtype)
    for (ours, _), row in zip(applied(RMSNorm, ROWS, module, x), module(x).detach(), strict=True):
        torch.testing.assert_close(ours[0], row, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("cut", [(2, 1, 1), (1, 1, 2)], ids=["whole sequence", "ring"])
def test_attention_of_half_precision_rounds_its_result_alone(cut: tuple[int, ...], dtype: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    ordinary = [torch.randn(2, 1, 64, 16, generator=generator).to(dtype) for _ in range(3)]
    large = [torch.full((2, 1, 2, 128), 30.0).to(dtype)] * 2 + [torch.ones(2, 1, 2, 128).to(dtype)]

    def body(context: Any, _: object) -> Any:
        for qkv in (ordinary, large):
            layer = Attention(context.comm, cut, tuple(qkv[0].shape), dtype=dtype)
            parts = [
                local_window(each, tensor.layout, context.rank)
                for each, tensor in zip(qkv, layer.domain.tensors, strict=True)
            ]
            whole = nn.functional.scaled_dot_product_attention(*(each.double() for each in qkv))
            want = local_window(whole, layer.codomain.tensors[0].layout, context.rank)
            y = layer(*parts)
            assert y.dtype is dtype
            step = 2 * torch.finfo(dtype).eps
            torch.testing.assert_close(y.double(), want, rtol=step, atol=step)

    world = al.SimulatedWorld(2)
    run = world.run(body)
    world.close()
    assert run.completed, run


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_of_large_scores_in_half_precision_is_finite(
    dtype: Any, need_weights: bool
) -> None:
    module = nn.MultiheadAttention(128, 1, dtype=dtype)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(128).repeat(3, 1))
    x = torch.full((2, 2, 128), 30.0, dtype=dtype)

    def body(context: Any, _: object) -> Any:
        layer = MultiheadAttention(context.comm, (2, 1, 1), (2, 2, 128), module, dtype=dtype)
        part = local_window(x, layer.domain.tensors[0].layout, context.rank)
        y, _ = layer(part, part, part, need_weights=need_weights)
        assert y.isfinite().all()

    world = al.SimulatedWorld(2)
    run = world.run(body)
    world.close()
    assert run.completed, run


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_cross_entropy_of_half_precision_rounds_its_result_alone(dtype: Any, reduction: str) -> None:
    x = (shifted(3, 1000) - 100).to(dtype)
    targets = torch.tensor([1, 500, 999])
    whole = nn.functional.cross_entropy(x.double(), targets, reduction=reduction)

    def body(context: Any, _: object) -> Any:
        layer = CrossEntropyLoss(context.comm, (1, 2), (3, 1000), reduction=reduction, dtype=dtype)
        parts = [
            local_window(each, tensor.layout, context.rank)
            for each, tensor in zip((x, targets), layer.domain.tensors, strict=True)
        ]
        loss = layer(*parts)
        assert loss.dtype is dtype
        return loss.detach()

    world = al.SimulatedWorld(2)
    run = world.run(body)
    world.close()
    assert run.completed, run
    torch.testing.assert_close(run.values[0].double(), whole, rtol=2 * torch.finfo(dtype).eps, atol=0)
