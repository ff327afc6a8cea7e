"""A single layer is refused of a module that has been added to, in the words of a network of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from adjointlab.layers import (
    BatchNorm1d,
    Conv1d,
    CrossEntropyLoss,
    Linear,
    MaxPool1d,
    MultiheadAttention,
    from_sequential,
)
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, run_on_ranks


def _hooked(register: str) -> Callable[[nn.Linear], object]:
    return lambda module: getattr(module, register)(lambda *_: None)


def _watched(register: str) -> Callable[[nn.Linear], object]:
    return lambda module: getattr(module.weight, register)(lambda _: None)


def _frozen(module: nn.Linear) -> None:
    nn.utils.weight_norm(module.requires_grad_(False))


def _computed(module: nn.Linear) -> None:
    weight = module.weight
    del module.weight
    module.weight = weight * 2  # type: ignore[assignment]


PRUNED = "has a weight computed from other tensors, as by pruning or weight_norm, which would be lost; prune.remove"

ADDITIONS: dict[str, tuple[Callable[[nn.Linear], object], str]] = {
    "forward": (lambda module: setattr(module, "forward", lambda x: 2 * x), "has a forward of its own"),
    "forward hook": (_hooked("register_forward_hook"), "has forward hooks"),
    "pre-hook": (_hooked("register_forward_pre_hook"), "has forward pre hooks"),
    "backward hook": (_hooked("register_full_backward_hook"), "has backward hooks"),
    "backward pre-hook": (_hooked("register_full_backward_pre_hook"), "has backward pre hooks"),
    "state hook": (_hooked("register_state_dict_post_hook"), "has state dict hooks"),
    "hook of loading": (_hooked("register_load_state_dict_post_hook"), "has load state dict post hooks"),
    "gradient hook": (_watched("register_hook"), "has hooks of its weight"),
    "accumulation hook": (_watched("register_post_accumulate_grad_hook"), "has hooks of its weight"),
    "pruning": (lambda module: prune.l1_unstructured(module, "weight", 0.5), PRUNED),
    "weight_norm": (nn.utils.weight_norm, PRUNED),
    "frozen weight_norm": (_frozen, PRUNED),
    "spectral_norm": (nn.utils.spectral_norm, PRUNED),
    "a computed weight": (_computed, PRUNED),
    "parametrization": (parametrizations.weight_norm, "has parametrizations"),
    "one tensor twice": (lambda module: setattr(module, "bias", module.weight), "are one tensor"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(("add", "message"), ADDITIONS.values(), ids=ADDITIONS)
def test_an_addition_that_a_layer_would_not_have_is_the_error_of_a_network_of_it(
    adjointlab_world: World, add: Callable[[nn.Linear], object], message: str
) -> None:
    module = nn.Linear(3, 3)
    add(module)
    text = error_of_every_rank(
        adjointlab_world, 1, lambda comm: from_sequential(nn.Sequential(module), comm, (1, 1), (4, 3))
    )
    assert message in text
    place = f"0 ({type(module).__name__})"
    of_layer = text.replace("network", "module").replace(place, "the module itself").replace("0.", "")
    for make in (
        lambda comm: Linear(comm, (1, 1, 1), (4, 3), module),
        lambda comm: Linear.from_sequential(module, comm, (1, 1, 1), (4, 3)),
    ):
        assert error_of_every_rank(adjointlab_world, 1, make) == of_layer


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Any], object]]] = {
    "a convolution": (lambda: nn.Conv1d(2, 3, 3), lambda comm, it: Conv1d(comm, (1, 1, 1, 1), (1, 2, 8), it)),
    "a normalisation": (lambda: nn.BatchNorm1d(3), lambda comm, it: BatchNorm1d(comm, (1, 1), (4, 3), it)),
    "a pool": (lambda: nn.MaxPool1d(2), lambda comm, it: MaxPool1d(comm, (1, 1, 1), (1, 2, 8), it)),
    "a loss": (nn.CrossEntropyLoss, lambda comm, it: CrossEntropyLoss(comm, (1, 1), (4, 3), it)),
    "attention": (
        lambda: nn.MultiheadAttention(4, 2),
        lambda comm, it: MultiheadAttention(comm, (1, 1, 1), (3, 2, 4), it),
    ),
}


@pytest.mark.parametrize(("make_module", "make"), LAYERS.values(), ids=LAYERS)
def test_each_kind_of_layer_refuses_a_hook_in_any_part_of_its_module(
    adjointlab_world: World, make_module: Callable[[], nn.Module], make: Callable[[Any, Any], object]
) -> None:
    module = make_module()

    def body(comm: Any) -> None:
        make(comm, module)

    run_on_ranks(adjointlab_world, 1, body)
    *_, part = module.modules()
    part.register_forward_hook(lambda *_: None)
    text = error_of_every_rank(adjointlab_world, 1, lambda comm: make(comm, module))
    assert "has forward hooks, which would be lost" in text


def test_what_is_removed_is_no_addition(adjointlab_world: World) -> None:
    module = nn.Linear(3, 3)
    module.register_forward_hook(lambda *_: None).remove()
    module.weight.register_hook(lambda _: None).remove()
    prune.l1_unstructured(module, "weight", 0.5)
    prune.remove(module, "weight")

    def body(comm: Any) -> None:
        layer = Linear(comm, (1, 1, 1), (4, 3), module)
        assert torch.equal(layer.weight, module.weight)

    run_on_ranks(adjointlab_world, 1, body)
