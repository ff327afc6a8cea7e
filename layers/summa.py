"""The algorithms of :mod:`~adjointlab.layers.matrix_product`, described there in the paper's notation, as functions of local blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from adjointlab.core.layout import Layout, Window
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition
from adjointlab.layers.differentiable import carried, connected
from adjointlab.layers.grids import with_index_zero
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.typing import Communicator

__all__ = ["LocalProduct", "Panels", "StationaryA", "StationaryC", "transposed"]

LocalProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function from this rank's blocks of A and B to that of C. Collective."""


@dataclass(frozen=True)
class Panels:
    """The largest width of a panel, and True if it is sent again in the backward pass instead of being saved for it."""

    width: int | None = None
    recompute: bool = True

    def of(self, windows: Sequence[Window]) -> list[Window]:
        """Return the ranges into which all windows cut a dimension, none of them wider than `width`."""
        ends = sorted({end for window in windows for end in window})
        return [
            (start, min(start + (self.width or stop), stop))
            for first, stop in pairwise(ends)
            for start in range(first, stop, self.width or stop)
        ]

    def product(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        moves_of_a: Sequence[LinearOperator],
        moves_of_b: Sequence[LinearOperator],
    ) -> torch.Tensor:
        """Return the product of local blocks after some moves, in the layer's element type, even under autocast."""
        # In older versions of torch a checkpoint has no forward mode.
        if not self.recompute or forward_ad._current_level >= 0:
            return _product(a, b, moves_of_a, moves_of_b).to(a.dtype)
        product = checkpoint(
            _product, a, b, moves_of_a, moves_of_b, use_reentrant=False, preserve_rng_state=False
        )
        return cast("torch.Tensor", product).to(a.dtype)


class _Panel:
    """A range of a dimension of a matrix, on the workers that have it: those of one row or column of the grid."""

    def __init__(self, whole: Layout, dim: int, window: Window, rank: int) -> None:
        axis, partition = whole.axes[dim], whole.partition
        assert axis is not None
        owner = next(i for i, (start, stop) in enumerate(whole.windows[dim]) if start <= window[0] < stop)
        line = partition.subpartitions([d for d in range(partition.order) if d != axis])[owner]
        sides = [1 if d == axis else side for d, side in enumerate(partition.shape)]
        width, start = window[1] - window[0], whole.windows[dim][owner][0]
        shape, windows = list(whole.shape), list(whole.windows)
        shape[dim], windows[dim] = width, ((0, width),)
        self.layout = Layout(shape, Partition(sides, line.ranks), windows, whole.axes)
        self.is_own = line.is_active(rank)
        self._part = (dim - whole.order, window[0] - start, width)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the panel's part of a local block; without elements on other workers."""
        if self.is_own:
            return x.narrow(*self._part)
        return x.reshape(-1)[:0].reshape((0,) * x.ndim)


class StationaryC:
    """Outer products of panels: columns of A and rows of B."""

    def __init__(
        self, comm: Communicator, a: Layout, b: Layout, c: Layout, dtype: str, panels: Panels
    ) -> None:
        rank, inner = comm.Get_rank(), a.order - 1
        self.shape, self.panels = c.local_shape(rank), panels
        self.steps = [
            tuple(
                (part, Broadcast(comm, part.layout, whole.partition, dtype=dtype, preserve_batch=False))
                for part, whole in (
                    (_Panel(a, inner, window, rank), a),
                    (_Panel(b, inner - 1, window, rank), b),
                )
            )
            for window in panels.of([*a.windows[-1], *b.windows[-2]])
        ]

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = connected(a.new_zeros(self.shape), a, b)
        for (columns, spread_a), (rows, spread_b) in self.steps:
            c = c + self.panels.product(columns.of(a), rows.of(b), (spread_a,), (spread_b,))
        return c


class StationaryA:
    """Panels of columns of B and C, one after the other; each worker multiplies its block of A."""

    def __init__(
        self, comm: Communicator, a: Layout, b: Layout, c: Layout, dtype: str, panels: Panels
    ) -> None:
        partition, rank, last = a.partition, comm.Get_rank(), a.order - 1
        lead, (rows, columns) = a.axes[:-2], cast("tuple[int, int]", a.axes[-2:])
        self.shape, self.panels = c.local_shape(rank), panels
        self.steps = []
        for window in panels.of(b.windows[-1]):
            source, target = _Panel(b, last, window, rank), _Panel(c, last, window, rank)
            whole = source.layout.windows[-1]
            # The inner dimension, cut over the rows of the grid, is moved to lie along the columns, like that of A.
            turned = Layout(
                source.layout.shape,
                with_index_zero(partition, rows),
                [*a.windows[:-2], a.windows[-1], whole],
                (*lead, columns, None),
            )
            moves: list[LinearOperator] = []
            if turned != source.layout:
                moves.append(Repartition(comm, source.layout, turned, dtype=dtype))
            moves.append(Broadcast(comm, turned, partition, dtype=dtype, preserve_batch=False))
            summands = Layout(target.layout.shape, partition, [*a.windows[:-1], whole], (*lead, rows, None))
            total = SumReduce(comm, summands, target.layout.partition, dtype=dtype, preserve_batch=False)
            self.steps.append((source, tuple(moves), total, target.is_own))

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        own: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for source, moves, total, is_own in self.steps:
            summand = self.panels.product(a, source.of(b), (), moves)
            (own if is_own else others).append(carried(total, summand))
        c = torch.cat(own, -1) if own else a.new_zeros(self.shape)
        return connected(c, a, b, *others)


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    moves_of_a: Sequence[LinearOperator],
    moves_of_b: Sequence[LinearOperator],
) -> torch.Tensor:
    """Return the product of local blocks, after some moves."""
    for move in moves_of_a:
        a = carried(move, a)
    for move in moves_of_b:
        b = carried(move, b)
    return a @ b


def transposed(layout: Layout) -> Layout:
    """Return the layout of the transposed matrices, over the transposed grid."""
    *lead, rows, columns = range(layout.order)
    order = (*lead, columns, rows)
    partition = layout.partition
    turned = Partition(
        [partition.shape[dim] for dim in order],
        torch.tensor(partition.ranks).reshape(partition.shape).mT.flatten().tolist(),
    )
    return Layout([layout.shape[dim] for dim in order], turned, [layout.windows[dim] for dim in order])
