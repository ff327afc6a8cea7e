"""Distributed batch normalisation: the statistics are those of the global batch, however it is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from adjointlab.core.partition import Partition
from adjointlab.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from adjointlab.layers.instance_norm import InstanceNorm2d
from adjointlab.layers.windows import local_window
from adjointlab.worlds.forward_mode import dual_level
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, reversed_line, run_on_ranks

DOUBLE = torch.float64


def drawn(*shape: int, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    """The same on every rank, without torch's generator."""
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=DOUBLE) * 1.7).reshape(shape).to(dtype)


def learnt(twin: nn.Module) -> nn.Module:
    """The module with a weight and a bias that differ between channels."""
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(torch.arange(parameter.numel()) - (0.5 if name == "weight" else 2))
    return twin


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("dim", range(4))
def test_uneven_parts_weigh_what_they_hold(adjointlab_world: World, dim: int, momentum: float | None) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    shape = (5, 3, 3, 6)  # over four workers one has none in the smaller dimensions

    def body(comm: Any) -> None:
        twin = learnt(nn.BatchNorm2d(3, momentum=momentum, dtype=DOUBLE))
        layer = BatchNorm2d.from_sequential(twin, comm, reversed_line(ranks, dim, 4), shape)
        for step in range(3):
            assert_matches_twin(comm, layer, twin, drawn(*shape) * (step + 1) + step, relative=layer.rounding)
        for tensor in layer.buffer_space.tensors:
            want = local_window(twin.get_buffer(tensor.name), tensor.layout, comm.Get_rank())
            torch.testing.assert_close(layer.get_buffer(tensor.name), want, rtol=layer.rounding, atol=0)
        assert_matches_twin(comm, layer.eval(), twin.eval(), drawn(*shape), relative=layer.rounding)

    run_on_ranks(adjointlab_world, ranks, body)


def test_the_variance_of_data_far_from_zero_keeps_its_digits(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    noise = drawn(8, 2, 8)

    def body(comm: Any) -> float:
        layer = BatchNorm1d(
            comm, reversed_line(ranks, 0, 3), (8, 2, 8), 2, affine=False, momentum=1.0, dtype=DOUBLE
        )
        layout = layer.domain.tensors[0].layout
        layer(local_window(noise + 1e7, layout, comm.Get_rank()))
        assert layer.running_var is not None
        exact = noise.transpose(0, 1).reshape(2, -1).var(1)
        return float((layer.running_var / exact - 1).abs().max())

    # The data themselves are rounded to 1e-9; sums of squares would leave no digit.
    assert max(run_on_ranks(adjointlab_world, ranks, body)) < 1e-8


def test_float32_is_accumulated_as_well_as_torch_does(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    data = drawn(16, 2, 64, dtype=torch.float32) * 0.25 + 50

    def body(comm: Any) -> float:
        layer = BatchNorm1d(
            comm, reversed_line(ranks, 2, 3), data.shape, 2, affine=False, momentum=1.0, dtype=torch.float32
        )
        layer(local_window(data, layer.domain.tensors[0].layout, comm.Get_rank()))
        assert layer.running_var is not None
        exact = data.double().transpose(0, 1).reshape(2, -1).var(1)
        return float((layer.running_var / exact - 1).abs().max())

    assert max(run_on_ranks(adjointlab_world, ranks, body)) < 2.0**-22


def test_the_running_statistics_are_on_every_worker_that_holds_the_channels(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> tuple[list[float], int, int]:
        layer = BatchNorm1d(comm, reversed_line(ranks, 0, 2), (6, 2), 2, dtype=DOUBLE)
        layer(local_window(drawn(6, 2), layer.domain.tensors[0].layout, comm.Get_rank()))
        assert layer.running_mean is not None
        assert layer.num_batches_tracked is not None
        assert layer.weight is not None
        return layer.running_mean.tolist(), int(layer.num_batches_tracked), layer.weight.numel()

    values = run_on_ranks(adjointlab_world, ranks, body)
    assert all(value[:2] == values[0][:2] for value in values)
    # The parameters lie once, on the worker whose index is 0, which is the last rank.
    assert [value[2] for value in values] == [0] * (ranks - 1) + [2]


def test_the_state_goes_from_and_to_the_sequential_module(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        twin = learnt(nn.BatchNorm3d(4, eps=0.5, momentum=None, dtype=DOUBLE))
        twin(drawn(2, 4, 2, 2, 2))
        layer = BatchNorm3d.from_sequential(twin.eval(), comm, reversed_line(ranks, 1, 5), (2, 4, 2, 2, 2))
        assert not layer.training
        back = layer.to_sequential()
        assert repr(back) == repr(twin)
        assert back.state_dict().keys() == twin.state_dict().keys()
        for name, value in twin.state_dict().items():
            assert torch.equal(back.state_dict()[name], value)
        fresh = BatchNorm3d(
            comm, reversed_line(ranks, 1, 5), (2, 4, 2, 2, 2), 4, eps=0.5, momentum=None, dtype=DOUBLE
        )
        fresh.load_state_dict(layer.state_dict())
        assert_matches_twin(comm, fresh.eval(), twin, drawn(2, 4, 2, 2, 2), relative=layer.rounding)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_what_is_frozen_stays_frozen_both_ways(adjointlab_world: World, frozen: str) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        twin = nn.BatchNorm1d(4)
        twin.get_parameter(frozen).requires_grad_(False)
        layer = BatchNorm1d.from_sequential(twin, comm, reversed_line(ranks, 1, 2), (2, 4))
        for module in (layer, layer.to_sequential()):
            assert {name for name, p in module.named_parameters() if not p.requires_grad} == {frozen}

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    "other", [nn.InstanceNorm2d(3, affine=True), nn.BatchNorm1d(3), nn.GroupNorm(1, 3)], ids=repr
)
def test_another_normalisation_is_refused(adjointlab_world: World, other: Any) -> None:
    message = error_of_every_rank(
        adjointlab_world,
        2,
        lambda comm: BatchNorm2d.from_sequential(other, comm, reversed_line(comm.size, 0, 4), (2, 3, 4, 4)),
    )
    assert message == f"module: {type(other).__name__}, but BatchNorm2d is made from torch.nn.BatchNorm2d"


def test_without_parameters_and_statistics_there_is_no_state(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        twin = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
        layer = BatchNorm1d.from_sequential(twin, comm, reversed_line(ranks, 0, 2), (4, 3), DOUBLE)
        assert not layer.state_dict()
        assert_matches_twin(comm, layer.eval(), twin.eval(), drawn(4, 3), relative=layer.rounding)

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_batch_of_none_leaves_the_statistics_as_they_are(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        twin = nn.BatchNorm1d(3, dtype=DOUBLE)
        layer = BatchNorm1d.from_sequential(twin, comm, reversed_line(ranks, 1, 2), (0, 3))
        assert_matches_twin(comm, layer, twin, drawn(0, 3))
        assert layer.weight is not None
        assert layer.weight.grad is not None
        assert not layer.weight.grad.any()
        for name, value in layer.sequential_state_dict().items():
            assert torch.equal(value, twin.state_dict()[name])

    run_on_ranks(adjointlab_world, ranks, body)


def test_one_value_per_channel_is_counted_globally_and_refused_on_every_rank(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    partition = reversed_line(ranks, 1, 3)

    def call(comm: Any, shape: tuple[int, ...], training: bool = True) -> None:
        layer = BatchNorm1d(comm, partition, shape, shape[1], dtype=DOUBLE).train(training)
        layer(local_window(drawn(*shape), layer.domain.tensors[0].layout, comm.Get_rank()))

    message = error_of_every_rank(adjointlab_world, ranks, lambda comm: call(comm, (1, 3, 1)))
    assert (
        message
        == "Expected more than 1 value per channel when training, got input size torch.Size([1, 3, 1])"
    )
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as error:
        nn.BatchNorm1d(3)(torch.zeros(1, 3, 1))
    assert str(error.value) == message
    run_on_ranks(adjointlab_world, ranks, lambda comm: call(comm, (1, 3, 1), training=False))

    def one_each(comm: Any) -> None:
        layer = BatchNorm1d(comm, reversed_line(ranks, 0, 2), (ranks, 3), 3, dtype=DOUBLE)
        layer(local_window(drawn(ranks, 3), layer.domain.tensors[0].layout, comm.Get_rank()))

    if ranks > 1:  # one value on each worker is more than one
        run_on_ranks(adjointlab_world, ranks, one_each)


@pytest.mark.parametrize(
    ("shape", "features", "message"),
    [
        ((2, 3, 4), 3, "expected 4D input (got 3D input)"),
        ((2, 3, 4, 4), 4, "input_shape: (2, 3, 4, 4) has 3 channels, but num_features is 4"),
        ((2, 3, 4, 4, 4), 3, "expected 4D input (got 5D input)"),
    ],
)
def test_an_illegal_input_is_the_same_error_on_every_rank(
    adjointlab_world: World, shape: tuple[int, ...], features: int, message: str
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    partition = reversed_line(ranks, 0, len(shape))
    assert message == error_of_every_rank(
        adjointlab_world, ranks, lambda comm: BatchNorm2d(comm, partition, shape, features)
    )


def test_a_partition_of_another_order_is_the_same_error_on_every_rank(adjointlab_world: World) -> None:
    message = error_of_every_rank(
        adjointlab_world, 2, lambda comm: BatchNorm2d(comm, Partition((1, comm.size)), (2, 3, 4, 4), 3)
    )
    assert message.startswith("partition: of order 2")


def test_second_derivatives_and_forward_mode_go_through_the_statistics(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    shape = (5, 2, 3)
    x, v = drawn(*shape), torch.cos(drawn(*shape))

    def second(module: Any, x: torch.Tensor) -> Any:
        (first,) = torch.autograd.grad((module(x) ** 3).sum(), x, create_graph=True)
        (first**2).sum().backward()
        return x.grad

    def tangent(module: Any, x: torch.Tensor, v: torch.Tensor) -> Any:
        result = module(forward_ad.make_dual(x, v))  # type: ignore[no-untyped-call]
        return forward_ad.unpack_dual(result).tangent  # type: ignore[no-untyped-call]

    def body(comm: Any) -> None:
        twin = learnt(nn.BatchNorm1d(2, dtype=DOUBLE))
        layer = BatchNorm1d.from_sequential(twin, comm, reversed_line(ranks, 0, 3), shape)
        layout, rank = layer.domain.tensors[0].layout, comm.Get_rank()
        got, want = (
            second(layer, local_window(x, layout, rank).requires_grad_()),
            second(twin, x.clone().requires_grad_()),
        )
        torch.testing.assert_close(got, local_window(want, layout, rank), rtol=1e-11, atol=1e-11)
        local = local_window(x, layout, rank), local_window(v, layout, rank)
        got, want = tangent(layer, *local), tangent(twin, x, v)
        torch.testing.assert_close(got, local_window(want, layout, rank), rtol=1e-12, atol=1e-12)

    # Opened before they begin: the ranks find it so.
    with dual_level():
        run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("ours", "torchs"), [(BatchNorm2d, nn.BatchNorm2d), (InstanceNorm2d, nn.InstanceNorm2d)]
)
def test_statistics_that_are_no_longer_tracked_stay_as_torch_leaves_them(
    adjointlab_world: World, ours: Any, torchs: Any
) -> None:
    ranks, shape = min(adjointlab_world.ranks, 3), (2, 3, 4, 5)

    def body(comm: Any) -> None:
        twin = torchs(3, affine=True, track_running_stats=True, dtype=DOUBLE)
        layer = ours.from_sequential(twin, comm, reversed_line(ranks, 2, 4), shape)
        for tracks in (True, False, False, True):
            layer.track_running_stats = twin.track_running_stats = tracks
            for mode in ("train", "eval"):
                getattr(layer, mode)()
                getattr(twin, mode)()
                assert_matches_twin(comm, layer, twin, drawn(*shape) * 2 + 1, relative=layer.rounding)
        for tensor in layer.buffer_space.tensors:
            want = local_window(twin.get_buffer(tensor.name), tensor.layout, comm.Get_rank())
            torch.testing.assert_close(layer.get_buffer(tensor.name), want, rtol=layer.rounding, atol=0)

    run_on_ranks(adjointlab_world, ranks, body)
