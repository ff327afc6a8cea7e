"""A module that is not alike on all ranks, in whatever a layer takes of it, is the same error on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.layers import check_values_alike
from adjointlab.spelling import described_type
from adjointlab.worlds.run import Raised
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, run_on_ranks


class Model(nn.Module):
    """A module of no chain, with a parameter of its own and an argument of which the text is another in each process."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.activation = object()
        self.norm = nn.LayerNorm(3, eps=0.1 if change == "eps" else 0.2)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.5 if change == "smoothing" else 0.0)
        self.scale = nn.Parameter(torch.ones(4 if change == "shape" else 3))
        if change == "class":
            self.norm = nn.RMSNorm(3)  # type: ignore[assignment]
        if change == "dtype":
            self.scale = nn.Parameter(self.scale.detach().double())
        if change == "mode":
            self.norm.eval()
        if change == "frozen":
            self.norm.weight.requires_grad_(False)
        if change == "value":
            self.norm.bias.detach()[1] = 1.0
        if change == "additional":
            self.head = nn.Linear(3, 3)
        if change == "tied":
            self.head = nn.LayerNorm(3, bias=False)
            self.head.weight = self.norm.weight
        if change == "meta":
            self.to("meta")

    def extra_repr(self) -> str:
        return f"activation={self.activation}"


DIFFERING = {
    "eps": "norm has other arguments on rank 1 than on rank 0: (3,), eps=0.1, elementwise_affine=True, bias=True, not (3,), eps=0.2, ",
    "smoothing": "loss has other arguments on rank 1 than on rank 0: label_smoothing=0.5, not the default ones; every rank",
    "shape": "scale has another shape on rank 1 than on rank 0: [4], not [3]; every rank gives the same module",
    "class": "norm has another class on rank 1 than on rank 0: RMSNorm, not LayerNorm; every rank",
    "dtype": "scale has another element type on rank 1 than on rank 0: torch.float64, not torch.float32; ",
    "mode": "norm has another mode on rank 1 than on rank 0: evaluation, not training; ",
    "frozen": "norm.weight has another requires_grad on rank 1 than on rank 0: False, not True; ",
    "value": "norm.bias has other values on rank 1 than on rank 0; every rank gives the same module: call torch.manual_seed",
    "additional": "head is in that of rank 1, but not of rank 0; ",
    "tied": "norm.weight and head.weight are one tensor, and layers share none",
    "meta": "scale lies on the device meta, which has no values",
}


@pytest.mark.parametrize("change", DIFFERING)
def test_a_difference_of_one_rank_is_named_on_every_rank(adjointlab_world: World, change: str) -> None:
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        check_values_alike(comm, Model(change if comm.Get_rank() == 1 else ""))

    text = error_of_every_rank(adjointlab_world, 2, body)
    assert text.startswith(f"module: {DIFFERING[change]}")


def test_a_module_that_is_alike_is_accepted_though_the_texts_of_its_objects_differ(
    adjointlab_world: World,
) -> None:
    run_on_ranks(
        adjointlab_world, min(adjointlab_world.ranks, 2), lambda comm: check_values_alike(comm, Model())
    )


def test_a_difference_of_the_module_itself_is_named(adjointlab_world: World) -> None:
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")
    text = error_of_every_rank(
        adjointlab_world, 2, lambda comm: check_values_alike(comm, nn.ELU(1.0 + comm.Get_rank()))
    )
    assert text.startswith(
        "module: the module itself has other arguments on rank 1 than on rank 0: alpha=2.0, not alpha=1.0"
    )


@pytest.mark.parametrize("wrong", [None, nn.Linear, [nn.Identity()]], ids=["none", "a class", "a list"])
def test_what_is_no_module_on_one_rank_is_a_type_error_on_every_rank(
    adjointlab_world: World, wrong: Any
) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        check_values_alike(comm, wrong if comm.Get_rank() == ranks - 1 else nn.Identity())

    run = adjointlab_world.run(lambda context, _: body(context.comm), ranks=ranks)
    for outcome in run.outcomes:
        assert isinstance(outcome, Raised)
        assert (outcome.kind, outcome.message) == (
            "TypeError",
            f"module: {described_type(wrong)} is not a torch.nn.Module",
        )
