"""The geometry of a halo exchange [Hewett21, section 3.2.5 and appendix B]: the input that each worker needs.

The load of a worker is the volume of its part of the *output*, so the output is cut into balanced parts, which determine the
input that each worker needs. A kernel of size k, stride s and dilation d over an input of length n with padding
(p, q) makes an output of length

    m = floor((n + p + q - d (k - 1) - 1) / s) + 1

and a worker with the outputs [o, o') needs the inputs

    [o s - p,  (o' - 1) s - p + d (k - 1) + 1)

or none if o = o'. This is its *window*; the part of the input that it owns is its *bulk*.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Integral
from operator import index
from typing import NamedTuple, TypeAlias

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import integers
from adjointlab.primitives.boxes import multiplicity
from adjointlab.primitives.validation import arguments_renamed
from adjointlab.quantities import counted

__all__ = ["HaloGeometry", "Transfer", "halo_geometry"]

Widths: TypeAlias = tuple[int, int]
"""Numbers of cells on the left and on the right."""


# The transfers to worker 0 in a periodic dimension of length 8:
#
#     index        -2 -1 | 0  1  2  3 | 4  5  6  7 |     two workers, four cells each
#     window of 0 [----------------------]               -2:5
#     transfers   [-----][-----------][--]               from the owners 1, 0 and 1
#     shift         -8         0       0                 sources: 6:8, 0:4 and 4:5
class Transfer(NamedTuple):
    """An interval along one dimension that one worker owns and sends to another, whose window contains it.

    `receiver` and `sender`, the owner, are indices of workers along the dimension. `window` is the interval in the receiver's
    window, in the coordinates of the tensor extended beyond its ends; `shift`, a multiple of the tensor's length, is the
    distance by which it was moved there: 0 except for images in a periodic dimension.
    """

    receiver: int
    sender: int
    window: Window
    shift: int

    @property
    def source(self) -> Window:
        """The interval in the coordinates of the tensor, and so of the owner's bulk."""
        return self.window[0] - self.shift, self.window[1] - self.shift

    @property
    def is_own(self) -> bool:
        """Return True if it is the receiver's bulk itself, which nobody sends.

        An image of the receiver's bulk is not: it is a copy elsewhere in the window.
        """
        return self.sender == self.receiver and self.shift == 0


# One dimension of a tensor, cut along three workers, with the window of worker 1:
#
#     padding p |<------------------- tensor, n -------------------->| padding q
#     . . . . . +----------------+-----------------+-----------------+ . . . . .
#               |  bulk of 0     |  bulk of 1      |  bulk of 2      |
#     . . . . . +----------------+-----------------+-----------------+ . . . . .
#                           [<-->|<----- own ----->|<--->]             the window of worker 1
#                        left halo               right halo
#
# Four things happen at either end of a window, each independent of the other end:
#
#     halo        bulk       |=========|         the window reaches beyond the bulk: the workers that own these
#                 window  [--------------]       cells send them; the neighbour, or workers further on
#
#     trimmed     bulk       |=========|         the window stops short of the bulk (a stride leaves the last inputs
#                 window     [-----]             unused): a halo of negative width; others may need these cells
#
#     padding     tensor     |=========...       the window reaches beyond the tensor: zeros, which no worker sends
#                 window  [------...
#
#     periodic    tensor     |=========... ===|  the same window in a periodic dimension: it holds the cells at the
#                 window  [------...       [-]   other end of the tensor, their *image* moved by the tensor's length
#
# A window may also lie entirely apart from its worker's bulk, be empty, or go around a periodic dimension several times.


@dataclass(frozen=True)
class HaloGeometry:
    """For each dimension and each worker along it, the input that it owns, the input that it needs, and its output.

    `bulk` is a cut of the input; `window` has the part that each worker needs, over the same partition. Windows may be
    wider than the bulk, narrower (trimmed), empty, reach several workers on, lie apart from the bulk, and reach beyond
    the tensor: into padding, or around it, several times if need be, in the dimensions of `periodic`. `output`, if
    known, is the layout of a kernel's output. Workers along partition dimensions that `bulk` does not use hold
    copies.

    Pure data, the same on every rank. In all tables and methods `dim` is a dimension of the tensor and `worker` an index
    along it, 0 if the dimension is not cut: ``bulk.windows[dim][worker]``, ``window.windows[dim][worker]`` and
    ``output.windows[dim][worker]``; :meth:`halo`, :meth:`padding` and :attr:`padded` follow from them.
    :meth:`from_kernel` derives the windows from a kernel, and :meth:`from_widths` from a left and a right width for each
    worker.

    Raises `ValueError` for a `bulk` that does not cut every dimension, for layouts of different shapes or partitions,
    for a dimension in `periodic` that the tensor does not have, and for windows around a periodic dimension of length 0,
    which no data can fill; `TypeError` for arguments that are not layouts.
    """

    bulk: Layout
    window: Layout
    output: Layout | None = None
    periodic: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "periodic", tuple(sorted(integers("periodic", self.periodic))))
        _check_bulk(self.bulk)
        _check_same_partition("window", self.window, self.bulk)
        if self.window.shape != self.bulk.shape:
            raise ValueError(
                f"window: of a tensor {list(self.window.shape)}, but the bulk is that of {list(self.bulk.shape)}; "
                "windows are windows of the same tensor"
            )
        if self.output is not None:
            _check_same_partition("output", self.output, self.bulk)
        for dim in self.periodic:
            if not 0 <= dim < self.bulk.order or self.periodic.count(dim) > 1:
                raise ValueError(
                    f"periodic: {self.periodic} are not distinct dimensions of a tensor of order {self.bulk.order}"
                )
            if self.bulk.shape[dim] > 0:
                continue
            if needed := [window for window in self.window.windows[dim] if window[0] < window[1]]:
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
        width for both sides or (left, right). Kernel size 1 with stride 1 leaves a
        dimension unchanged.

        Padding is at most d (k - 1) on either side: with more, an output could depend on padding only. A worker without
        outputs needs nothing: its whole bulk is trimmed.

        Raises `ValueError` for a kernel size, stride or dilation below 1, for padding outside that range, and for a
        tensor that is smaller, with its padding, than the kernel.
        """
        _check_bulk(bulk)
        order = bulk.order
        sizes = _one_per_dim("kernel", kernel, order)
        strides, dilations = _one_per_dim("stride", stride, order), _one_per_dim("dilation", dilation, order)
        paddings = _paddings(padding, order)
        for name, values in (("kernel", sizes), ("stride", strides), ("dilation", dilations)):
            for dim, value in enumerate(values):
                if value < 1:
                    raise ValueError(f"{name}: {value} in dimension {dim}; it must be at least 1")
        lengths = []
        for dim, (n, k, s, d, (p, q)) in enumerate(
            zip(bulk.shape, sizes, strides, dilations, paddings, strict=True)
        ):
            if not 0 <= min(p, q) <= max(p, q) <= d * (k - 1):
                raise ValueError(
                    f"padding: {(p, q)} in dimension {dim}; a kernel of size {k} with dilation {d} allows 0 to "
                    f"{d * (k - 1)} on either side, beyond which outputs would see no data"
                )
            # A dimension that is left unchanged may be empty.
            if n + p + q < d * (k - 1) + 1 and (k, s, n) != (1, 1, 0):
                raise ValueError(
                    f"kernel: size {k} with dilation {d} spans {d * (k - 1) + 1} in dimension {dim}, but the tensor has "
                    f"length {n}" + (f", {n + p + q} with the padding {(p, q)}" if p or q else "")
                )
            lengths.append((n + p + q - d * (k - 1) - 1) // s + 1)
        cuts: Sequence[Sequence[int] | None] = [None] * order if output_cuts is None else output_cuts
        with arguments_renamed(cuts="output_cuts"):
            ends = tuple(each if each is None else integers("cuts", each) for each in cuts)
            output = _outputs(bulk, tuple(lengths), ends)
        window = _window_of_kernel(bulk, output, sizes, strides, dilations, paddings)
        return cls(bulk, window, output, integers("periodic", periodic))

    @classmethod
    def from_widths(
        cls,
        bulk: Layout,
        widths: Sequence[Sequence[Widths]],
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
        paddings, periodic_dims = _paddings(padding, bulk.order), integers("periodic", periodic)
        widths_of = _as_widths(widths)
        if len(widths_of) != bulk.order:
            raise ValueError(
                f"widths: a tensor of order {bulk.order} needs {counted(bulk.order, 'list')} of widths, not {len(widths_of)}"
            )
        windows: list[list[Window]] = []
        for dim, (given, bulks, n, pad) in enumerate(
            zip(widths_of, bulk.windows, bulk.shape, paddings, strict=True)
        ):
            if len(given) != len(bulks):
                raise ValueError(
                    f"widths: dimension {dim} lies along {counted(len(bulks), 'worker')}, but has widths for {len(given)}"
                )
            windows.append([])
            for worker, ((start, stop), (left, right)) in enumerate(zip(bulks, given, strict=True)):
                if stop + right < start - left:
                    raise ValueError(
                        f"widths: ({left}, {right}) of worker {worker} in dimension {dim} trim more than its bulk "
                        f"{start}:{stop} has"
                    )
                beyond_tensor = (max(0, left - start), max(0, stop + right - n))
                is_filled = beyond_tensor[0] <= pad[0] and beyond_tensor[1] <= pad[1]
                if dim not in periodic_dims and start - left < stop + right and not is_filled:
                    raise ValueError(
                        f"widths: ({left}, {right}) of worker {worker}, with bulk {start}:{stop}, lead {beyond_tensor} "
                        f"cells out of dimension {dim}, of length {n}, where the padding is {pad}; no data can fill them"
                    )
                windows[-1].append((start - left, stop + right))
        return cls(bulk, Layout(bulk.shape, bulk.partition, windows, bulk.axes), None, periodic_dims)

    @cached_property
    def padded(self) -> Layout:
        """Over the same partition, the smallest windows that hold a worker's bulk and what it needs."""
        windows = [
            [_smallest_containing(bulk, window) for bulk, window in zip(bulks, windows, strict=True)]
            for bulks, windows in zip(self.bulk.windows, self.window.windows, strict=True)
        ]
        return Layout(self.bulk.shape, self.bulk.partition, windows, self.bulk.axes)

    def filled(self, dim: int, worker: int) -> Window:
        """Return the part of a worker's window that data fill: all but the padding.

        If the whole window is padding, this is an empty interval within the tensor.
        """
        start, stop = self.window.windows[dim][worker]
        if dim in self.periodic:
            return start, stop
        low = min(max(start, 0), self.bulk.shape[dim])
        return low, max(low, min(stop, self.bulk.shape[dim]))

    def halo(self, dim: int, worker: int) -> Widths:
        """Return the widths by which a worker's window reaches beyond its bulk, left and right, without padding.

        A negative width is the number of cells to be trimmed from the bulk on that side.
        """
        (start, stop), (first, last) = self.bulk.windows[dim][worker], self.filled(dim, worker)
        return start - first, last - stop

    def padding(self, dim: int, worker: int) -> Widths:
        """Return the widths of a worker's window beyond the tensor, left and right; 0 in a periodic dimension."""
        start, stop = self.window.windows[dim][worker]
        if dim in self.periodic:
            return 0, 0
        return max(0, min(stop, 0) - start), max(0, stop - max(start, self.bulk.shape[dim]))

    def incoming(self, dim: int, worker: int) -> tuple[Transfer, ...]:
        """The transfers that make up the filled part of a worker's window, its own bulk included, from left to right."""
        return self._incoming[dim][worker]

    def outgoing(self, dim: int, worker: int) -> tuple[Transfer, ...]:
        """The transfers into all windows, its own included, that a worker's bulk fills."""
        return self._outgoing[dim][worker]

    @cached_property
    def copies(self) -> int:
        """The largest number of occurrences of one element in the windows of all workers together."""
        # Dimensions are independent: the number of occurrences is the product of the multiplicities.
        return math.prod(
            multiplicity(transfer.source for transfers in incoming for transfer in transfers)
            for incoming in self._incoming
        )

    @cached_property
    def _incoming(self) -> tuple[tuple[tuple[Transfer, ...], ...], ...]:
        tables = []
        for dim, bulks in enumerate(self.bulk.windows):
            # Bulks need not be in the order of the workers, so those that are not empty are sorted by their starts.
            starts = sorted((start, owner) for owner, (start, stop) in enumerate(bulks) if start < stop)
            tables.append(tuple(self._walk(dim, worker, starts) for worker in range(len(bulks))))
        return tuple(tables)

    def _walk(self, dim: int, worker: int, starts: Sequence[tuple[int, int]]) -> tuple[Transfer, ...]:
        """Walk along the window of a worker from owner to owner; `starts` are (start of bulk, owner), in order.

        A periodic dimension is a line of images of the tensor, one after another; the step from one image to the next is a
        step from the last owner to the first.
        """
        length, transfers = self.bulk.shape[dim], []
        position, end = self.filled(dim, worker)
        while position < end:
            # Floor division: position -1 lies in the image at -length, not in the tensor.
            shift = position // length * length
            # The owner is the last one whose bulk starts at or before the cell. (start, inf) sorts after (start, owner).
            owner = starts[bisect_right(starts, (position - shift, math.inf)) - 1][1]
            stop = min(end, self.bulk.windows[dim][owner][1] + shift)
            transfers.append(Transfer(worker, owner, (position, stop), shift))
            position = stop
        return tuple(transfers)

    @cached_property
    def _outgoing(self) -> tuple[tuple[tuple[Transfer, ...], ...], ...]:
        tables: list[tuple[tuple[Transfer, ...], ...]] = []
        for transfers_of in self._incoming:
            outgoing: list[list[Transfer]] = [[] for _ in transfers_of]
            for transfers in transfers_of:
                for transfer in transfers:
                    outgoing[transfer.sender].append(transfer)
            tables.append(tuple(map(tuple, outgoing)))
        return tuple(tables)


@lru_cache(maxsize=64)
def halo_geometry(bulk: Layout, window: Layout, periodic: tuple[int, ...] = ()) -> HaloGeometry:
    """The geometry of an exchange from `bulk` to `window`, made once for all simulated ranks."""
    return HaloGeometry(bulk, window, None, periodic)


@lru_cache(maxsize=64)
def _outputs(bulk: Layout, lengths: tuple[int, ...], cuts: tuple[tuple[int, ...] | None, ...]) -> Layout:
    """The layout of the outputs over the partition of `bulk`, made once for all simulated ranks."""
    return Layout.cut(lengths, bulk.partition, cuts, bulk.axes)


@lru_cache(maxsize=64)
def _window_of_kernel(
    bulk: Layout,
    output: Layout,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    paddings: tuple[Widths, ...],
) -> Layout:
    """The windows that the outputs read, made once for all simulated ranks."""
    # Output i reads the inputs i s - p + d j for j = 0 ... k-1: from the first read of the first output to the last read
    # of the last. A worker without outputs needs nothing: an empty window, at the start of its bulk.
    windows = [
        [
            (first * s - p, (last - 1) * s - p + d * (k - 1) + 1) if first < last else (start, start)
            for (first, last), (start, _) in zip(output.windows[dim], bulk.windows[dim], strict=True)
        ]
        for dim, (k, s, d, (p, _)) in enumerate(zip(sizes, strides, dilations, paddings, strict=True))
    ]
    return Layout(bulk.shape, bulk.partition, windows, bulk.axes)


def _check_bulk(bulk: object) -> None:
    if not isinstance(bulk, Layout):
        raise TypeError(f"bulk: {bulk!r} is not a Layout")
    if (dim := bulk.untiled) is not None:
        raise ValueError(
            f"bulk: the windows {' '.join(f'{start}:{stop}' for start, stop in bulk.windows[dim])} do not cut dimension {dim}, "
            f"of length {bulk.shape[dim]}; the workers' bulks are disjoint and cover it"
        )


def _check_same_partition(name: str, layout: object, bulk: Layout) -> None:
    if not isinstance(layout, Layout):
        raise TypeError(f"{name}: {layout!r} is not a Layout")
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


def _one_per_dim(name: str, value: int | Sequence[int], order: int) -> tuple[int, ...]:
    entries = integers(name, (value,) * order if isinstance(value, Integral) else value)
    if len(entries) != order:
        raise ValueError(
            f"{name}: {entries} for a tensor of order {order}; give one value for each dimension"
        )
    return entries


def _paddings(padding: int | Sequence[int | Sequence[int]], order: int) -> tuple[Widths, ...]:
    try:
        entries = (padding,) * order if isinstance(padding, Integral) else tuple(padding)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"padding: {padding!r} is neither a width nor one for each dimension") from None
    if len(entries) != order:
        raise ValueError(
            f"padding: {entries} for a tensor of order {order}; give one width, or (left, right), for each dimension"
        )
    paddings: list[Widths] = []
    for dim, entry in enumerate(entries):
        widths = integers("padding", (entry, entry) if isinstance(entry, Integral) else entry)
        if len(widths) != 2 or min(widths) < 0:
            raise ValueError(f"padding: {entry} in dimension {dim} is neither a width nor (left, right)")
        paddings.append((widths[0], widths[1]))
    return tuple(paddings)


def _as_widths(widths: Sequence[Sequence[Widths]]) -> list[list[Widths]]:
    try:
        return [[(index(left), index(right)) for left, right in workers] for workers in widths]
    except (TypeError, ValueError):
        raise TypeError(
            f"widths: {widths!r} is not a list of (left, right) of each worker for each dimension"
        ) from None


def _smallest_containing(bulk: Window, window: Window) -> Window:
    """Return the smallest interval that contains both. An empty interval is contained in any; if both are empty, return the bulk."""
    held = [interval for interval in (bulk, window) if interval[0] < interval[1]] or [bulk]
    return min(start for start, _ in held), max(stop for _, stop in held)
