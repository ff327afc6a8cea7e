"""A state_dict that one rank gives wrongly is the same error on every rank, before anything moves; so are whole tensors of other shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers import Linear, clip_grad_norm_, from_sequential, local_window
from adjointlab.worlds.run import Raised
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, run_on_ranks

SEQUENTIAL = nn.Sequential(nn.Linear(3, 3)).requires_grad_(False)
SEQUENTIAL[0].weight.copy_(torch.eye(3))  # not drawn, as each process would have values of its own
SEQUENTIAL[0].bias.zero_()
WRONG: dict[str, tuple[Any, str]] = {
    "None": (None, "state: None is not a state_dict"),
    "a path": ("model.pt", "state: a str is not a state_dict; torch.load reads one from a file"),
    "a Path": (Path("model.pt"), "torch.load reads one from a file"),
    "arrays": (
        {"0.weight": np.ones((3, 3)), "0.bias": np.ones(3)},
        "state: 0.weight is an ndarray, no torch.Tensor; torch.from_numpy makes one",
    ),
    "a module": (SEQUENTIAL, "state: a Sequential is not a state_dict"),
    "a checkpoint": (
        {"model": SEQUENTIAL.state_dict()},
        "state: model is an OrderedDict, no torch.Tensor; if that is the state_dict, pass state['model']",
    ),
    "nothing": ({}, "state: lacks 0.weight (3, 3), 0.bias (3,), which the layer needs"),
    "a missing tensor": ({"0.bias": torch.ones(3)}, "state: lacks 0.weight (3, 3), which the layer needs"),
    "another tensor": (
        {**SEQUENTIAL.state_dict(), "0.scale": torch.ones(3)},
        "state: has 0.scale, which the layer has not",
    ),
    "another shape": (
        {**SEQUENTIAL.state_dict(), "0.weight": torch.ones(3, 2)},
        "state: 0.weight has the shape (3, 2), but the layer needs (3, 3)",
    ),
}


@pytest.mark.parametrize("of_layer", [False, True], ids=["network", "layer"])
@pytest.mark.parametrize("root", [None, 0])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_state_on_one_rank_is_an_error_on_all(
    adjointlab_world: World, wrong: str, root: int | None, of_layer: bool
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    state, message = WRONG[wrong]
    kind = "Sequential"
    if of_layer and wrong == "a module":
        state, kind = SEQUENTIAL[0], "Linear"

    def body(comm: Any) -> None:
        network = from_sequential(SEQUENTIAL, comm, (ranks, 1), (4, 3))
        right = (SEQUENTIAL[0] if of_layer else SEQUENTIAL).state_dict()
        given = state if comm.Get_rank() == 0 else right
        if of_layer and isinstance(given, dict):
            given = {name.removeprefix("0."): value for name, value in given.items()}
        (network[0] if of_layer else network).load_sequential_state_dict(given, root)

    run = adjointlab_world.run(lambda context, _: body(context.comm), ranks=ranks)
    messages = {outcome.message if isinstance(outcome, Raised) else str(outcome) for outcome in run.outcomes}
    assert len(messages) == 1
    assert message.replace("0.", "" if of_layer else "0.").replace("Sequential", kind) in messages.pop()


def test_a_state_in_place_of_a_module_on_one_rank_is_an_error_on_all(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        layer = Linear(comm, (ranks, 1, 1), (4, 3), SEQUENTIAL[0])
        twin = SEQUENTIAL[0]
        layer.load_sequential(twin.state_dict() if comm.Get_rank() == 0 else twin)  # type: ignore[arg-type]

    run = adjointlab_world.run(lambda context, _: body(context.comm), ranks=ranks)
    assert {str(outcome) for outcome in run.outcomes} == {
        "raised TypeError: module: an OrderedDict is not a torch.nn.Module; load_sequential_state_dict takes a state_dict"
    }


def test_the_other_ranks_may_have_no_state_at_all(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        network = from_sequential(SEQUENTIAL, comm, (ranks, 1), (4, 3))
        state = {name: torch.full_like(value, 3) for name, value in SEQUENTIAL.state_dict().items()}
        network.load_sequential_state_dict(state if comm.Get_rank() == 0 else None, root=0)
        assert all(torch.equal(value, state[name]) for name, value in network.sequential_state_dict().items())

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_root_that_differs_by_rank_is_an_error_on_all(adjointlab_world: World) -> None:
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        network = from_sequential(SEQUENTIAL, comm, (2, 1), (4, 3))
        with pytest.raises(ValueError, match="root: differs by rank: 0 on rank 0, 1 on rank 1"):
            network.load_sequential_state_dict(SEQUENTIAL.state_dict(), root=comm.Get_rank())

    run_on_ranks(adjointlab_world, 2, body)


def test_an_input_of_another_element_type_is_told_how_a_layer_is_made_for_it(adjointlab_world: World) -> None:
    text = error_of_every_rank(
        adjointlab_world,
        1,
        lambda comm: from_sequential(nn.Sequential(nn.ReLU()), comm, (1, 1), (4, 3))(
            torch.ones(4, 3, dtype=torch.float64)
        ),
    )
    assert text.startswith("x: ")
    assert text.endswith(
        "; convert it by .to(torch.float32), or make the layer, network or loss with dtype=torch.float64, from a module of that element "
        "type if it has parameters"
    )


def test_parameters_in_place_of_the_model_are_refused_by_that_name() -> None:
    with pytest.raises(
        TypeError, match=r"model: a generator is not a torch\.nn\.Module; pass the model itself"
    ):
        clip_grad_norm_(SEQUENTIAL.parameters(), 1.0)  # type: ignore[arg-type]


LAYOUT = Layout((8, 5), Partition((4, 1)))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((torch.ones(13, 5), LAYOUT, 0), ValueError, r"whole: shape \(13, 5\), but the layout .* \(8, 5\)"),
        ((torch.ones(3, 5), LAYOUT, 3), ValueError, r"whole: shape \(3, 5\)"),
        ((torch.ones(8, 5, 1), LAYOUT, 9), ValueError, r"whole: shape \(8, 5, 1\)"),
        (
            (np.ones((8, 5)), LAYOUT, 0),
            TypeError,
            "whole: an ndarray is not a torch.Tensor; torch.from_numpy",
        ),
        ((None, LAYOUT, 0), TypeError, "whole: None is not a torch.Tensor"),
        ((LAYOUT, torch.ones(8, 5), 0), TypeError, "layout: a Tensor is not a Layout"),
        ((torch.ones(8, 5), LAYOUT, -1), ValueError, "rank: -1 is negative"),
        ((torch.ones(8, 5), LAYOUT, "0"), TypeError, "rank: '0' is not a whole number"),
    ],
    ids=["more rows", "fewer rows", "order", "array", "None", "swapped", "negative rank", "text"],
)
def test_a_window_is_cut_from_a_tensor_of_the_layouts_shape_alone(
    arguments: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        local_window(*arguments)
