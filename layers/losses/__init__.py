"""Distributed losses: cross-entropy and mean squared error, and the reduction that they share."""

from adjointlab.layers.losses.cross_entropy import CrossEntropyLoss
from adjointlab.layers.losses.mean_squared_error import MSELoss
from adjointlab.layers.losses.reduction import Loss, SharedSum

__all__ = ["CrossEntropyLoss", "Loss", "MSELoss", "SharedSum"]
