"""Cases of the losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.core.layout import Window
from adjointlab.engine.subject import subject
from adjointlab.layers.losses import CrossEntropyLoss, Loss, MSELoss
from adjointlab.layers.subjects.common import Arguments, cuts_over, dtypes, layer_of, twin_of
from adjointlab.typing import Communicator

__all__ = ["cross_entropies", "mean_squared_errors"]


def _with_legal_targets(
    layer: nn.Module, classes: int, ignore_index: int, windows: Sequence[Window] | None
) -> nn.Module:
    """The layer, with targets made class indices: drawn integers modulo the classes, of which some are ignored.

    `windows` are those of the layer's targets (`None` on a rank that has none). The first target of the global tensor is
    never ignored, so that a mean is over something.
    """

    def prepare(_: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits, drawn = inputs
        first = torch.tensor([]) if windows is None else torch.ones(())
        for start, stop in windows or ():
            first = first[..., None] * (torch.arange(start, stop) == 0)
        legal = drawn.abs() % classes
        away = (legal + 1) % classes if classes > 1 else legal
        kept = torch.where(legal == ignore_index, away, legal)
        first = first.reshape(drawn.shape) > 0
        return logits, torch.where(first, kept, torch.where(drawn < -1, ignore_index, legal))

    layer.register_forward_pre_hook(prepare)
    return layer


def _class_weights(classes: int, weighted: bool, dtype: str) -> torch.Tensor | None:
    return (torch.arange(classes) % 3 + 1).to(getattr(torch, dtype)) / 2 if weighted else None


def _cross_entropy(
    comm: Communicator, *, input_shape: tuple[int, ...], weighted: bool, dtype: str, **arguments: Any
) -> nn.Module:
    classes = input_shape[min(1, len(input_shape) - 1)]
    layer = CrossEntropyLoss(
        comm,
        input_shape=input_shape,
        weight=_class_weights(classes, weighted, dtype),
        dtype=getattr(torch, dtype),
        **arguments,
    )
    windows = layer.domain.tensors[1].layout.window(comm.Get_rank())
    return _with_legal_targets(layer, classes, arguments["ignore_index"], windows)


def _sequential_cross_entropy(
    *, input_shape: tuple[int, ...], weighted: bool, dtype: str, **arguments: Any
) -> nn.Module:
    class_dim = min(1, len(input_shape) - 1)
    module = nn.CrossEntropyLoss(
        _class_weights(input_shape[class_dim], weighted, dtype),
        **{name: arguments[name] for name in ("ignore_index", "reduction", "label_smoothing")},
    )
    windows = tuple((0, side) for dim, side in enumerate(input_shape) if dim != class_dim)
    return _with_legal_targets(module, input_shape[class_dim], arguments["ignore_index"], windows)


def _loss_arguments(draw: DrawFn, ranks: int, shape: tuple[int, ...], reduction: str) -> Arguments:
    """Arguments of all losses: any cut of the input, and any rank, or all workers, for the loss."""
    dtype, all_reduce = draw(dtypes), draw(st.booleans())
    partition = draw(strategies.partitions(ranks, len(shape), whole=False))
    cuts = cuts_over(draw, shape, partition)
    return {
        "partition": partition,
        "input_shape": shape,
        "reduction": reduction,
        "root": draw(st.integers(0, ranks - 1)),
        "all_reduce": all_reduce,
        "dtype": dtype,
        "cuts": cuts,
    }


@subject(
    layer=_cross_entropy,
    sequential=_sequential_cross_entropy,
    twice_differentiable=True,
    name="CrossEntropyLoss",
)
def cross_entropies(draw: DrawFn, ranks: int) -> Arguments:
    """Logits of order one to four in any cut; class weights, label smoothing and ignored targets; where legal, empty batches."""
    order = draw(st.integers(1, 4))
    reduction = draw(st.sampled_from(Loss.reduction_names))
    classes = draw(st.integers(1, 6))
    least = 1 if reduction == "mean" else 0
    sides = [draw(st.integers(least, 6 if order == 2 else 3)) for _ in range(order - 1)]
    options = {
        "weighted": draw(st.booleans()),
        # With one class, to ignore it leaves no target.
        "ignore_index": draw(st.sampled_from((-100, 0, 2) if classes > 1 else (-100, 2))),
        "label_smoothing": draw(st.sampled_from((0.0, 0.25, 0.1, 1.0))),
    }
    shape = (*sides[:1], classes, *sides[1:])
    return {**options, **_loss_arguments(draw, ranks, shape, reduction)}


@subject(layer=layer_of(MSELoss), sequential=twin_of(nn.MSELoss), twice_differentiable=True, name="MSELoss")
def mean_squared_errors(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors of order zero to four in any cut, with an element at least where there is a mean."""
    reduction = draw(st.sampled_from(Loss.reduction_names))
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 0)))))
    if reduction == "mean":
        shape = tuple(max(1, side) for side in shape)
    return _loss_arguments(draw, ranks, shape, reduction)
