"""The ranks that share a flattened parameter (:mod:`adjointlab.core.flattened`), inferred from the lengths and values of their parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from torch.distributed.tensor import Replicate, Shard

from adjointlab.core.flattened import Flattened
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Tensor
from adjointlab.torch_distributed.dtensors import tensor_on
from adjointlab.torch_distributed.held_parts import HeldPart
from adjointlab.typing import NumpyArray

__all__ = ["begins_of", "flattened"]

_FIRST_COMPARED = 16


def begins_of(part: NumpyArray, whole: NumpyArray) -> frozenset[int] | None:
    """The elements of a whole at which the values of a flat part may begin; `None` if it has other values, or no elements."""
    elements = whole.ravel()
    if not part.size:
        return None
    starts = np.flatnonzero(elements == part[0])
    for place in range(1, min(_FIRST_COMPARED, part.size)):
        within = starts + place < elements.size
        starts = starts[~within | (elements[np.where(within, starts + place, 0)] == part[place])]
    found = frozenset(
        int(start)
        for start in starts
        if np.array_equal(elements[start : start + part.size], part[: elements.size - start])
    )
    return found or None


def flattened(
    name: str, parts: Mapping[int, HeldPart], grid: Partition, rank: int
) -> tuple[Tensor, Flattened] | None:
    """The flat parameter that these ranks of a grid share, and its part on this rank; `None` if their parts do not make up one."""
    first = next(iter(parts.values()))
    length = math.prod(first.shape)
    lengths = {each: math.prod(part.local_shape or ()) for each, part in parts.items()}
    for cut, partition in _cuts(grid):
        ends = _ends(cut, partition, parts, lengths, length)
        if ends is None:
            continue
        placements = [Shard(0) if dim == cut else Replicate() for dim in range(partition.order)]
        tensor = tensor_on(partition, placements, (length,), first.dtype, name)
        windows = [list(zip([0, *ends], ends, strict=False))]
        layout = Layout((length,), tensor.layout.partition, windows, tensor.layout.axes)
        own = math.prod(layout.local_shape(rank)) if partition.is_active(rank) else 0
        return replace(tensor, layout=layout), Flattened(own, lengths.get(rank, 0))
    return None


def _cuts(grid: Partition) -> Iterator[tuple[int, Partition]]:
    """The dimensions along which the ranks may share a parameter, longer ones first, and finally all of them as one dimension."""
    for dim in sorted(range(grid.order), key=lambda dim: -grid.shape[dim]):
        yield dim, grid
    yield 0, Partition((grid.size,), grid.ranks)


def _ends(
    cut: int,
    partition: Partition,
    parts: Mapping[int, HeldPart],
    lengths: Mapping[int, int],
    length: int,
) -> Sequence[int] | None:
    """The ends of the parts along a dimension, if together they have this length, or are equal and longer, and their values fit; else `None`."""
    of_places = [set[int]() for _ in range(partition.shape[cut])]
    for rank in partition.ranks:
        of_places[partition.index(rank)[cut]].add(lengths[rank])
    if any(len(each) > 1 for each in of_places):
        return None
    sizes = [each.pop() for each in of_places]
    ends = list(accumulate(sizes))
    if ends[-1] < length or (ends[-1] > length and len(set(sizes)) > 1):
        return None
    for rank in partition.ranks:
        place = partition.index(rank)[cut]
        start, begins = ends[place] - sizes[place], parts[rank].begins
        if start < length and begins is not None and start not in begins:
            return None
    return [min(end, length) for end in ends]
