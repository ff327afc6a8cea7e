"""Broadcasts of small tensors over the same workers in one message, such as a weight and its bias.

    forward    (a, b) → [a b], concatenated              B [a b]      its parts â, b̂
    adjoint    (δâ, δb̂) → [δâ δb̂]                       B* [δâ δb̂]   its parts δa, δb

The time of a small message hardly depends on its length, and that of an application not at all: only their number matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Final

from adjointlab.core import arrays
from adjointlab.core.arguments import check_arguments
from adjointlab.core.direct_sum import DirectSumOperator
from adjointlab.core.layout import Layout
from adjointlab.core.space import Space
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.typing import Array

__all__ = ["CoalescedBroadcast", "coalesced"]

MOST_BYTES: Final = 2**16
"""Limit for a message of several tensors to a worker: larger ones do not justify the copies into the message."""


class CoalescedBroadcast(DirectSumOperator):
    """The direct sum of `broadcasts`, computed by the broadcast `joined` of all their local tensors, concatenated.

    Raises `ValueError` in a call, before its first message, for local tensors that do not match the layouts.
    """

    def __init__(self, broadcasts: Sequence[Broadcast], joined: Broadcast) -> None:
        super().__init__(*broadcasts)
        self.batched = False  # concatenation does not keep each tensor's trailing dimension
        self._joined, self._rank = joined, joined.rank
        self._parts_of_one, self._parts_of_many = map(self._parts_of, (self.domain, self.codomain))

    def forward(self, *x: Array) -> tuple[Array, ...]:
        """Return the local tensors of B x_0, B x_1, ..."""
        return self._moved(self.domain, self._joined.forward, self._parts_of_many, x)

    def adjoint(self, *y: Array) -> tuple[Array, ...]:
        """Return the local tensors of B* y_0, B* y_1, ..."""
        return self._moved(self.codomain, self._joined.adjoint, self._parts_of_one, y)

    def _moved(
        self,
        source: Space,
        move: Callable[[Array], Array],
        parts: Sequence[tuple[slice, tuple[int, ...]]],
        local: tuple[Array, ...],
    ) -> tuple[Array, ...]:
        check_arguments(source.tensors, local, self._rank)
        moved = move(arrays.joined(arrays.in_numpy(*local)))
        return tuple([arrays.of_library(moved[part].reshape(shape), local[0]) for part, shape in parts])

    def _parts_of(self, space: Space) -> list[tuple[slice, tuple[int, ...]]]:
        """Return the position of each local tensor of `space` in the concatenation, and its shape."""
        shapes = [tensor.layout.local_shape(self._rank) for tensor in space.tensors]
        ends = accumulate(map(math.prod, shapes), initial=0)
        return [(slice(*part), shape) for part, shape in zip(pairwise(ends), shapes, strict=True)]


def coalesced(*broadcasts: Broadcast) -> CoalescedBroadcast | None:
    """Return the broadcasts as one operator; `None`, the same on all ranks, if workers differ, or the message is empty or large."""
    first = broadcasts[0]
    source, target = first.one.layout.partition, first.many.layout.partition
    if any(
        (each.one.layout.partition, each.many.layout.partition) != (source, target) for each in broadcasts
    ):
        return None
    # The concatenation has one dimension, which can lie along only one of the partition's.
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
