"""Cases of the cross-entropy with class probabilities as targets."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.layers.losses import CrossEntropyLoss
from adjointlab.layers.subjects.class_losses import class_weights, over_classes
from adjointlab.layers.subjects.common import Arguments, layer_subject
from adjointlab.typing import Communicator

__all__ = ["probability_cross_entropies", "probability_loss"]


def _with_legal_targets(layer: nn.Module) -> nn.Module:
    """The layer, with targets made positive, as probabilities are; neither layer nor twin asks for a sum of 1."""

    def prepare(_: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits, drawn = inputs
        return logits, drawn.abs() / 4

    layer.register_forward_pre_hook(prepare)
    return layer


def _weights(input_shape: tuple[int, ...], weighted: bool, dtype: str) -> torch.Tensor | None:
    return class_weights(input_shape[min(1, len(input_shape) - 1)], weighted, dtype)


def probability_loss(
    comm: Communicator,
    *,
    kind: type[CrossEntropyLoss] = CrossEntropyLoss,
    input_shape: tuple[int, ...],
    weighted: bool,
    dtype: str,
    **arguments: Any,
) -> nn.Module:
    """A cross-entropy that is given numbers from 0 to 1."""
    layer = kind(
        comm,
        input_shape=input_shape,
        weight=_weights(input_shape, weighted, dtype),
        dtype=getattr(torch, dtype),
        probabilities=True,
        **arguments,
    )
    return _with_legal_targets(layer)


def _sequential(
    *,
    input_shape: tuple[int, ...],
    weighted: bool,
    dtype: str,
    reduction: str,
    label_smoothing: float,
    **_: Any,
) -> nn.Module:
    return _with_legal_targets(
        nn.CrossEntropyLoss(
            _weights(input_shape, weighted, dtype), reduction=reduction, label_smoothing=label_smoothing
        )
    )


@layer_subject(layer=probability_loss, sequential=_sequential, name="CrossEntropyLossOfProbabilities")
def probability_cross_entropies(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs as of the cross-entropy with classes as targets; probabilities that are cut as they are."""
    arguments = over_classes(draw, ranks)
    del arguments["ignore_index"]
    return arguments | {"label_smoothing": draw(st.sampled_from((0.0, 0.25, 0.1, 1.0)))}
