"""Mean and variance over dimensions of a tensor that is cut: two passes, with sums over the elements of each worker.

    forward    μ = 𝒜 Σ x / n                                         n elements of the global tensor in each statistic
               d = x - μ
               (s, q) = 𝒜 (Σ d, Σ d²)
               σ² = q / n - (s / n)²
    adjoint    that of each step in the reverse order, with 𝒜* = 𝒜

Σ sums over a worker's elements of a statistic, and 𝒜 over the workers that have elements of it. Workers merge sums, not means, and
n is known: so uneven and empty parts are weighted by their elements, whereas a mean of means would weight all parts equally. The
second pass measures deviations from the global mean: merging Σ x² instead would cancel all digits of a variance that is small
relative to the mean's square. Without rounding s is 0; it corrects for the rounding of μ (the corrected two-pass algorithm of
[Chan83]).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from adjointlab.core.layout import Layout
from adjointlab.layers.differentiable import carried, connected, in_graph
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.typing import Communicator

__all__ = ["SUMS", "Moments"]

SUMS = torch.float64
"""Statistics are accumulated in double precision, as torch's are."""


class Moments:
    """Mean and variance over the dimensions `dims` of a tensor of layout `x`, each dimension of which lies along one of the partition.

    The other dimensions are kept: a statistic has their windows, and every worker along `dims` has the same. With `groups`, dimension 1 is
    reduced to groups of neighbouring indices, which may lie on several workers; every worker has the statistics of all groups.

    :meth:`deviation` and :meth:`mean_square` are collective; a worker without elements takes part with zeros that depend on x, so that
    backward is collective too. If the global shape is empty, nothing is sent.
    """

    def __init__(self, comm: Communicator, x: Layout, dims: Sequence[int], groups: int | None = None) -> None:
        kept = [dim for dim in range(x.order) if dim not in dims]
        self.dims = tuple(dims)
        shape, windows = [x.shape[dim] for dim in kept], [x.windows[dim] for dim in kept]
        axes: list[int | None] = list(kept)
        self._group_of: torch.Tensor | None = None
        if groups:
            window = x.window(comm.Get_rank())
            start, stop = (0, 0) if window is None else window[1]
            self._group_of = torch.arange(start, stop) * groups // max(1, x.shape[1])
            at = kept.index(1)
            shape[at], windows[at], axes[at] = groups, ((0, groups),), None
        self.count = math.prod(x.shape) // max(1, math.prod(shape))
        """The number of elements of the global tensor in each statistic."""
        self.is_empty = math.prod(x.shape) == 0
        along = sorted({dim for dim in range(x.order) if dim in dims} | ({1} if groups else set()))
        layout = Layout(shape, x.partition, windows, axes)
        pairs = Layout((2, *shape), x.partition, [((0, 2),), *windows], (None, *axes))
        self.sum = AllSumReduce(comm, layout, along, dtype=dtype_name(SUMS))
        self.sum_pairs = AllSumReduce(comm, pairs, along, dtype=dtype_name(SUMS))
        rank = comm.Get_rank()
        self._is_active = x.partition.is_active(rank)
        self._shape_of_x = x.local_shape(rank)
        self._local_shape, self._shape_of_pairs = layout.local_shape(rank), pairs.local_shape(rank)

    def deviation(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return x - μ, in the element type of x (float32 for half precision), and μ and σ², in double precision."""
        x = x.to(accumulation_dtype(x.dtype))
        if self.is_empty:
            nothing = x.new_zeros(self._local_shape, dtype=SUMS)
            return in_graph(x), nothing, nothing + 1
        # Only the deviations are converted to the element type of x: so the order of the summands, which depends on the cut, has no
        # effect in float32.
        mean = carried(self.sum, self._total(x)) / self.count
        deviation = x - self.along(mean.to(x.dtype))
        if self._is_active:
            parts = torch.stack((self._total(deviation), self._total(deviation**2)))
        else:
            parts = connected(x.new_zeros(self._shape_of_pairs, dtype=SUMS), deviation)
        sums = carried(self.sum_pairs, parts) / self.count
        rest, squares = sums if self._is_active else (sums.reshape(self._local_shape),) * 2
        return deviation, mean, squares - rest**2

    def mean_square(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of x², in double precision."""
        if self.is_empty:
            return in_graph(x.new_ones(self._local_shape, dtype=SUMS))
        return carried(self.sum, self._total(x**2)) / self.count

    def along(self, statistic: torch.Tensor) -> torch.Tensor:
        """Return a tensor of one value for each statistic in a shape that broadcasts with x."""
        if not self._is_active:
            return statistic.reshape(self._shape_of_x)
        if self._group_of is not None:
            statistic = statistic.index_select(1, self._group_of.to(statistic.device))
        for dim in self.dims:
            statistic = statistic.unsqueeze(dim)
        return statistic

    def _total(self, values: torch.Tensor) -> torch.Tensor:
        """Return this worker's summand of each statistic."""
        if not self._is_active:
            return connected(values.new_zeros(self._local_shape, dtype=SUMS), values)
        total = values.sum(self.dims, dtype=SUMS) if self.dims else values.to(SUMS)
        if self._group_of is None:
            return total
        # Not a product with a matrix of zeros and ones: an infinite element would make all groups NaN.
        return total.new_zeros(self._local_shape).index_add(1, self._group_of.to(total.device), total)
