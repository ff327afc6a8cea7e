"""What one worker sends and receives in a halo exchange: the nested phases of eq. 23, as pure data.

In phase k workers exchange along dimension k alone, with those that differ from them only there. A box that travels in
phase k spans

    in dimensions below k  the window, which earlier phases have filled: so corners are right;
    in dimension k         a piece of the receiver's window that the sender owns;
    in dimensions above k  what of the bulk some worker needs: later phases pass it on.

Each cell of a box lies in the sender's bulk or in one box that it received in an earlier phase, so nothing but these
need be kept, and input is trimmed last by never being copied. Cells of padding do not travel. Where nothing is trimmed
that another worker needs, a worker receives its window less its bulk and its padding, each cell once; otherwise
corners that it passes on come on top.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adjointlab.core.layout import Window
from adjointlab.primitives.halo_geometry import HaloGeometry
from adjointlab.primitives.overlaps import Box, Place, place, within

__all__ = ["Arrival", "Face", "HaloPlan", "Link", "Part", "halo_plan"]


@dataclass(frozen=True)
class Part:
    """Cells at `there` of a source and at `here` of a box; source 0 is the bulk, source i the i-th box received."""

    source: int
    there: Place
    here: Place


@dataclass(frozen=True)
class Face:
    """A box that is sent, and the parts that it is packed from.

    `is_block` if it is one part, and one piece of memory where its source is in row-major order.
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    is_block: bool


@dataclass(frozen=True)
class Arrival:
    """A box that is received: ``box[here]`` is what lies in the window, at ``y[there]``; `None` if nothing does.

    `is_whole` if all of it lies there; `is_block` if that is one piece of memory where y is in row-major order;
    `is_passed_on` if a later phase sends some of it.
    """

    shape: tuple[int, ...]
    there: Place | None
    here: Place | None
    is_whole: bool
    is_block: bool
    is_passed_on: bool


@dataclass(frozen=True)
class Link:
    """What travels in one phase between this worker and the rank `peer`, which may be this worker itself.

    Each way all boxes make one message, in the order in which they lie in the receiver's window.
    """

    peer: int
    faces: tuple[Face, ...]
    boxes: tuple[Arrival, ...]


@dataclass(frozen=True)
class HaloPlan:
    """A worker's part in an exchange from x, over its bulk, to y, over its window.

    ``y[kept]`` is ``x[owned]``, `None` where the two share nothing; all of x unless `trims`. `padding` and `halo` are
    slabs that make up what of y lies beyond the tensor and beyond the bulk. `phases` has the links of each phase in
    which something travels to or from this worker.
    """

    owned: Place | None
    kept: Place | None
    trims: bool
    padding: tuple[Place, ...]
    halo: tuple[Place, ...]
    phases: tuple[tuple[Link, ...], ...]


def halo_plan(geometry: HaloGeometry, rank: int) -> HaloPlan:
    """The part of `rank`, an active one, in an exchange of that geometry."""
    bulk, window = geometry.bulk.window(rank), geometry.window.window(rank)
    assert bulk is not None
    assert window is not None
    phases = [list(_regions(geometry, rank, dim)) for dim in range(geometry.bulk.order)]
    sources, planned = [bulk], []
    for number, links in enumerate(phases):
        later = [region for others in phases[number + 1 :] for _, sent, _ in others for region in sent]
        planned.append(
            tuple(
                Link(
                    peer,
                    tuple(_face(region, sources) for region in sent),
                    tuple(_arrival(region, window, later) for region in received),
                )
                for peer, sent, received in links
            )
        )
        sources += [region for _, _, received in links for region in received]
    own = _shared(bulk, window)
    tensor = [
        window[dim] if dim in geometry.periodic else (0, side) for dim, side in enumerate(geometry.bulk.shape)
    ]
    return HaloPlan(
        None if own is None else _place(own, bulk),
        None if own is None else _place(own, window),
        own != bulk,
        tuple(_beside(tensor, window)),
        tuple(_beside(bulk, window)),
        tuple(links for links in planned if links),
    )


def _place(box: Box, outer: Box) -> Place:
    """The index of a box in the array that lies over the box `outer`."""
    return place(within(box, outer))


def _beside(inner: Sequence[Window], outer: Box) -> Iterator[Place]:
    """The slabs of `outer` on either side of `inner`, dimension by dimension; they share their corners."""
    for dim, ((first, last), (start, stop)) in enumerate(zip(inner, outer, strict=True)):
        for low, high in ((start, min(stop, first)), (max(start, last), stop)):
            if low < high:
                yield _place((*outer[:dim], (low, high), *outer[dim + 1 :]), outer)


def _regions(geometry: HaloGeometry, rank: int, dim: int) -> Iterator[tuple[int, list[Box], list[Box]]]:
    """The ranks that `rank` exchanges with in the phase of a dimension, with the regions sent and received.

    Both are in the coordinates of `rank`, whose images of other workers' cells lie beyond the tensor.
    """
    partition, axes = geometry.bulk.partition, geometry.bulk.axes
    index = partition.index(rank)
    workers = [0 if axis is None else index[axis] for axis in axes]
    below = [geometry.filled(k, workers[k]) for k in range(dim)]
    above = [_fed(geometry, k, workers[k]) for k in range(dim + 1, len(axes))]
    if any(start == stop for start, stop in (*below, *above)):
        return
    sent: dict[int, list[Box]] = defaultdict(list)
    received: dict[int, list[Box]] = defaultdict(list)
    for piece in geometry.feeds(dim, workers[dim]):
        if not piece.is_own:
            sent[piece.needer].append((*below, piece.source, *above))
    for piece in geometry.needs(dim, workers[dim]):
        if not piece.is_own:
            received[piece.owner].append((*below, piece.window, *above))
    for worker in sorted({*sent, *received}):
        there = [worker if k == axes[dim] else i for k, i in enumerate(index)]
        yield partition.rank(there), sent[worker], received[worker]


def _fed(geometry: HaloGeometry, dim: int, worker: int) -> Window:
    """What of a worker's bulk any worker needs, itself included."""
    sources = [piece.source for piece in geometry.feeds(dim, worker)]
    return min((start for start, _ in sources), default=0), max((stop for _, stop in sources), default=0)


def _face(region: Box, sources: Sequence[Box]) -> Face:
    parts, is_block = [], False
    for source, held in enumerate(sources):
        if (shared := _shared(region, held)) is not None:
            parts.append(Part(source, _place(shared, held), _place(shared, region)))
            is_block = shared == region and _is_block(region, held)
    return Face(_shape(region), tuple(parts), is_block)


def _arrival(region: Box, window: Box, later: Sequence[Box]) -> Arrival:
    inside = _shared(region, window)
    return Arrival(
        _shape(region),
        None if inside is None else _place(inside, window),
        None if inside is None else _place(inside, region),
        is_whole=inside == region,
        is_block=inside == region and _is_block(region, window),
        is_passed_on=any(_shared(region, other) is not None for other in later),
    )


def _shared(one: Box, other: Box) -> Box | None:
    """The intersection, or `None` where it is empty."""
    both = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def _is_block(region: Box, outer: Box) -> bool:
    """Whether a region is one piece of the memory of a row-major array over `outer`."""
    sides = [(stop - start, last - first) for (start, stop), (first, last) in zip(region, outer, strict=True)]
    while sides and sides[0][0] == 1:
        sides.pop(0)
    return all(side == whole for side, whole in sides[1:])


def _shape(region: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in region)
