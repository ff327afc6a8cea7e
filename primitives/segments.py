"""Segments: the workers along one dimension of a partition, and the part that each has of a tensor's dimension.

A segmented collective is performed in each segment at once, with the data that are local to it [Dryden19, section 2.3.3].
A tensor is *narrow* in a dimension that is cut along the segments, and *wide* where every worker holds it whole.

Here are, as pure data, the narrow and wide layouts and, as generators, what is done in one segment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import integers, whole_number
from adjointlab.core.program import Add, Allocate, Deallocate, Generator, Program, buffers_by_rank
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.primitives.validation import arguments_renamed

__all__ = [
    "Segment",
    "axis_of_cut",
    "gain_of",
    "local_type",
    "narrow_and_wide",
    "narrow_layout",
    "segment_of",
    "segmented_program",
    "wide_layout",
]


# grid 2 x 3, segments along dimension 1        narrow: worker r has part r      wide: each worker has all
#   0  1  2   one segment                          [ 0 | 1 | 2 ]                    [   0, 1 and 2  ]
#   3  4  5   another                              [ 3 | 4 | 5 ]                    [   3, 4 and 5  ]
#
# all-gather: narrow → wide     discard: wide → narrow, the own part     reduce-scatter: wide → narrow, the part of the sum
@dataclass(frozen=True)
class Segment:
    """Workers in the order of the partition, and the part of tensor dimension `dim` that each has when it is narrow.

    The parts are intervals of the wide local tensor; they follow one another and make up the whole dimension.
    """

    dim: int
    ranks: tuple[int, ...]
    parts: tuple[Window, ...]

    def part(self, rank: int) -> Window:
        """The part of one of the workers."""
        return self.parts[self.ranks.index(rank)]


def segment_of(narrow: Layout, dim: int, rank: int) -> Segment | None:
    """The segment of `rank` along which dimension `dim` is cut; `None` for an inactive rank."""
    axis = narrow.axes[dim]
    assert axis is not None
    if not narrow.partition.is_active(rank):
        return None
    return Segment(dim, narrow.partition.subpartition([axis], rank).ranks, narrow.windows[dim])


def segmented_program(narrow: Tensor, wide: Tensor, dim: int, widens: bool, own_part_only: bool) -> Program:
    """In each segment, add each worker's narrow buffer to its part of every worker's new wide buffer, if that `widens`.

    Else add these parts to the new narrow buffer. With `own_part_only` it is the part of the worker's own wide buffer.
    """
    narrow_of_rank, wide_of_rank = (buffers_by_rank(Space(tensor)) for tensor in (narrow, wide))
    source, target = (narrow_of_rank, wide_of_rank) if widens else (wide_of_rank, narrow_of_rank)
    steps: list[Generator] = []
    axis = narrow.layout.axes[dim]
    assert axis is not None
    for workers in narrow.layout.partition.subpartitions([axis]):
        segment = Segment(dim, workers.ranks, narrow.layout.windows[dim])
        steps += [Allocate(target[rank]) for rank in segment.ranks]
        for rank, other in product(segment.ranks, repeat=2):
            if rank == other or not own_part_only:
                part = wide_of_rank[other][(slice(None),) * dim + (slice(*segment.part(rank)),)]
                whole = narrow_of_rank[rank].whole
                steps.append(Add(whole, part) if widens else Add(part, whole))
        steps += [Deallocate(source[rank]) for rank in segment.ranks]
    return Program(source.values(), steps)


def axis_of_cut(layout: Layout, dim: int) -> int:
    """The partition dimension along which dimension `dim` of the tensor is cut.

    Raises `ValueError` for a dimension that the tensor has not, and for one that is not cut.
    """
    _check_dim(layout, dim)
    axis = layout.axes[dim]
    if axis is None or layout.ends(dim) is None:
        held = "along no dimension of the partition" if axis is None else f"in windows {layout.windows[dim]}"
        raise ValueError(
            f"dim: dimension {dim} of {layout.without_workers} over {layout.partition} lies {held}; it must be cut along a "
            "dimension of the partition, in the order of the workers"
        )
    return axis


@lru_cache(maxsize=64)
def wide_layout(layout: Layout, dim: int) -> Layout:
    """`layout` with dimension `dim`, which is cut, whole on every worker."""
    windows, axes = list(layout.windows), list(layout.axes)
    windows[dim], axes[dim] = ((0, layout.shape[dim]),), None
    return Layout(layout.shape, layout.partition, windows, axes)


def narrow_layout(layout: Layout, dim: int, along: int, cut: Sequence[int] | None) -> Layout:
    """`layout` with dimension `dim`, which is whole, cut along dimension `along` of the partition, where copies lie.

    `cut` are the boundaries; `None` takes the balanced ones. Raises `ValueError` for a dimension that the tensor or the
    partition has not or that is not whole, for workers along `along` that hold different windows, and for boundaries
    that do not cut the dimension; `TypeError` for what is not an integer.
    """
    _check_dim(layout, dim)
    whole_number("along", along)
    with arguments_renamed(cuts="cut"):
        return _narrow_layout(layout, dim, along, None if cut is None else integers("cuts", cut))


@lru_cache(maxsize=64)
def _narrow_layout(layout: Layout, dim: int, along: int, cut: tuple[int, ...] | None) -> Layout:
    partition, side = layout.partition, layout.shape[dim]
    if not 0 <= along < partition.order:
        raise ValueError(
            f"along: {along} is not a dimension of the partition {partition}, of order {partition.order}"
        )
    if set(layout.windows[dim]) != {(0, side)}:
        raise ValueError(
            f"dim: dimension {dim} of {layout.without_workers} over {partition} lies in windows {layout.windows[dim]}; every "
            f"worker must hold it whole, 0:{side}, to be left with a part of it"
        )
    if not layout.copied[along]:
        raise ValueError(
            f"along: the workers along dimension {along} of the partition {partition} hold different windows of "
            f"{layout}; a dimension is cut where copies lie (say so with the layout's `axes`, None for a dimension that "
            "is not cut)"
        )
    # A dimension that lies along `along` in copies is held there once, as one that is not cut.
    axes = [None if axis == along else axis for axis in layout.axes]
    axes[dim] = along
    cuts: list[Sequence[int] | None] = [None] * layout.order
    cuts[dim] = cut
    parts = Layout.cut(layout.shape, partition, cuts, axes).windows[dim]
    windows = [held[:1] if axis is None else held for held, axis in zip(layout.windows, axes, strict=True)]
    windows[dim] = parts
    return Layout(layout.shape, partition, windows, axes)


def narrow_and_wide(
    narrow: Layout,
    wide: Layout,
    along: int,
    dtype: str,
    types: Sequence[LocalType | str],
    wide_type: LocalType,
    names: tuple[str, str],
) -> tuple[Tensor, Tensor]:
    """The narrow and the wide tensor, called `names`: of local types `types`, but of the type `wide_type` along `along` where wide.

    Raises `ValueError` for types that do not fit, and for another than varying along the cut.
    """
    cut_tensor = Tensor(narrow, dtype, tuple(LocalType(entry) for entry in types), names[0])
    if cut_tensor.types[along] is not LocalType.VARYING:
        raise ValueError(
            f"types: along dimension {along} of the partition the tensor is cut, so that its local type there is varying, "
            f"not {cut_tensor.types[along].value}"
        )
    wide_types = (*cut_tensor.types[:along], wide_type, *cut_tensor.types[along + 1 :])
    return cut_tensor, replace(cut_tensor, layout=wide, types=wide_types, name=names[1])


def gain_of(x: Tensor, y: Tensor, along: int, forward: int = 1, adjoint: int = 1) -> int:
    """The gain of a map from x to y that sums `forward` and `adjoint` values along `along` in the two directions.

    Along the other dimensions of the partition workers do the same independently, and summands stay summands. These count
    too, since a partial tensor is compared after summation.
    """

    def summands(tensor: Tensor) -> int:
        sides = zip(tensor.layout.partition.shape, tensor.types, strict=True)
        return math.prod(
            side for axis, (side, entry) in enumerate(sides) if axis != along and entry is LocalType.PARTIAL
        )

    return max(forward * summands(y), adjoint * summands(x.dual))


def local_type(name: str, value: LocalType | str, legal: Sequence[str]) -> LocalType:
    """The local type `value` of the argument `name`; `ValueError` for one that is not among the legal ones."""
    if (value.value if isinstance(value, LocalType) else value) not in legal:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(legal)}")
    return LocalType(value)


def _check_dim(layout: Layout, dim: int) -> None:
    if not 0 <= whole_number("dim", dim) < layout.order:
        legal = f"0 to {layout.order - 1}" if layout.order else "none"
        raise ValueError(
            f"dim: {dim} is not a dimension of the tensor {list(layout.shape)}, which has {legal}"
        )
