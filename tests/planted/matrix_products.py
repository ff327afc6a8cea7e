"""Slips in the matrix multiplication: which panels meet, and which gradients and products are summed."""

from __future__ import annotations

from typing import Any

import torch

from adjointlab.layers.matrix_product import MatrixProduct
from adjointlab.layers.summa import StationaryA, StationaryC
from adjointlab.primitives.sum_reduce import SumReduce
from tests.planted.altered import Altered, not_reduced


class PanelOfAnotherStep(MatrixProduct):
    """Multiplies the first columns of A with the last rows of B, where panels are as wide."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if isinstance(self.product, StationaryC):
            steps = self.product.steps
            widths = [columns.layout.shape[-1] for (columns, _), _ in steps]
            if len(set(widths)) == 1:
                self.product.steps = [
                    (columns, rows) for (columns, _), (_, rows) in zip(steps, reversed(steps), strict=True)
                ]


class PanelGradientNotSummed(MatrixProduct):
    """Takes the gradient of a panel of B that its own workers have for that of all rows of the grid."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if isinstance(self.product, StationaryC):
            self.product.steps = [
                (columns, (rows, not_reduced(spread))) for columns, (rows, spread) in self.product.steps
            ]


class OwnSummandForTheProduct(MatrixProduct):
    """Takes, if a factor stays, the own summand of the product's panel for the sum over the columns of the grid."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if isinstance(self.product, StationaryA):
            self.product.steps = [
                (source, moves, _own_summand(total), is_own)
                for source, moves, total, is_own in self.product.steps
            ]


def _own_summand(total: SumReduce) -> Altered:
    layout, rank = total.codomain.tensors[0].layout, total.comm.Get_rank()

    def own(x: torch.Tensor) -> torch.Tensor:
        return x.clone() if layout.partition.is_active(rank) else x.new_zeros(layout.local_shape(rank))

    return Altered(total, forward=own)
