"""The cross-entropy with class probabilities as targets: torch's value and gradients of both inputs, and its errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers.losses import CrossEntropyLoss
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, run_on_ranks, sines

DOUBLE = torch.float64


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_targets_of_probabilities_are_cut_as_the_logits_are(adjointlab_world: World, reduction: str) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    shape = (3, 5, 2)
    logits, targets = sines(*shape), sines(*shape).cos().softmax(1)
    weight = torch.arange(1.0, 6.0, dtype=DOUBLE)
    twin = nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=0.3)
    whole = [logits.clone().requires_grad_(), targets.clone().requires_grad_()]
    wanted = twin(*whole)
    wanted.backward(torch.ones_like(wanted))

    def body(comm: Any) -> None:
        rank = comm.Get_rank()
        layer = CrossEntropyLoss.from_sequential(
            twin, comm, Partition((1, ranks, 1)), shape, DOUBLE, probabilities=True
        )
        x, t = layer.domain.tensors
        assert x.layout == t.layout
        inputs = [local_window(each.detach(), x.layout, rank).requires_grad_() for each in whole]
        loss = layer(*inputs)
        loss.backward(torch.ones_like(loss))
        close: dict[str, Any] = {"rtol": 2.0**-44, "atol": 2.0**-44}
        if loss.numel():
            torch.testing.assert_close(loss, wanted, **close)
        for local, each in zip(inputs, whole, strict=True):
            assert each.grad is not None
            torch.testing.assert_close(local.grad, local_window(each.grad, x.layout, rank), **close)

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_mean_over_no_positions_is_nan_as_in_torch(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> bool:
        layer = CrossEntropyLoss(comm, Partition((1, ranks)), (0, 4), probabilities=True, all_reduce=True)
        x = torch.zeros(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        return bool(layer(x, x).isnan())

    assert all(run_on_ranks(adjointlab_world, ranks, body))


@pytest.mark.parametrize("given", [{"ignore_index": 2}, {"weight": torch.ones(3)}, {"label_smoothing": 1.5}])
def test_what_torch_refuses_is_refused_on_every_rank_in_its_words(
    adjointlab_world: World, given: dict[str, Any]
) -> None:
    with pytest.raises(RuntimeError) as refused:
        nn.CrossEntropyLoss(**given)(torch.zeros(3, 4), torch.zeros(3, 4))
    told = error_of_every_rank(
        adjointlab_world,
        2,
        lambda comm: CrossEntropyLoss(comm, Partition((1, comm.size)), (3, 4), probabilities=True, **given),
    )
    assert told == str(refused.value)


def test_classes_are_no_probabilities(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> str:
        layer = CrossEntropyLoss(comm, Partition((ranks, 1)), (2 * ranks, 4), probabilities=True)
        x = torch.zeros(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        targets = x if comm.Get_rank() else torch.zeros(2, dtype=torch.int64)
        with pytest.raises(ValueError, match="targets: ") as raised:
            layer(x, targets)
        return str(raised.value)

    assert len(set(run_on_ranks(adjointlab_world, ranks, body))) == 1
