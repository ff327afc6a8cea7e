"""Broadcasts of small tensors over the same workers in one message: of a weight and its bias.

    forward    (a, b) → [a b], one behind the other      B [a b]      its parts â, b̂
    adjoint    (δâ, δb̂) → [δâ δb̂]                       B* [δâ δb̂]   its parts δa, δb

The time of a small message hardly depends on its length, and the time of an application not at all: their number counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Final

from adjointlab.core import arrays
from adjointlab.core.direct_sum import DirectSumOperator
from adjointlab.core.layout import Layout
from adjointlab.core.space import Space, check_arguments
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.typing import Array

__all__ = ["CoalescedBroadcast", "coalesced"]

MOST_BYTES: Final = 2**16
"""The most that a worker gets in a message of several tensors: larger ones are not worth the copies into it."""


class CoalescedBroadcast(DirectSumOperator):
    """The direct sum of `broadcasts`, by the broadcast `joined` of all their local tensors behind one another.

    Raises `ValueError` in a call, before its first message, for local tensors that are not what the layouts say.
    """

    def __init__(self, broadcasts: Sequence[Broadcast], joined: Broadcast) -> None:
        super().__init__(*broadcasts)
        self.batched = False  # a trailing dimension would not stay behind each tensor's own
        self._joined, self._rank = joined, joined.rank

    def forward(self, *x: Array) -> tuple[Array, ...]:
        """The local tensors of B x_0, B x_1, ..."""
        return self._moved(self.domain, self.codomain, self._joined.forward, x)

    def adjoint(self, *y: Array) -> tuple[Array, ...]:
        """The local tensors of B* y_0, B* y_1, ..."""
        return self._moved(self.codomain, self.domain, self._joined.adjoint, y)

    def _moved(
        self, source: Space, target: Space, move: Callable[[Array], Array], local: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        check_arguments(source.tensors, local, self._rank)
        held = arrays.in_numpy(*local)
        sizes = [math.prod(array.shape) for array in held]
        sent = arrays.empty((sum(sizes),), source.tensors[0].dtype, held[0])
        start = 0
        for array, size in zip(held, sizes, strict=True):
            arrays.copy_into(sent[start : start + size], array.reshape((-1,)))
            start += size
        moved, results, start = move(sent), [], 0
        for tensor in target.tensors:
            shape = tensor.layout.local_shape(self._rank)
            stop = start + math.prod(shape)
            results.append(arrays.of_library(moved[start:stop].reshape(shape), local[0]))
            start = stop
        return tuple(results)


def coalesced(*broadcasts: Broadcast) -> CoalescedBroadcast | None:
    """The broadcasts as one operator; `None` where they have other workers, no message or a large one, which is the same on all ranks."""
    first = broadcasts[0]
    source, target = first.one.layout.partition, first.many.layout.partition
    if any(
        (each.one.layout.partition, each.many.layout.partition) != (source, target) for each in broadcasts
    ):
        return None
    # What is joined has one dimension, which can lie along one of the partition's.
    cut = [dim for dim, side in enumerate(source.shape) if side > 1]
    if first.is_identity or len(cut) > 1 or len({each.one.dtype for each in broadcasts}) > 1:
        return None
    sizes = [sum(each.one.layout.local_size(rank) for each in broadcasts) for rank in source.ranks]
    if max(sizes) * first.one.element.itemsize > MOST_BYTES:
        return None
    ends = [0, *accumulate(sizes)]
    layout = Layout((ends[-1],), source, [list(pairwise(ends))], (cut[0] if cut else 0,))
    joined = Broadcast(first.comm, layout, target, dtype=first.one.dtype, preserve_batch=False)
    return CoalescedBroadcast(broadcasts, joined)
