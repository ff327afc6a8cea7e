"""A small loss as a user writes one, and planted bugs of it."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.layers.differentiable import _Apply, anchor_of, applied, apply, connected
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.grids import with_index_zero
from adjointlab.primitives.sum_reduce import SumReduce


class MeanSquaredError(DistributedModule):
    """The mean over all elements of (x - target)², on the first worker; x and target are cut in any way."""

    rounding = 2.0**-48  # normwise: a quotient by the number of elements, and products with it

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout.partition)
        workers, order = layout.partition, layout.partition.order
        self.domain = al.Space(al.Tensor(layout, name="x"), al.Tensor(layout, name="target"))
        y = al.Layout((), with_index_zero(workers, *range(order)), [], ())
        self.codomain = al.Space(y, name="y")
        self.sum_y = SumReduce(comm, al.Layout((), workers, [], ()), y.partition, preserve_batch=False)
        self.elements = math.prod(layout.shape)

    def summand(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((x - target) ** 2).sum() / self.elements

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.partition.is_active(self.rank):
            y = self.summand(x, target)
        else:
            layout = self.sum_y.domain.tensors[0].layout
            y = connected(x.new_zeros(layout.local_shape(self.rank)), x, target)
        result: torch.Tensor = apply(self.sum_y, y)
        return result


class MeanOfLocalMeans(MeanSquaredError):
    """The mean over the workers of the mean of each."""

    def summand(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((x - target) ** 2).sum() / max(1, x.numel()) / self.partition.size


class _WithoutAWayBack(_Apply):
    """Nothing leads from the application of the adjoint back to that of the operator."""

    @staticmethod
    def backward(ctx: Any, *y: torch.Tensor) -> Any:
        return None, None, *applied(ctx.operator.H, y[:-1])


class QuotientOnTheRootAlone(MeanSquaredError):
    """Divides two sums where they arrive, and nowhere else: a second derivative leads the root alone back to them."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = ((x - target) ** 2).sum()
        if not self.partition.is_active(self.rank):
            y = connected(x.new_zeros(self.sum_y.domain.tensors[0].layout.local_shape(self.rank)), x, target)
        total, number = (
            self.summed(each) for each in (y, torch.full_like(y, x.numel(), requires_grad=False))
        )
        return total / number if total.numel() else connected(total, number)

    def summed(self, y: torch.Tensor) -> torch.Tensor:
        return _WithoutAWayBack.apply(anchor_of((y,)), self.sum_y, y)[0]  # type: ignore[no-any-return, no-untyped-call]


def _mean_squared_error(**_: Any) -> torch.nn.Module:
    return torch.nn.MSELoss()


@al.subject(layer=MeanSquaredError, sequential=_mean_squared_error, twice_differentiable=True)
def errors(draw: Any, ranks: int) -> dict[str, Any]:
    """Tensors with elements, cut unevenly, so that workers hold none."""
    shape = [draw(st.integers(1, 6)) for _ in range(draw(st.integers(1, 2)))]
    return {"layout": draw(al.strategies.layouts(ranks, whole=False, shape=shape))}
