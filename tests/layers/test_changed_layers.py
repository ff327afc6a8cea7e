"""A change of a finished layer that would change its numbers, or hang the others, is refused on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.batch_norm import BatchNorm1d
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.linear import Linear
from adjointlab.layers.losses import MSELoss
from adjointlab.layers.pointwise import Pointwise
from adjointlab.layers.pooling import AvgPool2d, MaxPool2d
from adjointlab.layers.repartition import Repartition
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, run_on_ranks, sines

DOUBLE = torch.float64


def linear(comm: Any) -> Linear:
    torch.manual_seed(1)
    ranks = comm.Get_size()
    return Linear(comm, Partition((1, 1, ranks)), (3, 2 * ranks), nn.Linear(2 * ranks, 4, dtype=DOUBLE))


def local(layer: Any) -> torch.Tensor:
    return torch.ones(layer.domain.tensors[0].layout.local_shape(layer.rank), dtype=DOUBLE)


def message(world: World, body: Callable[[Any], Any]) -> str:
    """The error that the call of ``body(comm)`` ends with, on every rank alike: caught there, as some end earlier."""

    def caught(comm: Any) -> str:
        with pytest.raises((ValueError, TypeError)) as raised:
            body(comm)
        return str(raised.value)

    (text,) = set(run_on_ranks(world, min(world.ranks, 3), caught))
    assert isinstance(text, str)
    return text


WRONG: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "another shape": (lambda w: torch.zeros(7, 7, dtype=DOUBLE), "weight: shape (7, 7) on rank 0"),
    "a batch of parameters": (lambda w: torch.stack((w, w), -1), "weight: shape (4, 2, 2) on rank 0"),
    "another element type": (lambda w: w.float(), "weight: float32 on rank 0"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("functional", [True, False])
def test_another_parameter_on_one_rank_is_refused_by_name_on_all(
    adjointlab_world: World, name: str, functional: bool
) -> None:
    change, expected = WRONG[name]

    def body(comm: Any) -> None:
        layer = linear(comm)
        weight = layer.weight if comm.Get_rank() else nn.Parameter(change(layer.weight.detach()))
        if functional:
            torch.func.functional_call(layer, {"weight": weight}, (local(layer),))
        else:
            layer.weight = weight
            layer(local(layer))

    assert message(adjointlab_world, body).startswith(expected)


def test_another_buffer_on_one_rank_is_refused_on_all(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        layer = BatchNorm1d(comm, Partition((comm.Get_size(), 1)), (6, 3), 3, dtype=DOUBLE)
        if comm.Get_rank() == 0:
            layer.running_mean = torch.zeros(5, dtype=DOUBLE)
        layer(local(layer))

    assert message(adjointlab_world, body).startswith("running_mean: shape (5,) on rank 0")


@pytest.mark.parametrize("view", [True, False])
def test_a_function_in_place_on_a_leaf_of_one_rank_is_refused_on_all(
    adjointlab_world: World, view: bool
) -> None:
    for function in (nn.ReLU(inplace=True), nn.Dropout(inplace=True), torch.relu_):

        def body(comm: Any, function: Any = function) -> None:
            layout = Layout((6, 2), Partition((comm.Get_size(), 1)))
            layer = Pointwise(comm, layout, function, dtype=DOUBLE)
            x = local(layer).requires_grad_(comm.Get_rank() == 0)
            layer(x.view_as(x) if view else x)

        text = message(adjointlab_world, body)
        assert text.startswith("x: a leaf of the graph that requires a gradient on rank 0")


TAKE_THE_WHOLE: dict[str, Callable[[Any], Any]] = {
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
    "parametrizations.weight_norm": parametrizations.weight_norm,
    "parametrizations.spectral_norm": parametrizations.spectral_norm,
    "parametrizations.orthogonal": parametrizations.orthogonal,
    "another parametrization": lambda layer: parametrize.register_parametrization(
        layer, "weight", nn.Softmax(0)
    ),
    "pruning by size": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "pruning of rows": lambda layer: prune.ln_structured(layer, "weight", 0.5, 2, 0),
    "random pruning": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
    "pruning of several": lambda layer: prune.global_unstructured(
        [(layer, "weight")], prune.L1Unstructured, amount=0.5
    ),
    "deletion": lambda layer: delattr(layer, "weight"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", TAKE_THE_WHOLE)
def test_what_computes_with_whole_parameters_is_refused_and_leaves_the_layer_as_it_is(
    adjointlab_world: World, name: str
) -> None:
    def body(comm: Any) -> str:
        layer = linear(comm)
        with pytest.raises(ValueError, match="computes with whole parameters") as raised:
            TAKE_THE_WHOLE[name](layer)
        torch.manual_seed(1)
        ranks = comm.Get_size()
        twin = nn.Linear(2 * ranks, 4, dtype=DOUBLE)
        assert_matches_twin(comm, layer, twin, sines(3, 2 * ranks), relative=1e-12)
        return str(raised.value)

    for text in run_on_ranks(adjointlab_world, min(adjointlab_world.ranks, 3), body):
        assert text.startswith("weight")


WITHOUT_PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "Pointwise": lambda comm: Pointwise(comm, Layout((4,), Partition((1,))), nn.ReLU(), dtype=DOUBLE),
    "Flatten": lambda comm: Flatten(comm, Partition((1, 1)), (4, 3), dtype=DOUBLE),
    "MaxPool2d": lambda comm: MaxPool2d(comm, Partition((1,) * 4), (1, 1, 4, 4), 2, dtype=DOUBLE),
    "AvgPool2d": lambda comm: AvgPool2d(comm, Partition((1,) * 4), (1, 1, 4, 4), 2, dtype=DOUBLE),
    "MSELoss": lambda comm: MSELoss(comm, Partition((1,)), (4,), dtype=DOUBLE),
    "Repartition": lambda comm: Repartition(
        comm, Layout((4,), Partition((1,))), Layout((4,), Partition((1,))), dtype=DOUBLE
    ),
    "BatchNorm1d": lambda comm: BatchNorm1d(
        comm, Partition((1, 1)), (4, 3), 3, affine=False, track_running_stats=False, dtype=DOUBLE
    ),
}


@pytest.mark.parametrize("name", WITHOUT_PARAMETERS)
def test_a_layer_without_parameters_refuses_another_element_type_too(
    adjointlab_world: World, name: str
) -> None:
    def body(comm: Any) -> None:
        layer = WITHOUT_PARAMETERS[name](comm)
        layer.double().to("cpu")
        for convert in (layer.half, layer.float, layer.bfloat16):
            with pytest.raises(ValueError, match="its operators are made for float64"):
                convert()

    run_on_ranks(adjointlab_world, 1, body)
