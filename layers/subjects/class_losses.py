"""Cases of the losses over classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core.layout import Window
from adjointlab.layers.losses import CrossEntropyLoss, Loss, NLLLoss
from adjointlab.layers.losses.classes import ClassLoss
from adjointlab.layers.subjects.common import Arguments, layer_of, layer_subject, twin_of, with_legal_input
from adjointlab.layers.subjects.losses import loss_arguments
from adjointlab.typing import Communicator

__all__ = ["class_loss", "cross_entropies", "negative_log_likelihoods", "over_classes", "with_class_weights"]


def _with_legal_targets(
    layer: nn.Module, classes: int, ignore_index: int, windows: Sequence[Window] | None
) -> nn.Module:
    """Return the layer with class indices as targets: drawn integers modulo the classes, some of which are ignored.

    `windows` are those of the layer's targets (`None` on a rank that has none). The first target of the global tensor is
    never ignored, so that a mean is defined.
    """

    def prepared(drawn: torch.Tensor) -> torch.Tensor:
        first = drawn.new_empty(0) if windows is None else drawn.new_ones(())
        for start, stop in windows or ():
            first = first[..., None] * (torch.arange(start, stop, device=drawn.device) == 0)
        legal = drawn % classes
        away = (legal + 1) % classes if classes > 1 else legal
        kept = torch.where(legal == ignore_index, away, legal)
        first = first.reshape(drawn.shape) > 0
        return torch.where(first, kept, torch.where(drawn < -1, ignore_index, legal))

    return with_legal_input(layer, prepared)


def with_class_weights(case: Arguments) -> dict[str, Any]:
    """Return the arguments of a loss over classes, with a weight for each class if it is weighted; some weights are equal."""
    given: dict[str, Any] = dict(case)
    if given.pop("weighted"):
        classes = given["input_shape"][_class_dim(given["input_shape"])]
        given["weight"] = (torch.arange(classes) % 3 + 1).to(getattr(torch, given["dtype"])) / 2
    return given


def _class_dim(input_shape: Sequence[int]) -> int:
    return min(1, len(input_shape) - 1)


def class_loss(comm: Communicator, *, kind: type[ClassLoss] = CrossEntropyLoss, **case: Any) -> nn.Module:
    """Return a loss over classes that gets legal targets."""
    layer = layer_of(kind)(comm, **with_class_weights(case))
    assert isinstance(layer, ClassLoss)
    windows = layer.domain.tensors[1].layout.window(comm.Get_rank())
    return _with_legal_targets(layer, layer.classes, case["ignore_index"], windows)


def _sequential_class_loss(*, kind: type[nn.Module] = nn.CrossEntropyLoss, **case: Any) -> nn.Module:
    module = twin_of(kind)(**with_class_weights(case))
    sides = list(case["input_shape"])
    classes = sides.pop(_class_dim(sides))
    return _with_legal_targets(module, classes, case["ignore_index"], [(0, side) for side in sides])


@layer_subject(layer=class_loss, sequential=_sequential_class_loss, name="CrossEntropyLoss")
def cross_entropies(draw: DrawFn, ranks: int) -> Arguments:
    """Logits of order one to four in any cut; class weights, label smoothing and ignored targets; empty batches if legal."""
    return over_classes(draw, ranks) | {"label_smoothing": draw(st.sampled_from((0.0, 0.25, 0.1, 1.0)))}


@layer_subject(
    layer=partial(class_loss, kind=NLLLoss),
    sequential=partial(_sequential_class_loss, kind=nn.NLLLoss),
    name="NLLLoss",
)
def negative_log_likelihoods(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs as for the cross-entropy."""
    return over_classes(draw, ranks)


def over_classes(draw: DrawFn, ranks: int) -> Arguments:
    """Arguments of a loss over classes: inputs of order one to four in any cut, with at least one target if there is a mean."""
    order = draw(st.integers(1, 4))
    reduction = draw(st.sampled_from(Loss.reduction_names))
    classes = draw(st.integers(1, 6))
    least = 1 if reduction == "mean" else 0
    sides = [draw(st.integers(least, 6 if order == 2 else 3)) for _ in range(order - 1)]
    options = {
        "weighted": draw(st.booleans()),
        # With one class, ignoring it would leave no target.
        "ignore_index": draw(st.sampled_from((-100, 0, 2) if classes > 1 else (-100, 2))),
    }
    shape = (*sides[:1], classes, *sides[1:])
    return {**options, **loss_arguments(draw, ranks, shape, reduction)}
