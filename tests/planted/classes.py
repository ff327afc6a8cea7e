"""Planted bugs of embeddings, softmax, and losses over classes that workers share."""

from __future__ import annotations

from typing import Any

import torch

from adjointlab.layers.embedding import Embedding
from adjointlab.layers.losses import CrossEntropyLoss, KLDivLoss, NLLLoss
from adjointlab.layers.softmax import LogSoftmax, Softmax
from tests.planted.altered import Altered, counting_own_classes


class RowsOfOtherWorkersKept(Embedding):
    """A worker that lacks an index gives its own nearest row, where it has to give zeros."""

    def _own_rows(self, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        start, stop = self.window
        if start == stop:
            return super()._own_rows(indices, weight)
        return super()._own_rows(indices.clamp(start, stop - 1), weight)


class PaddingRowOfEveryWorker(Embedding):
    """The padding row is counted from the worker's own first row."""

    def _own_rows(self, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        padding, start = self.padding_idx, self.window[0]
        self.padding_idx = None if padding is None else padding + start
        rows = super()._own_rows(indices, weight)
        self.padding_idx = padding
        return rows


class SumsOfTheOwnPart(Softmax):
    """Divides by the sum of the worker's own exponentials."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sum = Altered(self.sum, forward=torch.clone, adjoint=torch.clone)  # type: ignore[assignment]


class LargestOfTheOwnPart(LogSoftmax):
    """Each worker subtracts the largest of its own elements before they are summed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.largest._gather = Altered(self.largest._gather, forward=torch.clone, adjoint=torch.clone)  # type: ignore[assignment]


class SmoothedOverTheOwnClasses(CrossEntropyLoss):
    """Divides the label smoothing by the number of the worker's own classes."""

    def _losses(
        self, x: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with counting_own_classes(self):
            return super()._losses(x, targets, log_sums)


class DividedByOwnWeights(NLLLoss):
    """A mean that each worker divides by the weights of its own targets, as many as there are workers too large."""

    def reduced_over_targets(self, losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        own = weights.sum()
        if self.reduction == "mean" and float(own.detach()) > 0:
            return super().reduced_over_targets(losses / own, torch.ones_like(own) / self.partition.size)
        return super().reduced_over_targets(losses, weights)


class BatchMeanOfTheOwnPart(KLDivLoss):
    """Divides by the number of samples that the worker holds."""

    def losses(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        share = self.input_shape[0] / max(1, x.shape[0]) if self.reduction == "batchmean" else 1.0
        return super().losses(x, target) * share
