"""Assertions that a layer agrees with its sequential twin, on given data: exactly equal, NaN to NaN."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.windows import local_window
from adjointlab.worlds.run import Raised
from adjointlab.worlds.world import World

__all__ = [
    "assert_matches_twin",
    "error_of_every_rank",
    "integer_cotangent",
    "reversed_line",
    "run_on_ranks",
    "sines",
]


def run_on_ranks(world: World, ranks: int, body: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Collective: the values that ``body(comm)`` returns, by rank."""
    run = world.run(lambda context, _: body(context.comm), ranks=ranks)
    assert run.completed, (run.outcomes, run.findings)
    return run.values


def assert_goes_from_and_to(
    comm: Any, kind: Any, twin: nn.Module, partition: Partition, shape: tuple[int, ...], **options: Any
) -> None:
    """Assert that a layer of the `kind` that is made from `twin` has its values, and gives them back."""
    torch.manual_seed(1)
    whole: Any = copy.deepcopy(twin).eval()  # each rank's own, with the same values
    whole.reset_parameters()
    layer = kind.from_sequential(whole, comm, partition, shape, **options)
    assert_matches_twin(comm, layer, whole, sines(*shape), relative=1e-13)
    back = layer.to_sequential()
    assert not back.training
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in back.state_dict().items())
    assert torch.equal(back(sines(*shape)), whole(sines(*shape)))


def error_of_every_rank(
    world: World, ranks: int, body: Callable[[Any], Any], kind: str = "ValueError"
) -> str:
    """Collective: the message of the error of that `kind` that ``body(comm)`` raises on each of at most so many `ranks` alike."""
    run = world.run(lambda context, _: body(context.comm), ranks=min(world.ranks, ranks))
    messages = {
        str(outcome).removeprefix(f"raised {kind}: ") if isinstance(outcome, Raised) else str(outcome)
        for outcome in run.outcomes
    }
    assert all(isinstance(outcome, Raised) and outcome.kind == kind for outcome in run.outcomes), messages
    assert len(messages) == 1, messages
    return messages.pop()


def sines(*shape: int) -> torch.Tensor:
    """The same data on every rank, without torch's generator, no two elements alike."""
    return torch.sin(torch.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=torch.float64)).reshape(shape)


def reversed_line(ranks: int, dim: int, order: int) -> Partition:
    """All workers along one dimension of an input of that order, the last rank first."""
    return Partition([ranks if d == dim else 1 for d in range(order)], range(ranks - 1, -1, -1))


def integer_cotangent(y: torch.Tensor) -> torch.Tensor:
    """Small integers that all differ from their neighbours."""
    return (torch.arange(y.numel(), dtype=y.dtype) * 7 % 11 - 5).reshape(y.shape)


def assert_matches_twin(
    comm: Any, layer: Any, twin: torch.nn.Module, x: torch.Tensor, *, relative: float = 0.0
) -> None:
    """Assert that the layer's outputs and its input's gradient are this rank's windows of the twin's."""
    rank = comm.Get_rank()
    whole = x.clone().requires_grad_()
    wanted = _as_tuple(twin(whole))
    local = local_window(x, layer.domain.tensors[0].layout, rank).requires_grad_()
    outputs = _as_tuple(layer(local))
    for tensor, output, want in zip(layer.codomain.tensors, outputs, wanted, strict=True):
        _assert_window(tensor.layout, rank, output, want, relative)
    cotangent = integer_cotangent(wanted[0])
    wanted[0].backward(cotangent)
    outputs[0].backward(local_window(cotangent, layer.codomain.tensors[0].layout, rank))
    _assert_window(layer.domain.tensors[0].layout, rank, local.grad, whole.grad, relative)


def _assert_window(layout: Layout, rank: int, actual: Any, whole: Any, relative: float) -> None:
    want = local_window(whole.detach(), layout, rank)
    if not layout.partition.is_active(rank):
        assert actual.numel() == 0
        return
    scale = float(whole.detach().nan_to_num(posinf=0, neginf=0).abs().max()) if whole.numel() else 0.0
    torch.testing.assert_close(actual.detach(), want, rtol=0, atol=relative * max(scale, 1.0), equal_nan=True)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
