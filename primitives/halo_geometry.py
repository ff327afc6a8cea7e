"""The geometry of a halo exchange [Hewett21, section 3.2.5 and appendix B]: which input each worker needs.

The load of a worker is the volume of its part of the *output*, so the output is balanced and the halos follow. A
kernel of size k, stride s and dilation d over an input of length n with padding (p, q) makes an output of length

    m = floor((n + p + q - d (k - 1) - 1) / s) + 1

and a worker with the outputs [o, o') needs the inputs

    [o s - p,  (o' - 1) s - p + d (k - 1) + 1)

or none if o = o'. Where this window reaches beyond what the worker owns, its bulk, there is a halo; where it stops
short of it, the halo is negative and the input must be trimmed; where it reaches beyond the tensor, there is padding,
or in a periodic dimension the other end of the tensor.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from numbers import Integral
from operator import index
from typing import NamedTuple

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import integers
from adjointlab.primitives.validation import called

__all__ = ["HaloGeometry", "Piece", "halo_geometry"]

Pair = tuple[int, int]


class Piece(NamedTuple):
    """A stretch of a worker's window that one worker owns.

    It lies at `window` where it is needed, and at `window` less `shift` in the tensor: `shift` is a multiple of the
    length, 0 but for images in a periodic dimension. `owner` and `needer` are indices along the dimension.
    """

    needer: int
    owner: int
    window: Window
    shift: int

    @property
    def source(self) -> Window:
        """Where the piece lies in the tensor."""
        return self.window[0] - self.shift, self.window[1] - self.shift

    @property
    def is_own(self) -> bool:
        """Whether it is the needer's bulk itself, no copy."""
        return self.owner == self.needer and self.shift == 0


@dataclass(frozen=True)
class HaloGeometry:
    """For each dimension and each worker along it, what the worker owns, what it needs and what it makes of that.

    `bulk` is a cut of the input; `window` says what each worker needs of it, over the same partition. Windows may be
    wider than the bulk, narrower (trimmed), empty, reach several workers on, lie apart from the bulk, and reach beyond
    the tensor: into padding, or around it, several times if need be, in the dimensions of `periodic`. `output`, where
    known, is what a kernel makes of the windows. Workers along partition dimensions that `bulk` does not use hold
    copies.

    Pure data, the same on every rank: ``bulk.windows[dim][worker]``, ``window.windows[dim][worker]`` and
    ``output.windows[dim][worker]`` stand there for every index `worker` along dimension `dim`, and :meth:`halo`,
    :meth:`padding` and :attr:`padded` follow. :meth:`from_kernel` derives the windows from a kernel, and
    :meth:`from_widths` from a left and a right width for each worker.

    Raises `ValueError` for a `bulk` that does not cut every dimension, for layouts of different shapes or partitions,
    for a dimension in `periodic` that the tensor has not, and for windows around a periodic dimension of length 0,
    which no data can fill; `TypeError` for what is no layout.
    """

    bulk: Layout
    window: Layout
    output: Layout | None = None
    periodic: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "periodic", tuple(sorted(integers("periodic", self.periodic))))
        _check_bulk(self.bulk)
        _check_beside("window", self.window, self.bulk)
        if self.window.shape != self.bulk.shape:
            raise ValueError(
                f"window: of a tensor {list(self.window.shape)}, but the bulk is that of {list(self.bulk.shape)}; "
                "windows are windows of the same tensor"
            )
        if self.output is not None:
            _check_beside("output", self.output, self.bulk)
        for dim in self.periodic:
            if not 0 <= dim < self.bulk.order or self.periodic.count(dim) > 1:
                raise ValueError(
                    f"periodic: {self.periodic} are not distinct dimensions of a tensor of order {self.bulk.order}"
                )
            needed = [window for window in self.window.windows[dim] if window[0] < window[1]]
            if needed and self.bulk.shape[dim] == 0:
                raise ValueError(
                    f"window: {needed[0]} in dimension {dim}, which is periodic and has length 0; there are no data to "
                    "fill it, and only empty windows are legal"
                )

    @classmethod
    def from_kernel(
        cls,
        bulk: Layout,
        kernel: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int | Sequence[int]] = 0,
        periodic: Iterable[int] = (),
        output_cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> HaloGeometry:
        """The windows that a sliding kernel needs, for outputs cut at `output_cuts` (default: balanced).

        Each argument has one entry for each dimension of the tensor, or one for all; an entry of `padding` is one
        width for both sides or (left, right). Kernel size 1 leaves a dimension as it is.

        Padding is at most d (k - 1) on either side, so that each output spans some element of a tensor that has any:
        beyond that, outputs would be free of data. A worker without outputs needs nothing: its whole bulk is trimmed.

        Raises `ValueError` for a kernel size, stride or dilation below 1, for padding outside that range, and for a
        tensor that is smaller, with its padding, than the kernel.
        """
        _check_bulk(bulk)
        order = bulk.order
        sizes = _each("kernel", kernel, order)
        strides, dilations = _each("stride", stride, order), _each("dilation", dilation, order)
        pads = _paddings(padding, order)
        for name, values in (("kernel", sizes), ("stride", strides), ("dilation", dilations)):
            for dim, value in enumerate(values):
                if value < 1:
                    raise ValueError(f"{name}: {value} in dimension {dim}; it must be at least 1")
        lengths = []
        for dim, (n, k, s, d, pad) in enumerate(
            zip(bulk.shape, sizes, strides, dilations, pads, strict=True)
        ):
            if not 0 <= min(pad) <= max(pad) <= d * (k - 1):
                raise ValueError(
                    f"padding: {pad} in dimension {dim}; a kernel of size {k} with dilation {d} allows 0 to {d * (k - 1)} "
                    "on either side, beyond which outputs would see no data"
                )
            # A dimension that is left as it is may be empty.
            if n + sum(pad) < d * (k - 1) + 1 and (k, s, n) != (1, 1, 0):
                raise ValueError(
                    f"kernel: size {k} with dilation {d} spans {d * (k - 1) + 1} in dimension {dim}, but the tensor has "
                    f"length {n}" + (f", {n + sum(pad)} with the padding {pad}" if any(pad) else "")
                )
            lengths.append((n + sum(pad) - d * (k - 1) - 1) // s + 1)
        cuts: Sequence[Sequence[int] | None] = [None] * order if output_cuts is None else output_cuts
        with called(cuts="output_cuts"):
            output = Layout.cut(lengths, bulk.partition, cuts, bulk.axes)
        windows = [
            [
                (first * s - left, (last - 1) * s - left + d * (k - 1) + 1)
                if first < last
                else (owned[0], owned[0])
                for (first, last), owned in zip(output.windows[dim], bulk.windows[dim], strict=True)
            ]
            for dim, (k, s, d, (left, _)) in enumerate(zip(sizes, strides, dilations, pads, strict=True))
        ]
        window = Layout(bulk.shape, bulk.partition, windows, bulk.axes)
        return cls(bulk, window, output, integers("periodic", periodic))

    @classmethod
    def from_widths(
        cls,
        bulk: Layout,
        widths: Sequence[Sequence[Pair]],
        *,
        padding: int | Sequence[int | Sequence[int]] = 0,
        periodic: Iterable[int] = (),
    ) -> HaloGeometry:
        """Windows that reach ``widths[dim][worker]`` = (left, right) beyond each worker's bulk; less, if negative.

        A width counts everything from the bulk to the end of the window. In a dimension that is not periodic it may
        lead out of the tensor by the `padding` that is declared (default: none), and no further.

        Raises `ValueError` for widths that nothing can fill, for widths that trim more than the bulk has, and for a
        number of widths that does not match the partition.
        """
        _check_bulk(bulk)
        pads, around = _paddings(padding, bulk.order), integers("periodic", periodic)
        pairs = _widths(widths)
        if len(pairs) != bulk.order:
            raise ValueError(
                f"widths: a tensor of order {bulk.order} needs {bulk.order} lists of widths, not {len(pairs)}"
            )
        windows: list[list[Window]] = []
        for dim, (given, owned, n, pad) in enumerate(zip(pairs, bulk.windows, bulk.shape, pads, strict=True)):
            if len(given) != len(owned):
                raise ValueError(
                    f"widths: dimension {dim} lies along {len(owned)} workers, but has widths for {len(given)}"
                )
            windows.append([])
            for worker, ((start, stop), (left, right)) in enumerate(zip(owned, given, strict=True)):
                if stop + right < start - left:
                    raise ValueError(
                        f"widths: ({left}, {right}) of worker {worker} in dimension {dim} trim more than its bulk "
                        f"{start}:{stop} has"
                    )
                reach = (max(0, left - start), max(0, stop + right - n))
                is_filled = reach[0] <= pad[0] and reach[1] <= pad[1]
                if dim not in around and start - left < stop + right and not is_filled:
                    raise ValueError(
                        f"widths: ({left}, {right}) of worker {worker}, with bulk {start}:{stop}, lead {reach} cells out "
                        f"of dimension {dim}, of length {n}, where the padding is {pad}; no data can fill them"
                    )
                windows[-1].append((start - left, stop + right))
        return cls(bulk, Layout(bulk.shape, bulk.partition, windows, bulk.axes), None, around)

    @cached_property
    def padded(self) -> Layout:
        """Over the same partition, the smallest windows that hold a worker's bulk and what it needs."""
        windows = [
            [_hull(pair) for pair in zip(owned, needed, strict=True)]
            for owned, needed in zip(self.bulk.windows, self.window.windows, strict=True)
        ]
        return Layout(self.bulk.shape, self.bulk.partition, windows, self.bulk.axes)

    def filled(self, dim: int, worker: int) -> Window:
        """The part of a worker's window that data fill: all but the padding."""
        start, stop = self.window.windows[dim][worker]
        if dim in self.periodic:
            return start, stop
        low = min(max(start, 0), self.bulk.shape[dim])
        return low, max(low, min(stop, self.bulk.shape[dim]))

    def halo(self, dim: int, worker: int) -> Pair:
        """How far a worker's window reaches beyond its bulk, left and right, padding not counted.

        A negative width says how much of the bulk must be trimmed on that side.
        """
        (start, stop), (first, last) = self.bulk.windows[dim][worker], self.filled(dim, worker)
        return start - first, last - stop

    def padding(self, dim: int, worker: int) -> Pair:
        """How many cells of a worker's window lie beyond the tensor, left and right; in a periodic dimension none."""
        start, stop = self.window.windows[dim][worker]
        if dim in self.periodic:
            return 0, 0
        return max(0, min(stop, 0) - start), max(0, stop - max(start, self.bulk.shape[dim]))

    def needs(self, dim: int, worker: int) -> tuple[Piece, ...]:
        """The pieces that make up the filled part of a worker's window, in their order."""
        return self._needs[dim][worker]

    def feeds(self, dim: int, worker: int) -> tuple[Piece, ...]:
        """The pieces of windows, its own included, that a worker's bulk fills."""
        return self._feeds[dim][worker]

    @cached_property
    def copies(self) -> int:
        """The largest number of windows, or times in a window, that one element stands in."""
        return math.prod(map(_deepest, self._needs))

    @cached_property
    def _needs(self) -> tuple[tuple[tuple[Piece, ...], ...], ...]:
        return tuple(
            tuple(self._pieces(dim, worker, starts) for worker in range(len(owned)))
            for dim, owned in enumerate(self.bulk.windows)
            for starts in [
                sorted((start, worker) for worker, (start, stop) in enumerate(owned) if start < stop)
            ]
        )

    def _pieces(self, dim: int, worker: int, starts: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
        """Walk along the window from owner to owner; `starts` has where each owner's bulk starts, in order."""
        length, pieces = self.bulk.shape[dim], []
        position, end = self.filled(dim, worker)
        while position < end:
            shift = position // length * length
            owner = starts[bisect_right(starts, (position - shift, math.inf)) - 1][1]
            stop = min(end, self.bulk.windows[dim][owner][1] + shift)
            pieces.append(Piece(worker, owner, (position, stop), shift))
            position = stop
        return tuple(pieces)

    @cached_property
    def _feeds(self) -> tuple[tuple[tuple[Piece, ...], ...], ...]:
        tables: list[tuple[tuple[Piece, ...], ...]] = []
        for workers in self._needs:
            fed: list[list[Piece]] = [[] for _ in workers]
            for pieces in workers:
                for piece in pieces:
                    fed[piece.owner].append(piece)
            tables.append(tuple(map(tuple, fed)))
        return tuple(tables)


@lru_cache(maxsize=64)
def halo_geometry(bulk: Layout, window: Layout, periodic: tuple[int, ...] = ()) -> HaloGeometry:
    """The geometry of an exchange from `bulk` to `window`, made once for all simulated ranks."""
    return HaloGeometry(bulk, window, None, periodic)


def _check_bulk(bulk: object) -> None:
    if not isinstance(bulk, Layout):
        raise TypeError(f"bulk: {bulk!r} is no Layout")
    for dim, (windows, side) in enumerate(zip(bulk.windows, bulk.shape, strict=True)):
        held = sorted(window for window in windows if window[0] < window[1])
        ends = [0, *(stop for _, stop in held)]
        if ends[-1] != side or any(start != end for (start, _), end in zip(held, ends, strict=False)):
            raise ValueError(
                f"bulk: the windows {' '.join(f'{start}:{stop}' for start, stop in windows)} do not cut dimension {dim}, "
                f"of length {side}; the workers' bulks are disjoint and cover it"
            )


def _check_beside(name: str, layout: object, bulk: Layout) -> None:
    if not isinstance(layout, Layout):
        raise TypeError(f"{name}: {layout!r} is no Layout")
    if layout.partition != bulk.partition:
        raise ValueError(
            f"{name}: over the partition {layout.partition} of order {layout.partition.order}, but the bulk lies over "
            f"{bulk.partition} of order {bulk.partition.order}; a halo is exchanged on one partition"
        )
    if layout.axes != bulk.axes:
        raise ValueError(
            f"{name}: its dimensions lie along {layout.axes} of the partition, those of the bulk along {bulk.axes}; "
            "they must be the same"
        )


def _each(name: str, value: int | Sequence[int], order: int) -> tuple[int, ...]:
    entries = integers(name, (value,) * order if isinstance(value, Integral) else value)
    if len(entries) != order:
        raise ValueError(
            f"{name}: {entries} for a tensor of order {order}; give one value for each dimension"
        )
    return entries


def _paddings(padding: int | Sequence[int | Sequence[int]], order: int) -> tuple[Pair, ...]:
    try:
        entries = (padding,) * order if isinstance(padding, Integral) else tuple(padding)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"padding: {padding!r} is neither a width nor one for each dimension") from None
    if len(entries) != order:
        raise ValueError(
            f"padding: {entries} for a tensor of order {order}; give one width, or (left, right), for each dimension"
        )
    pairs: list[Pair] = []
    for dim, entry in enumerate(entries):
        pair = integers("padding", (entry, entry) if isinstance(entry, Integral) else entry)
        if len(pair) != 2 or min(pair) < 0:
            raise ValueError(f"padding: {entry} in dimension {dim} is neither a width nor (left, right)")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _widths(widths: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    try:
        return [[(index(left), index(right)) for left, right in workers] for workers in widths]
    except (TypeError, ValueError):
        raise TypeError(
            f"widths: {widths!r} is not a list of (left, right) of each worker for each dimension"
        ) from None


def _hull(windows: Sequence[Window]) -> Window:
    held = [window for window in windows if window[0] < window[1]] or list(windows[:1])
    return min(start for start, _ in held), max(stop for _, stop in held)


def _deepest(workers: Iterable[Iterable[Piece]]) -> int:
    """The largest number of pieces that lie over one element."""
    steps = [
        (place, step)
        for pieces in workers
        for piece in pieces
        for place, step in zip(piece.source, (1, -1), strict=True)
    ]
    return max(accumulate(step for _, step in sorted(steps)), default=0)
