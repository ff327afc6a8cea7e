"""Torch's utilities on models with uneven parts: the numbers of the sequential model, or an error, on every rank.

The functions are listed from torch itself, so one that a new version adds is tested too.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parameters_to_vector, vector_to_parameters
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.optim.swa_utils import AveragedModel, update_bn

from adjointlab.core.partition import Partition
from adjointlab.layers import utilities
from adjointlab.layers.batch_norm import BatchNorm1d
from adjointlab.layers.convolution import Conv1d
from adjointlab.layers.linear import Linear
from adjointlab.layers.multihead_attention import MultiheadAttention
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import integer_cotangent, run_on_ranks, sines

DOUBLE = torch.float64


def on_ranks(world: World, body: Callable[[Any], Any]) -> tuple[Any, ...]:
    return run_on_ranks(world, min(world.ranks, 3), body)


def models(comm: Any) -> tuple[nn.Sequential, nn.Sequential]:
    """A model whose first layer cuts input features, and whose second output features; and the sequential one."""
    torch.manual_seed(4)
    ranks = comm.Get_size()
    uneven = 2 * ranks + 1
    twin = nn.Sequential(nn.Linear(uneven, 5, dtype=DOUBLE), nn.Linear(5, uneven, dtype=DOUBLE))
    rows, columns = Partition((1, 1, ranks)), Partition((1, ranks, 1))
    layers = (Linear(comm, rows, (3, uneven), twin[0]), Linear(comm, columns, (3, 5), twin[1]))
    return nn.Sequential(*layers), twin


def backward(model: nn.Sequential, twin: nn.Sequential) -> None:
    """Give all parameters gradients."""
    first, last = model[0], model[-1]
    x = sines(*first.input_shape)
    model(local_window(x, first.domain.tensors[0].layout, first.rank)).backward(
        local_window(integer_cotangent(twin(x)).detach(), last.codomain.tensors[0].layout, first.rank)
    )
    wanted = twin(x)
    wanted.backward(integer_cotangent(wanted))


def assert_equal_parts(model: nn.Sequential, twin: nn.Sequential, *, gradients: bool = False) -> None:
    for layer, whole in zip(model, twin, strict=True):
        for tensor in (*layer.parameter_space.tensors, *layer.buffer_space.tensors):
            own, other = getattr(layer, tensor.name).detach(), getattr(whole, tensor.name).detach()
            if gradients:
                own, other = getattr(layer, tensor.name).grad, getattr(whole, tensor.name).grad
            torch.testing.assert_close(
                own, local_window(other, tensor.layout, layer.rank), rtol=1e-11, atol=1e-12
            )


def assert_refused(function: Callable[[], object], *tensors: torch.Tensor, by: str = "") -> None:
    """The function raises a `ValueError` that says why, and which function of torch is refused; the tensors are as they were."""
    before = [tensor.detach().clone() for tensor in tensors]
    with pytest.raises(ValueError, match=f"{re.escape(by)}.*computes with whole parameters"):
        function()
    assert all(torch.equal(tensor, saved) for tensor, saved in zip(tensors, before, strict=True))


# Initial values

INITIAL = sorted(
    name
    for name, value in vars(nn.init).items()
    if name.endswith("_") and name[0] != "_" and inspect.isfunction(value)
)
ARGUMENTS: dict[str, tuple[float, ...]] = {"constant_": (0.3,), "sparse_": (0.5,)}


@pytest.mark.parametrize("name", INITIAL)
def test_a_function_of_init_gives_the_sequential_values_or_is_refused(
    adjointlab_world: World, name: str
) -> None:
    function, arguments = getattr(nn.init, name), ARGUMENTS.get(name, ())

    def body(comm: Any) -> bool:
        torch.manual_seed(5)
        ranks = comm.Get_size()
        if name == "dirac_":
            twin: nn.Module = nn.Conv1d(2 * ranks + 1, 4, 3, dtype=DOUBLE)
            layer: Any = Conv1d(comm, Partition((1, 1, ranks, 1)), (1, 2 * ranks + 1, 5), twin)
        else:
            twin = nn.Linear(2 * ranks + 1, 4, dtype=DOUBLE)
            layer = Linear(comm, Partition((1, 1, ranks)), (3, 2 * ranks + 1), twin)
        if elementwise := name in ("constant_", "zeros_", "ones_"):
            function(layer.weight, *arguments)
        else:
            assert_refused(lambda: function(layer.weight, *arguments), layer.weight)
            torch.manual_seed(6)
            layer.initialise("weight", function, *arguments)
        torch.manual_seed(6)
        function(twin.weight, *arguments)
        assert_equal_parts(nn.Sequential(layer), nn.Sequential(twin))
        return elementwise

    assert len(INITIAL) > 10
    on_ranks(adjointlab_world, body)


def test_parameters_are_reset_to_those_of_the_sequential_layer(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        model, twin = models(comm)
        for each in (model, twin):
            torch.manual_seed(9)
            for layer in each:
                layer.reset_parameters()
        assert_equal_parts(model, twin)
        with pytest.raises(ValueError, match="not one of the parameters of Linear"):
            model[0].initialise("wieght", nn.init.ones_)

    on_ranks(adjointlab_world, body)


# Norms and vectors


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 0.5, 0.0, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("max_norm", [0.25, 1e6])
def test_gradients_are_clipped_by_the_norm_of_the_whole(
    adjointlab_world: World, norm_type: float, max_norm: float
) -> None:
    def body(comm: Any) -> None:
        model, twin = models(comm)
        backward(model, twin)
        total = utilities.clip_grad_norm_(model, max_norm, norm_type)
        torch.testing.assert_close(total, clip_grad_norm_(twin.parameters(), max_norm, norm_type))
        assert_equal_parts(model, twin, gradients=True)

    on_ranks(adjointlab_world, body)


def test_an_infinite_gradient_of_one_rank_is_an_error_on_all(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        model, twin = models(comm)
        backward(model, twin)
        if comm.Get_rank() == comm.Get_size() - 1:
            model[0].weight.grad.fill_(math.inf)
        with pytest.raises(RuntimeError, match="non-finite"):
            utilities.get_total_norm(model, error_if_nonfinite=True)

    on_ranks(adjointlab_world, body)


def test_norms_of_parts_are_refused_and_clipping_by_value_is_right(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        model, twin = models(comm)
        backward(model, twin)
        gradients = [parameter.grad for parameter in model.parameters()]
        assert_refused(lambda: clip_grad_norm_(model.parameters(), 0.25), *gradients)
        if hasattr(nn.utils, "get_total_norm"):
            assert_refused(lambda: nn.utils.get_total_norm(gradients), *gradients)
        for each in (model, twin):
            clip_grad_value_(each.parameters(), 0.5)
        assert_equal_parts(model, twin, gradients=True)
        if hasattr(nn.utils, "clip_grads_with_norm_"):
            for each in (model, twin):
                nn.utils.clip_grads_with_norm_(each.parameters(), 0.1, torch.tensor(2.0))
            assert_equal_parts(model, twin, gradients=True)

    on_ranks(adjointlab_world, body)


def test_a_norm_of_no_order_is_refused_by_its_name(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(TypeError, match=r"^norm_type: 'x' is not a number$"):
            utilities.get_total_norm(models(comm)[0], "x")  # type: ignore[arg-type]

    on_ranks(adjointlab_world, body)


def test_parameters_as_a_vector_are_those_of_the_sequential_model(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        model, twin = models(comm)
        vector = utilities.parameters_to_vector(model)
        assert torch.equal(vector, parameters_to_vector(twin.parameters()))
        utilities.vector_to_parameters(vector**2, model)
        vector_to_parameters(vector**2, twin.parameters())
        assert_equal_parts(model, twin)
        assert_refused(lambda: parameters_to_vector(model.parameters()))
        assert_refused(lambda: vector_to_parameters(vector, model.parameters()), *model.parameters())
        with pytest.raises(ValueError, match="elements of parameters"):
            utilities.vector_to_parameters(vector[1:], model)

    on_ranks(adjointlab_world, body)


@pytest.mark.parametrize("norm_type", [2.0, 0.0, math.inf, -1.0])
def test_a_parameter_that_two_layers_have_counts_once(adjointlab_world: World, norm_type: float) -> None:
    def body(comm: Any) -> None:
        torch.manual_seed(4)
        side, rows = 2 * comm.Get_size() + 1, Partition((1, 1, comm.Get_size()))
        twin = nn.Sequential(nn.Linear(side, side, dtype=DOUBLE), nn.Linear(side, side, dtype=DOUBLE))
        model = nn.Sequential(*(Linear(comm, rows, (3, side), each) for each in twin))
        for each in (model, twin):
            each[1].weight = each[0].weight
        x = sines(3, side)
        for layer, whole in zip(model, twin, strict=True):
            local = local_window(x, layer.domain.tensors[0].layout, layer.rank)
            cotangent = integer_cotangent(whole(x)).detach()
            layer(local).backward(local_window(cotangent, layer.codomain.tensors[0].layout, layer.rank))
            whole(x).backward(cotangent)
        vector = utilities.parameters_to_vector(model)
        assert torch.equal(vector, parameters_to_vector(twin.parameters()))
        utilities.vector_to_parameters(vector**2, model)
        vector_to_parameters(vector**2, twin.parameters())
        total = utilities.clip_grad_norm_(model, 0.25, norm_type)
        torch.testing.assert_close(total, clip_grad_norm_(twin.parameters(), 0.25, norm_type))
        assert_equal_parts(model, twin)
        assert_equal_parts(model, twin, gradients=True)
        assert list(utilities.sequential_gradients(model)) == list(twin.state_dict())

    on_ranks(adjointlab_world, body)


def test_parameters_outside_of_distributed_layers_are_refused_by_name(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        model = nn.Sequential(models(comm)[0], nn.PReLU())
        for function in (utilities.get_total_norm, utilities.parameters_to_vector):
            with pytest.raises(ValueError, match=r"1\.weight in PReLU"):
                function(model)

    on_ranks(adjointlab_world, body)


# Optimisers and averages

OPTIMISERS = sorted(
    name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value)
    and name not in ("Optimizer", "SparseAdam")  # which takes sparse gradients alone
)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_makes_the_sequential_steps_or_is_refused(adjointlab_world: World, name: str) -> None:
    def step(each: nn.Sequential) -> None:
        parameters = [parameter for parameter in each.parameters() if parameter.ndim == 2]
        optimiser = getattr(torch.optim, name)(parameters, lr=0.1)
        optimiser.step(lambda: 0.0)
        optimiser.step(lambda: 0.0)

    def body(comm: Any) -> bool:
        model, twin = models(comm)
        backward(model, twin)
        if refused := name in ("Adafactor", "LBFGS", "Muon"):
            assert_refused(lambda: step(model), *model.parameters(), by=f".{name}")
        else:
            step(model)
            step(twin)
            assert_equal_parts(model, twin)
        return refused

    on_ranks(adjointlab_world, body)


def test_the_scaling_of_gradients_is_refused(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        model, twin = models(comm)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(()))
        backward(model, twin)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        assert_refused(lambda: scaler.step(optimiser), *model.parameters())

    on_ranks(adjointlab_world, body)


def test_statistics_of_an_averaged_model_are_those_of_the_sequential_one(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        ranks = comm.Get_size()
        shape = (2 * ranks + 1, 3)
        twin: Any = nn.BatchNorm1d(3, dtype=DOUBLE)
        layer: Any = BatchNorm1d(comm, Partition((ranks, 1)), shape, twin)
        averages = [AveragedModel(nn.Sequential(each)) for each in (layer, twin)]
        batches = [sines(*shape) * scale + scale for scale in (1, 2, 5)]
        parts = [local_window(batch, layer.domain.tensors[0].layout, layer.rank) for batch in batches]
        for average, module, loader in zip(averages, (layer, twin), (parts, batches), strict=True):
            for value in (1.0, 2.0):
                nn.init.constant_(module.weight, value)
                average.update_parameters(nn.Sequential(module))
            update_bn(loader, average)
        assert_equal_parts(averages[0].module, averages[1].module)
        assert averages[0].module[0].num_batches_tracked == 3
        assert averages[0].module[0].momentum == 0.1
        assert "momentum=0.1" in repr(layer)
        with pytest.raises(AttributeError, match="affine"):
            nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(layer))

    on_ranks(adjointlab_world, body)


# Parameters that take the place of others

CHANGED: dict[str, Callable[[Any], Any]] = {
    "deep copy": copy.deepcopy,
    "another parameter": lambda layer: (
        setattr(layer, "weight", nn.Parameter(layer.weight.detach().clone())) or layer
    ),
    "assigned state": lambda layer: layer.load_state_dict(layer.state_dict(), assign=True) and layer,
    "conversion": lambda layer: layer.to(DOUBLE).cpu(),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_parameter_of_a_changed_layer_is_still_a_part(adjointlab_world: World, name: str) -> None:
    def body(comm: Any) -> None:
        layer = CHANGED[name](models(comm)[0][0])
        assert_refused(lambda: nn.init.xavier_uniform_(layer.weight), layer.weight)

    on_ranks(adjointlab_world, body)


def test_what_is_computed_with_parts_and_stored_is_of_torchs_own_classes(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        model, twin = models(comm)
        backward(model, twin)
        weight = model[0].weight
        assert weight.grad is weight.grad
        for tensor in (
            weight.detach(),
            weight + 1,
            weight.grad.detach(),
            weight.grad * 2,
            copy.deepcopy(weight.grad),
        ):
            assert type(tensor) is torch.Tensor
        assert {type(value) for value in model.state_dict().values()} == {torch.Tensor}
        assert "Parameter containing" in repr(weight)

    on_ranks(adjointlab_world, body)


def test_a_fusion_of_layers_is_refused(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        ranks = comm.Get_size()
        layer: Any = Conv1d(comm, Partition((1, 1, ranks, 1)), (1, 2 * ranks + 1, 5), 2 * ranks + 1, 4, 3)
        assert_refused(lambda: fuse_conv_bn_eval(layer.eval(), nn.BatchNorm1d(4).eval()), layer.weight)

    on_ranks(adjointlab_world, body)


@pytest.mark.parametrize("root", [None, 0])
def test_whole_gradients_are_the_sequential_models_under_its_names(
    adjointlab_world: World, root: int | None
) -> None:
    def body(comm: Any) -> None:
        model, twin = models(comm)
        assert not any(value.any() for value in utilities.sequential_gradients(model).values()), (
            "None is zeros"
        )
        backward(model, twin)
        wanted = {name: value.grad for name, value in twin.named_parameters()}
        found = utilities.sequential_gradients(model, root)
        assert list(found) == (list(wanted) if root in (None, comm.Get_rank()) else [])
        for name, value in found.items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-11, atol=1e-12)

    on_ranks(adjointlab_world, body)


def test_whole_gradients_of_attention_are_those_of_its_joint_projection(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        torch.manual_seed(5)
        twin = nn.MultiheadAttention(4, 2, dtype=DOUBLE)
        layer = MultiheadAttention(comm, (1, comm.Get_size(), 1), (3, 2, 4), twin)
        x = sines(3, 2, 4)
        local = local_window(x, layer.domain.tensors[0].layout, layer.rank)
        layer(local, local, local, need_weights=False)[0].sum().backward()
        twin(x, x, x, need_weights=False)[0].sum().backward()
        found = utilities.sequential_gradients(layer)
        assert list(found) == [name for name, _ in twin.named_parameters()]
        for name, value in found.items():
            torch.testing.assert_close(value, twin.get_parameter(name).grad, rtol=1e-11, atol=1e-12)

    run_on_ranks(adjointlab_world, min(adjointlab_world.ranks, 2), body)
