"""Functions applied point by point, wherever the points lie, and what is no such function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.linear import Linear
from adjointlab.layers.pointwise import Pointwise
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks, sines

DOUBLE = torch.float64


def error(world: World, function: Any) -> str:
    ranks = min(world.ranks, 2)
    layout = Layout((4, 3), Partition((ranks, 1)))
    return error_of_every_rank(world, ranks, lambda comm: Pointwise(comm, layout, function))


def test_the_function_need_not_take_tensors_without_elements(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def relu(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0) if x.max() > 0 else 0 * x

    def body(comm: Any) -> None:
        layer = Pointwise(comm, Layout((1, 3), Partition((ranks, 1))), relu, dtype=DOUBLE)
        assert_matches_twin(comm, layer, nn.ReLU(), torch.tensor([[-1.0, 2.0, 3.0]], dtype=DOUBLE))

    run_on_ranks(adjointlab_world, ranks, body)


def test_what_is_not_elementwise_is_refused_where_the_layer_is_made(adjointlab_world: World) -> None:
    for function in (nn.Softmax(0), nn.Softmax(1), nn.LayerNorm(4, elementwise_affine=False), torch.Tensor.t):
        assert "elementwise" in error(adjointlab_world, function)
    assert "elementwise" in error(adjointlab_world, lambda x: x.cumsum(0))
    assert "elementwise" in error(adjointlab_world, nn.GLU())


def test_what_has_parameters_or_buffers_is_refused(adjointlab_world: World) -> None:
    assert error(adjointlab_world, nn.PReLU()).startswith(
        "function: PReLU has weight, which would be as many as there are workers"
    )
    assert error(adjointlab_world, nn.BatchNorm1d(4, affine=False)).startswith(
        "function: BatchNorm1d has running_mean"
    )


def test_a_function_of_a_parameter_is_refused_and_of_its_values_alone_taken(adjointlab_world: World) -> None:
    slope = nn.Parameter(torch.tensor(0.5))
    with torch.no_grad():
        for scaled in (lambda x: slope * x, lambda x: x.mul_(slope), lambda x: slope * x.requires_grad_()):
            found = error(adjointlab_world, scaled)
            assert found.startswith("function: the value of <lambda> depends on another tensor that requires")

    def slope_of_cubes(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]

    def body(comm: Any) -> None:
        layout = Layout((4, 3), Partition((comm.Get_size(), 1)))
        for function in (lambda x: slope.detach() * x, lambda x: x.requires_grad_() / 2, slope_of_cubes):
            assert Pointwise(comm, layout, function).value_dtype == torch.float32

    run_on_ranks(adjointlab_world, min(adjointlab_world.ranks, 2), body)


def test_a_function_that_returns_no_tensor_is_refused(adjointlab_world: World) -> None:
    assert error(adjointlab_world, lambda x: (x, x)) == (
        "function: <lambda> returns a tuple, but a point-wise function must return a tensor"
    )


@pytest.mark.parametrize("kind", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout])
def test_dropout_of_whole_channels_is_refused_alone_and_inside_of_another_module(
    adjointlab_world: World, kind: Any
) -> None:
    for function in (kind(), nn.Sequential(nn.ReLU(), kind())):
        assert error(adjointlab_world, function).startswith(
            f"function: {kind.__name__} draws one number for a whole channel"
        )


@pytest.mark.parametrize("kind", [nn.Dropout, nn.AlphaDropout])
def test_every_worker_draws_a_mask_from_its_own_generator(adjointlab_world: World, kind: Any) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> tuple[bool, Any]:
        layer = Pointwise(comm, Layout((ranks, 64), Partition((ranks, 1))), kind(), dtype=DOUBLE)
        x = torch.ones(1, 64, dtype=DOUBLE)
        torch.manual_seed(7 + comm.Get_rank())
        y = layer(x)
        torch.manual_seed(7 + comm.Get_rank())
        return torch.equal(y, kind()(x)), tuple(y.reshape(-1).tolist())

    values = run_on_ranks(adjointlab_world, ranks, body)
    assert all(as_torch for as_torch, _ in values)
    assert len({mask for _, mask in values}) == ranks


def test_the_sequential_module_is_a_copy(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        layer = Pointwise(comm, Layout((2,), Partition((1,))), nn.Dropout(0.25))
        twin = layer.sequential()
        assert isinstance(twin, nn.Dropout)
        assert twin.eval() is not layer.function
        assert layer.function.training  # type: ignore[attr-defined]

    run_on_ranks(adjointlab_world, 1, body)


FUNCTIONS = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.LeakyReLU(),
    nn.Sigmoid(),
    nn.Softplus(),
    torch.abs,
    torch.square,
]


def check_checkpoint(world: World, make: Any, shape: tuple[int, ...], requires_grad_on: set[int]) -> None:
    """Compare the gradients through a checkpoint of ``make(comm)`` with those without one."""

    def gradient(comm: Any, segment: Any, run: Any) -> Any:
        layout = segment[0].domain.tensors[0].layout
        x = local_window(sines(*shape), layout, comm.Get_rank())
        x.requires_grad_(comm.Get_rank() in requires_grad_on)
        run(segment, x).sum().backward()
        return None if x.grad is None else x.grad.clone()

    def body(comm: Any) -> None:
        segment = make(comm)
        plain = gradient(comm, segment, lambda s, x: s(x))
        again = gradient(comm, segment, lambda s, x: checkpoint(s, x, use_reentrant=False))
        assert (plain is None) == (again is None)
        torch.testing.assert_close(again, plain)

    run_on_ranks(world, min(world.ranks, 3), body)


@pytest.mark.parametrize(
    "function", FUNCTIONS, ids=lambda function: getattr(function, "__name__", type(function).__name__)
)
def test_a_checkpoint_that_ends_in_a_function_is_computed_again_on_idle_and_empty_workers_too(
    adjointlab_world: World, function: Any
) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def summed(comm: Any) -> nn.Sequential:
        linear = Linear(comm, Partition((1, 1, ranks)), (2, 6), nn.Linear(6, 4, dtype=DOUBLE))
        layout = linear.codomain.tensors[0].layout
        return nn.Sequential(linear, Pointwise(comm, layout, function, dtype=DOUBLE))

    def cut(comm: Any) -> nn.Sequential:
        layout = Layout((ranks - 1, 6), Partition((ranks, 1)))
        linear = Linear(comm, Partition((ranks, 1, 1)), (ranks - 1, 6), nn.Linear(6, 6, dtype=DOUBLE))
        return nn.Sequential(linear, Pointwise(comm, layout, function, dtype=DOUBLE))

    check_checkpoint(adjointlab_world, summed, (2, 6), set(range(ranks)))
    check_checkpoint(adjointlab_world, cut, (ranks - 1, 6), set(range(ranks)))


def test_a_checkpoint_of_a_function_takes_part_where_the_input_requires_no_gradient(
    adjointlab_world: World,
) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def alone(comm: Any) -> nn.Sequential:
        return nn.Sequential(
            Pointwise(comm, Layout((3, 6), Partition((ranks, 1))), nn.Sigmoid(), dtype=DOUBLE)
        )

    check_checkpoint(adjointlab_world, alone, (3, 6), {0})
