"""Reshaping a tensor that is cut: from interval to interval of the elements in row-major order.

    forward    x ← T_{P_x→P_r} x              in each group of dimensions, only one stays cut
               y = flat(x)                     on each worker
               y ← T y                         the intervals become multiples of the elements per index of y's cut dimension
               y = unflat(y)                   on each worker
               y ← T_{P_r→P_y} y              to the wanted layout, if that is another one
    adjoint    that of each step in the reverse order

Dimensions of x and of y form the smallest groups with equal numbers of elements on both sides, and each group is reshaped
separately: a batch that stays is cut as before. Over two workers, 4 x 3 becomes 2 x 6 without a message, and 3 x 4 with
one of two elements:

        0  1  2             0  1  2  3  4  5             0  1  2  3         the first worker has 0 to 5,
        3  4  5             ----------------             4  5  6  7         and needs 0 to 7
        -------      →      6  7  8  9 10 11      or     ----------
        6  7  8                                          8  9 10 11
        9 10 11

A window [a, b) of the cut dimension is the interval [a n, b n) of its group, where n is the number of elements of the dimensions
that follow it; those before it have length 1. If the intervals are such multiples already, nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import nn

from adjointlab.core.layout import Layout, Window, balanced_windows
from adjointlab.core.partition import Partition
from adjointlab.layers.rearrangement import Rearrangement, Steps, in_elements, in_units

__all__ = ["Groups", "Reshape", "Reshaped", "Unflatten", "add_reshaping", "groups_of_one_split"]

Groups: TypeAlias = Sequence[tuple[range, range]]
"""Pairs of ranges of dimensions of x and of y that have equally many elements; together all dimensions, in order."""


class Reshaped(nn.Module):
    """`torch.reshape` as a module."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor in its new shape."""
        return x.reshape(self.shape)

    def extra_repr(self) -> str:
        return f"{self.shape}"


class Reshape(Rearrangement, torch_classes=(Reshaped,)):
    """`torch.reshape`, or `Tensor.view`, to a `shape`, of which torch infers a side of -1; see :class:`Rearrangement`.

    The output lies over the same workers. Dimensions that stay are cut as before. Those that are merged or split form groups,
    and each group's workers have consecutive elements: the first of its dimensions in y that is longer than 1 is cut.
    """

    def plan(self, module: nn.Module, y_shape: tuple[int, ...]) -> None:
        add_reshaping(self.steps, y_shape, self.groups(module, y_shape))

    def groups(self, module: nn.Module, y_shape: tuple[int, ...]) -> Groups:
        """Return the groups, each of which is reshaped separately."""
        return _least_groups(self.input_shape, y_shape)


class Unflatten(Reshape, torch_classes=(nn.Unflatten,)):
    """`torch.nn.Unflatten`, without names of dimensions; see :class:`Reshape`."""

    def groups(self, module: nn.Module, y_shape: tuple[int, ...]) -> Groups:
        order, dim = len(self.input_shape), module.dim
        assert isinstance(dim, int)
        return groups_of_one_split(order, dim % order, len(y_shape) - order + 1)


class _Cut(NamedTuple):
    """The dimension of a group that is cut, the windows of its workers, and the elements of the dimensions that follow it."""

    dim: int | None
    windows: tuple[Window, ...]
    per_index: int

    @property
    def intervals(self) -> tuple[Window, ...]:
        """The windows as intervals of the group's elements."""
        return in_elements(self.windows, self.per_index)


def add_reshaping(steps: Steps, y_shape: tuple[int, ...], groups: Groups) -> None:
    """Collective: add the steps from a layout, whose dimensions all lie along partition dimensions, to one of `y_shape`."""
    of_x, joined, cut_for_y, y = _layouts(steps.layout, y_shape, tuple(groups))
    steps.move(of_x)
    steps.reshape(joined)
    steps.move(cut_for_y)
    steps.reshape(y)


@lru_cache(maxsize=64)  # linear in the number of workers, and called by every rank
def _layouts(
    x: Layout, y_shape: tuple[int, ...], groups: tuple[tuple[range, range], ...]
) -> tuple[Layout, Layout, Layout, Layout]:
    """Return the layouts between the steps: x with one cut dimension per group, the groups as vectors, these as cut for y, and y."""
    cuts = [_cut_of_input(x, dims) for dims, _ in groups]
    workers = Partition([len(cut.windows) for cut in cuts], x.partition.ranks)
    sizes = [math.prod(x.shape[dim] for dim in dims) for dims, _ in groups]
    of_x = _boxes(x.shape, workers, cuts)
    joined = Layout(sizes, workers, [cut.intervals for cut in cuts])
    if not y_shape:  # a single element, without a dimension to cut
        workers = Partition((1,) * len(groups), workers.ranks[:1])
        cuts = [_Cut(None, ((0, 1),), 1) for _ in groups]
    else:
        cuts = [_cut_of_output(y_shape, dims, cut) for (_, dims), cut in zip(groups, cuts, strict=True)]
    cut_for_y = Layout(sizes, workers, [cut.intervals for cut in cuts])
    boxes = _boxes(y_shape, workers, cuts)
    along = Partition([len(windows) for windows in boxes.windows], workers.ranks)
    return of_x, joined, cut_for_y, Layout(y_shape, along, boxes.windows)


def groups_of_one_split(order: int, dim: int, parts: int) -> Groups:
    """Return the groups of a tensor whose dimension `dim` is split into `parts` dimensions."""
    more = parts - 1
    before = [(range(each, each + 1), range(each, each + 1)) for each in range(dim)]
    after = [(range(each, each + 1), range(each + more, each + more + 1)) for each in range(dim + 1, order)]
    return [*before, (range(dim, dim + 1), range(dim, dim + parts)), *after]


def _boxes(shape: tuple[int, ...], workers: Partition, cuts: Sequence[_Cut]) -> Layout:
    """Return the layout in which one dimension of each group is cut, and the others are whole."""
    windows: list[tuple[Window, ...]] = [((0, side),) for side in shape]
    axes: list[int | None] = [None] * len(shape)
    for axis, cut in enumerate(cuts):
        if cut.dim is not None:
            windows[cut.dim], axes[cut.dim] = cut.windows, axis
    return Layout(shape, workers, windows, axes)


def _cut_of_input(x: Layout, dims: range) -> _Cut:
    """Return the cut of the dimension that stays cut: as before if no other one of the group is cut, else balanced."""
    if not dims:
        return _Cut(None, ((0, 1),), 1)
    legal = _may_be_cut(x.shape, dims)
    cut = [dim for dim in dims if x.partition.shape[dim] > 1] or [legal[-1]]
    if len(cut) == 1 and cut[0] in legal:
        return _Cut(cut[0], x.windows[cut[0]], math.prod(x.shape[cut[0] + 1 : dims.stop]))
    workers = math.prod(x.partition.shape[dim] for dim in dims)
    return _balanced(x.shape, dims, workers)


def _cut_of_output(shape: tuple[int, ...], dims: range, given: _Cut) -> _Cut:
    """Return the cut that keeps the intervals if there is one, else the balanced one."""
    cut = _balanced(shape, dims, len(given.windows))
    assert cut.dim is not None
    return cut._replace(windows=in_units(given.intervals, cut.per_index, shape[cut.dim]))


def _balanced(shape: tuple[int, ...], dims: range, workers: int) -> _Cut:
    dim = _may_be_cut(shape, dims)[-1]
    windows = balanced_windows(shape[dim], workers)
    return _Cut(dim, windows, math.prod(shape[dim + 1 : dims.stop]))


def _may_be_cut(shape: tuple[int, ...], dims: range) -> range:
    """Return the dimensions of a group whose windows are intervals of its elements: all dimensions before them have length 1."""
    first_long = next((dim for dim in dims if shape[dim] != 1), dims.stop - 1)
    return range(dims.start, first_long + 1)


def _least_groups(x_shape: tuple[int, ...], y_shape: tuple[int, ...]) -> Groups:
    everything = (range(len(x_shape)), range(len(y_shape)))
    if 0 in x_shape:
        return [everything]
    groups: list[tuple[range, range]] = []
    x_end = y_end = 0
    while x_end < len(x_shape) and y_end < len(y_shape):
        x_start, y_start, x_size, y_size = x_end, y_end, x_shape[x_end], y_shape[y_end]
        x_end, y_end = x_end + 1, y_end + 1
        while x_size != y_size:
            if x_size < y_size:
                x_size, x_end = x_size * x_shape[x_end], x_end + 1
            else:
                y_size, y_end = y_size * y_shape[y_end], y_end + 1
        groups.append((range(x_start, x_end), range(y_start, y_end)))
    if not groups:
        return [everything]
    # Dimensions of length 1 at the end belong to the last group.
    x_last, y_last = groups[-1]
    return [*groups[:-1], (range(x_last.start, len(x_shape)), range(y_last.start, len(y_shape)))]
