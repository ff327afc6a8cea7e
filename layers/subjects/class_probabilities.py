"""Cases of the cross-entropy with class probabilities as targets."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.layers.losses import CrossEntropyLoss
from adjointlab.layers.subjects.class_losses import over_classes, with_class_weights
from adjointlab.layers.subjects.common import Arguments, layer_of, layer_subject, twin_of, with_legal_input
from adjointlab.typing import Communicator

__all__ = ["probability_cross_entropies", "probability_loss"]


def _with_legal_targets(layer: nn.Module) -> nn.Module:
    """Return the layer with positive targets, like probabilities; neither layer nor twin requires a sum of 1."""
    return with_legal_input(layer, lambda drawn: drawn.abs() / 4)


def probability_loss(
    comm: Communicator, *, kind: type[CrossEntropyLoss] = CrossEntropyLoss, **case: Any
) -> nn.Module:
    """Return a cross-entropy that gets numbers from 0 to 1."""
    return _with_legal_targets(layer_of(kind)(comm, probabilities=True, **with_class_weights(case)))


def _sequential(**case: Any) -> nn.Module:
    return _with_legal_targets(twin_of(nn.CrossEntropyLoss)(**with_class_weights(case)))


@layer_subject(layer=probability_loss, sequential=_sequential, name="CrossEntropyLossOfProbabilities")
def probability_cross_entropies(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs as for the cross-entropy with classes as targets; probabilities with the same cut."""
    arguments = over_classes(draw, ranks)
    del arguments["ignore_index"]
    return arguments | {"label_smoothing": draw(st.sampled_from((0.0, 0.25, 0.1, 1.0)))}
