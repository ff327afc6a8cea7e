"""A worker's messages in a halo exchange: the nested phases of eq. 23, as pure data.

In phase k workers exchange only along tensor dimension k, with workers whose grid index differs only there. So a corner is sent
once in each dimension: a neighbour receives it and passes it on.

A box that is sent in phase k spans

    in dimensions below k  the receiver's window, which earlier phases have filled: so it brings the corners;
    in dimension k         an interval of the receiver's window that the sender owns, a `Transfer`;
    in dimensions above k  the part of the bulk that some worker needs, as later phases pass it on.

Sender and receiver differ only along dimension k, so "the receiver's window below k" is the sender's too, and both derive
the same box without a message. Each cell of a box lies in the sender's bulk or in one box that it received in an earlier
phase, so only these must be kept. Trimmed input is simply not copied into the result, and cells of padding are not sent.
If no worker trims cells that another one needs, a worker receives its window less its bulk and its padding, each cell
once; otherwise it also receives corners that it does not need itself and passes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adjointlab.core.layout import Window
from adjointlab.primitives.boxes import Box, ViewIndex, index_in, intersection, view_index
from adjointlab.primitives.halo_geometry import HaloGeometry

__all__ = ["HaloPlan", "Link", "PackedFrom", "ReceivedBox", "SentBox", "halo_plan"]


@dataclass(frozen=True)
class PackedFrom:
    """Cells of a sent box, at `in_box`, which are packed from `in_source` of a source.

    Source 0 is the bulk, and source i the i-th box that the worker has received, counted over all phases from 1.
    """

    source: int
    in_source: ViewIndex
    in_box: ViewIndex


@dataclass(frozen=True)
class SentBox:
    """A box that is sent, and the cells that it is packed from.

    `is_block` is True if it comes from one source and is contiguous there, given that the source is in row-major order.
    """

    shape: tuple[int, ...]
    parts: tuple[PackedFrom, ...]
    is_block: bool


@dataclass(frozen=True)
class ReceivedBox:
    """A box that is received: ``box[in_box]`` belongs at ``y[in_window]``; both are `None` if it is only passed on.

    `is_whole` is True if all of it lies in the window; `is_block` if it is also contiguous in y, given that y is in row-major
    order; `is_passed_on` if a later phase sends a part of it.
    """

    shape: tuple[int, ...]
    in_window: ViewIndex | None
    in_box: ViewIndex | None
    is_whole: bool
    is_block: bool
    is_passed_on: bool


@dataclass(frozen=True)
class Link:
    """The boxes that are sent in one phase between this worker and the rank `peer`, which may be this worker itself.

    In each direction all boxes are one message, in their order in the receiver's window: there are several if the receiver
    needs images of one bulk at both ends of a periodic dimension.
    """

    peer: int
    sent: tuple[SentBox, ...]
    received: tuple[ReceivedBox, ...]


@dataclass(frozen=True)
class HaloPlan:
    """A worker's part in an exchange from x, over its bulk, to y, over its window.

    ``y[own_in_window]`` is ``x[own_in_bulk]``, the cells that are never sent; both are empty if bulk and window do not overlap.
    They are all of x unless `trims`. `padding` and `halo` are slabs that make up the parts of y beyond the tensor and beyond
    the bulk. `phases` has the links of each phase in which this worker sends or receives anything.
    """

    own_in_bulk: ViewIndex
    own_in_window: ViewIndex
    trims: bool
    padding: tuple[ViewIndex, ...]
    halo: tuple[ViewIndex, ...]
    phases: tuple[tuple[Link, ...], ...]


# How a corner is forwarded. Four workers, and the window of worker 3, of which # is the bulk, and B, C and X are the halo:
#
#     bulk of 0  |  bulk of 1
#     a a a a X  |  B B B B     phase 0 (rows)      1 sends B to 3; 0 sends a and X to 2, as the halo of 2
#     -----------+-----------
#     . . . . C  |  # # # #     phase 1 (columns)   2 sends C to 3, and with it X, which it received in phase 0
#     bulk of 2  |  bulk of 3
def halo_plan(geometry: HaloGeometry, rank: int) -> HaloPlan:
    """Return the plan of `rank`, an active one, in an exchange of this geometry."""
    bulk, window = geometry.bulk.window(rank), geometry.window.window(rank)
    assert bulk is not None
    assert window is not None
    # For each phase the peers with the boxes sent and received. All phases are needed to plan the first: a box must be kept if a
    # later phase passes a part of it on.
    phases = [list(_traffic(geometry, rank, dim)) for dim in range(geometry.bulk.order)]
    # A phase can send parts of the bulk and of all boxes of earlier phases.
    sources, planned = [bulk], []
    for dim, peers in enumerate(phases):
        sent_later = [box for later in phases[dim + 1 :] for _, sent, _ in later for box in sent]
        planned.append(
            tuple(
                Link(
                    peer,
                    tuple(_sent_box(box, sources) for box in sent),
                    tuple(_received_box(box, window, sent_later) for box in received),
                )
                for peer, sent, received in peers
            )
        )
        sources += [box for _, _, received in peers for box in received]
    # Bulk and window may lie apart; images of the own bulk in the window are received, from this worker itself.
    own = intersection(bulk, window)
    nothing = view_index(((0, 0),) * geometry.bulk.order)
    # There is padding beyond the tensor, except in a periodic dimension, which has no end.
    tensor = tuple(
        window[dim] if dim in geometry.periodic else (0, side) for dim, side in enumerate(geometry.bulk.shape)
    )
    return HaloPlan(
        own_in_bulk=nothing if own is None else index_in(bulk, own),
        own_in_window=nothing if own is None else index_in(window, own),
        trims=own != bulk,
        padding=tuple(_slabs_around(tensor, window)),
        halo=tuple(_slabs_around(bulk, window)),
        phases=tuple(links for links in planned if links),
    )


def _slabs_around(inner: Box, window: Box) -> Iterator[ViewIndex]:
    """Yield the slabs of `window` on either side of `inner`, dimension by dimension; they share their corners."""
    for dim, ((first, last), (start, stop)) in enumerate(zip(inner, window, strict=True)):
        for low, high in ((start, min(stop, first)), (max(start, last), stop)):
            if low < high:
                yield index_in(window, (*window[:dim], (low, high), *window[dim + 1 :]))


def _traffic(geometry: HaloGeometry, rank: int, dim: int) -> Iterator[tuple[int, list[Box], list[Box]]]:
    """Yield the ranks that `rank` exchanges with in the phase of a tensor dimension, with the boxes sent and received.

    Sent boxes are in the coordinates of the bulk, and received ones in those of the window, where images of other workers'
    cells lie beyond the tensor.
    """
    partition, axes = geometry.bulk.partition, geometry.bulk.axes
    grid_index = partition.index(rank)
    worker_along = [0 if axis is None else grid_index[axis] for axis in axes]
    below = [geometry.filled(k, worker_along[k]) for k in range(dim)]
    above = [_needed_of_bulk(geometry, k, worker_along[k]) for k in range(dim + 1, len(axes))]
    # An empty interval in another dimension makes every box empty. The peers, which differ only along `dim`, conclude the same.
    if any(start == stop for start, stop in (*below, *above)):
        return
    sent: dict[int, list[Box]] = defaultdict(list)
    received: dict[int, list[Box]] = defaultdict(list)
    for transfer in geometry.outgoing(dim, worker_along[dim]):
        if not transfer.is_own:
            sent[transfer.receiver].append((*below, transfer.source, *above))
    for transfer in geometry.incoming(dim, worker_along[dim]):
        if not transfer.is_own:
            received[transfer.sender].append((*below, transfer.window, *above))
    for worker in sorted({*sent, *received}):
        # In a dimension that is not cut the only worker along it is this one, which needs images of its own cells.
        peer_index = [worker if axis == axes[dim] else i for axis, i in enumerate(grid_index)]
        yield partition.rank(peer_index), sent[worker], received[worker]


def _needed_of_bulk(geometry: HaloGeometry, dim: int, worker: int) -> Window:
    """Return the smallest interval that contains all cells of a worker's bulk that some worker needs, itself included."""
    sources = [transfer.source for transfer in geometry.outgoing(dim, worker)]
    return min((start for start, _ in sources), default=0), max((stop for _, stop in sources), default=0)


def _sent_box(box: Box, sources: Sequence[Box]) -> SentBox:
    # If a box is packed from several sources, they are disjoint there, so that each cell is packed once.
    parts, is_block = [], False
    for number, source in enumerate(sources):
        if (shared := intersection(box, source)) is not None:
            parts.append(PackedFrom(number, index_in(source, shared), index_in(box, shared)))
            is_block = shared == box and _is_block(box, source)
    return SentBox(_shape(box), tuple(parts), is_block)


def _received_box(box: Box, window: Box, sent_later: Sequence[Box]) -> ReceivedBox:
    inside = intersection(box, window)
    return ReceivedBox(
        _shape(box),
        None if inside is None else index_in(window, inside),
        None if inside is None else index_in(box, inside),
        is_whole=inside == box,
        is_block=inside == box and _is_block(box, window),
        is_passed_on=any(intersection(box, later) is not None for later in sent_later),
    )


def _is_block(box: Box, window: Box) -> bool:
    """Return True if a box is contiguous in a row-major array over `window`.

    It is if it spans the window in all dimensions after the first one in which it has more than one index.
    """
    sides = [(stop - start, last - first) for (start, stop), (first, last) in zip(box, window, strict=True)]
    while sides and sides[0][0] == 1:
        sides.pop(0)
    return all(side == whole for side, whole in sides[1:])


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)
