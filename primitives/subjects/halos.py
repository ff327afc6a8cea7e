"""Cases of HaloExchange and HaloExchangeInPlace: bulks and the windows that workers need around or apart from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from adjointlab.core import strategies
from adjointlab.core.kept_strategies import BOOLEANS, choices, integers, made_once, permuted
from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
from adjointlab.primitives.halo_geometry import HaloGeometry
from adjointlab.primitives.subjects import building_blocks as blocks
from adjointlab.primitives.subjects.building_blocks import DTYPES, Parameters, SizedCase, primitive_subject
from adjointlab.typing import Array

__all__ = ["halo_exchanges", "halo_exchanges_in_place"]

_DimensionCase: TypeAlias = tuple[Layout, tuple[Window, ...]]
"""One tensor dimension: its cut over a line of workers, and the window of each worker along it."""


def _every_halo_exchange(
    *,
    ranks: int = 4,
    side: int = 6,
    kernel: int = 3,
    stride: int = 3,
    dilation: int = 2,
    free: int = 3,
    side2: int = 3,
    kernel2: int = 2,
    stride2: int = 2,
    side3: int = 2,
    kernel3: int = 2,
    ring2: int = 2,
) -> Iterator[SizedCase]:
    """Exchanges of tensors of order 1, 2 and 3; the bounds of orders 2 and 3 end in that number.

    Order 1: every window of tensors with sides up to `free`, periodic and not; then the windows that every kernel needs,
    for every cut and all padding. Orders 2 and 3: the windows of kernels with a size, stride and padding for each
    dimension, undilated, on every grid. Order 2 also: halos of width 0 and 1 of tensors with sides up to `ring2` that are
    periodic in one or both dimensions. Kernels that need the same windows make one case.
    """
    listed = set()
    for workers, case in _every_window_of_order_1(min(ranks, 3), free):
        listed.add((case["layout"], case["windows"]))
        yield workers, case
    for workers in range(1, ranks + 1):
        for dimension_case in _kernel_cases(workers, side, kernel, stride, dilation, least=0):
            case = _exchange((workers,), [dimension_case])
            if (case["layout"], case["windows"]) not in listed:
                yield workers, case
    for order, longest, widest, steps in ((2, side2, kernel2, stride2), (3, side3, kernel3, 1)):
        for grid in blocks.grids_of_order(ranks, order):
            along = [_kernel_cases(workers, longest, widest, steps, 1, least=1) for workers in grid]
            for dimension_cases in product(*along):
                yield prod(grid), _exchange(grid, dimension_cases)
    for grid in blocks.grids_of_order(ranks, 2):
        for dimension_cases in product(*(_periodic_cases(workers, ring2) for workers in grid)):
            for periodic in ((0,), (1,), (0, 1)):
                yield prod(grid), _exchange(grid, dimension_cases, periodic)


def _unchanged(x: Array, *, periodic: Sequence[int], **_: object) -> object:
    """Return the global tensor: the sequential twin of an exchange, whose windows hold zeros beyond the tensor."""
    # Windows around a periodic dimension are no windows of one tensor.
    return NotImplemented if periodic else x


@primitive_subject(HaloExchange, reference=_unchanged, every=_every_halo_exchange)
def halo_exchanges(draw: DrawFn, ranks: int) -> Parameters:
    """Windows that a kernel needs, and any others, around any cut."""
    return _halos(draw, ranks)


# Padded tensors are domain and codomain, so the matrices are larger and the default bound is lower.
@primitive_subject(HaloExchangeInPlace, every=partial(_every_halo_exchange, ranks=3))
def halo_exchanges_in_place(draw: DrawFn, ranks: int) -> Parameters:
    """The cases of :func:`halo_exchanges`; each worker's tensor is padded to hold its bulk too."""
    return _halos(draw, ranks)


def _exchange(
    grid: Sequence[int], along: Iterable[_DimensionCase], periodic: tuple[int, ...] = ()
) -> Parameters:
    """Arguments of an exchange whose tensor dimension d is ``along[d]``, cut along dimension d of the grid."""
    partition = Partition(grid)
    cuts, held = zip(*along, strict=True)
    shape = [cut.shape[0] for cut in cuts]
    return {
        "layout": Layout.cut(shape, partition, [cut.ends(0) for cut in cuts]),
        "windows": Layout(shape, partition, held),
        "periodic": periodic,
    }


def _kernel_cases(
    workers: int, side: int, kernel: int, stride: int, dilation: int, *, least: int
) -> list[_DimensionCase]:
    """Every cut of lengths `least` to `side` with the windows that some kernel needs of it; each once."""
    found: dict[_DimensionCase, None] = {}
    kernels = list(product(range(1, kernel + 1), range(1, stride + 1), range(1, dilation + 1)))
    for cut, (size, step, spread) in product(_cuts(workers, least, side), kernels):
        reach = spread * (size - 1)
        for padding in product(range(reach + 1), repeat=2):
            if cut.shape[0] + sum(padding) > reach:
                geometry = HaloGeometry.from_kernel(
                    cut, size, stride=step, dilation=spread, padding=(padding,)
                )
                found[cut, geometry.window.windows[0]] = None
    return list(found)


def _cuts(workers: int, least: int, side: int) -> Iterator[Layout]:
    """Every cut of tensors of order 1, of lengths `least` to `side`."""
    return (cut for cut in blocks.layouts(Partition((workers,)), side) if cut.shape[0] >= least)


def _periodic_cases(workers: int, side: int) -> list[_DimensionCase]:
    """Every cut of lengths 1 to `side` with halos of width 0 or 1 on either side, the same for all workers."""
    return [
        (cut, tuple((start - left, stop + right) for start, stop in cut.windows[0]))
        for cut in _cuts(workers, 1, side)
        for left, right in product((0, 1), repeat=2)
    ]


def _every_window_of_order_1(ranks: int, side: int) -> Iterator[SizedCase]:
    """Tensors of order 1 with every choice of windows up to two elements beyond the tensor.

    On three workers there are so many that tensors have at most two elements and windows reach one element beyond.
    """
    for workers in range(1, ranks + 1):
        longest, beyond = (side, 2) if workers < 3 else (min(side, 2), 1)
        for cut in _cuts(workers, 0, longest):
            for held in product(blocks.windows(cut.shape[0], beyond), repeat=workers):
                wanted = Layout(cut.shape, cut.partition, [held])
                for periodic in ((), (0,)) if any(cut.shape) else ((),):
                    yield workers, {"layout": cut, "windows": wanted, "periodic": periodic}


def _halos(draw: DrawFn, ranks: int) -> Parameters:
    """Draw the arguments that both forms of the exchange share."""
    bulk = draw(_bulks(ranks))
    from_kernel = 0 not in bulk.shape and draw(BOOLEANS)
    may_be_periodic = draw(integers(0, 2)) > 0
    return {
        "layout": bulk,
        "windows": _kernel_windows(draw, bulk) if from_kernel else _free_windows(draw, bulk),
        "periodic": tuple(
            dim for dim, side in enumerate(bulk.shape) if side and may_be_periodic and draw(BOOLEANS)
        ),
        "dtype": draw(DTYPES),
    }


@made_once
@st.composite
def _bulks(draw: DrawFn, ranks: int) -> Layout:
    """Cuts of tensors of order 1 to 5 along the dimensions of any grid, in any order, or along none."""
    grid_order = draw(choices((1, 2, 2, 3)))  # corners need two dimensions
    partition = draw(strategies.partitions(ranks, grid_order, whole=draw(choices((True, True, False)))))
    axes: list[int | None] = list(range(partition.order))
    if draw(BOOLEANS):
        order = draw(integers(1, 5))
        spare = max(0, order - partition.order) + draw(integers(0, 1))
        axes = permuted(draw, [*axes, *[None] * spare])[:order]
    order = len(axes)
    shape = tuple(draw(_small_sides(order) if order > 3 else strategies.shapes(order)))
    bulks: list[list[Window]] = []
    for side, axis in zip(shape, axes, strict=True):
        parts = 1 if axis is None else partition.shape[axis]
        bulks.append([*pairwise(draw(strategies.cuts(side, parts)))])
        if parts > 1 and draw(integers(0, 3)) == 3:
            bulks[-1] = permuted(draw, bulks[-1])
    return Layout(shape, partition, bulks, axes)


@made_once
def _small_sides(order: int) -> SearchStrategy[list[int]]:
    return st.lists(integers(1, 3), min_size=order, max_size=order)


def _kernel_windows(draw: DrawFn, bulk: Layout) -> Layout:
    """The windows that a kernel needs, for any cut of its output."""
    kernels, strides, dilations, paddings, output_cuts = [], [], [], [], []
    for side, owned in zip(bulk.shape, bulk.windows, strict=True):
        kernel, dilation, stride = draw(integers(1, 4)), draw(integers(1, 2)), draw(integers(1, 3))
        most = dilation * (kernel - 1)
        padding = (draw(integers(0, most)), draw(integers(0, most)))
        length = (side + sum(padding) - most - 1) // stride + 1
        if length < 1:  # the tensor is smaller than the kernel
            kernel, padding, length = 1, (0, 0), (side - 1) // stride + 1
        kernels.append(kernel)
        strides.append(stride)
        dilations.append(dilation)
        paddings.append(padding)
        output_cuts.append(draw(strategies.cuts(length, len(owned))))
    return HaloGeometry.from_kernel(
        bulk, kernels, stride=strides, dilation=dilations, padding=paddings, output_cuts=output_cuts
    ).window


def _free_windows(draw: DrawFn, bulk: Layout) -> Layout:
    """Windows of any width anywhere: around the bulk or apart from it, empty, trimmed, and beyond the tensor."""
    reach = 3 if bulk.order < 3 else 1
    widths = integers(-reach, reach)
    drawn: list[list[Window]] = []
    for side, owned in zip(bulk.shape, bulk.windows, strict=True):
        drawn.append([])
        for start, stop in owned:
            if draw(integers(0, 3)) == 3:
                start, stop = draw(integers(-reach, side)), draw(integers(0, side + reach))
            else:
                start, stop = start - draw(widths), stop + draw(widths)
            drawn[-1].append((start, max(start, stop)))
    return Layout(bulk.shape, bulk.partition, drawn, bulk.axes)
