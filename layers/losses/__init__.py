"""Distributed losses: cross-entropy, those of two tensors element by element, and the reduction that they share."""

from adjointlab.layers.losses.absent import AbsentLoss
from adjointlab.layers.losses.cross_entropy import CrossEntropyLoss
from adjointlab.layers.losses.elementwise import (
    BCEWithLogitsLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    SmoothL1Loss,
)
from adjointlab.layers.losses.negative_log_likelihood import NLLLoss
from adjointlab.layers.losses.reduction import Loss, SharedSum

__all__ = [
    "AbsentLoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "Loss",
    "MSELoss",
    "NLLLoss",
    "SharedSum",
    "SmoothL1Loss",
]
