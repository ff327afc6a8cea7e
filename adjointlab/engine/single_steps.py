"""The cases that are one step smaller than a case: one rank less, one cut less, or one side of a tensor shorter by one.

Hypothesis shrinks one choice at a time, but a grid of another shape changes the meaning of all later choices. So there may be cases
smaller than its smallest that no change of a single choice reaches. These are made here from the parameters themselves: partitions,
layouts, integers, and tuples of integers. A strategy need not draw them all: a step may break a constraint of the strategy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice, pairwise
from typing import Final

from msgspec import structs

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition
from adjointlab.engine.case import Case
from adjointlab.engine.parameter_tree import Change, is_cut, leaves, mapped

__all__ = ["MOST_STEPS", "one_step_smaller", "size", "without_logs_of_shapes"]

MOST_STEPS: Final = 300
"""Largest number of smaller cases made from one case."""


def one_step_smaller(case: Case) -> Iterator[Case]:
    """Yield the cases that are one step smaller, each once, those with fewer ranks first; at most :data:`MOST_STEPS`."""
    seen = {case.key()}

    def fresh() -> Iterator[Case]:
        for ranks, change in _changes(case):
            try:
                parameters = mapped(dict(case.parameters), change)
                assert isinstance(parameters, Mapping)
                smaller = structs.replace(case, ranks=ranks, parameters=parameters)
                key = smaller.key()
            except (ValueError, TypeError):
                continue  # no such layout, or no data
            if key not in seen:
                seen.add(key)
                yield smaller

    return islice(fresh(), MOST_STEPS)


@contextmanager
def without_logs_of_shapes() -> Iterator[None]:
    """Context in which torch does not log mismatched shapes: it would do so at length in every case, and the report has the exception."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def none(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(none)
    try:
        yield
    finally:
        logger.removeFilter(none)


def size(case: Case) -> tuple[int, ...]:
    """Return the sizes of a case: ranks, uneven cuts, workers, sides and integers. A smaller case exceeds another in none of them."""
    values = list(leaves(dict(case.parameters)))
    layouts = [value for value in values if isinstance(value, Layout)]
    partitions = [value for value in values if isinstance(value, Partition)]
    return (
        case.ranks,
        sum(not _is_balanced(layout, dim) for layout in layouts for dim in range(layout.order)),
        sum(partition.size for partition in partitions) + sum(layout.partition.size for layout in layouts),
        sum(sum(layout.shape) for layout in layouts),
        sum(abs(value) for value in values if isinstance(value, int)),
    )


def _changes(case: Case) -> Iterator[tuple[int, Change]]:
    """Yield for each step the number of ranks after it, and its effect on a parameter."""
    entries = list(leaves(dict(case.parameters)))
    layouts = [entry for entry in entries if isinstance(entry, Layout)]
    grids = {entry for entry in entries if isinstance(entry, Partition)} | {
        each.partition for each in layouts
    }
    partitions = sorted(grids, key=lambda grid: (grid.shape, grid.ranks))
    for gone in reversed(range(case.ranks)):
        without = _without_rank(gone, case.ranks)
        yield case.ranks - 1, without
        for grid in partitions:
            for dim, index in enumerate(grid.index(gone) if grid.is_active(gone) else ()):
                yield case.ranks - 1, _then(_without_slab(grid, dim, index), without)
    for grid in partitions:
        for dim, side in enumerate(grid.shape):
            for index in range(side):
                yield case.ranks, _without_slab(grid, dim, index)
    for shape in sorted({layout.shape for layout in layouts}):
        for dim, side in enumerate(shape):
            if side == 1:
                continue  # an empty tensor would be smaller still, but explains less than one with an element
            for index in reversed(range(side)):
                yield case.ranks, _without_index(shape, dim, index)
    inputs = _shapes_of_inputs(case)
    for place, side in sorted({sides for shape in inputs for sides in enumerate(shape) if sides[1]}):
        yield case.ranks, _shorter_inputs(inputs, place, side)
    of_inputs = [
        key == "inputs" and bool(inputs) for key, value in case.parameters.items() for _ in leaves(value)
    ]
    for number, (entry, is_side) in enumerate(zip(entries, of_inputs, strict=True)):
        if isinstance(entry, int) and not isinstance(entry, bool) and entry and not is_side:
            yield case.ranks, _nearer_to_zero(number)


def _shapes_of_inputs(case: Case) -> tuple[Sequence[int], ...]:
    """The shapes of a module's inputs, if it has several."""
    inputs = case.parameters.get("inputs")
    if not isinstance(inputs, list | tuple) or len(inputs) < 2:
        return ()
    are_shapes = all(
        isinstance(shape, list | tuple) and all(type(side) is int for side in shape) for shape in inputs
    )
    return tuple(inputs) if are_shapes else ()


# Steps. Each is a function of one parameter, or of an entry of one; partitions and layouts are such entries.


def _without_rank(gone: int, ranks: int) -> Change:
    """Decrease the numbers of the ranks after `gone`; raises `ValueError` if `gone` is in a partition."""

    def change(value: object) -> object:
        if isinstance(value, Layout):
            return _over(value, change(value.partition))
        if isinstance(value, Partition):
            if value.is_active(gone):
                raise ValueError(f"gone: rank {gone} is in {value}")
            return Partition(value.shape, [rank - (rank > gone) for rank in value.ranks])
        if is_cut(value) and len(value) == ranks + 1:
            # Boundaries of one part for each rank: merge two parts.
            return _without_boundary(value, gone)
        return value

    return change


def _without_slab(grid: Partition, dim: int, index: int) -> Change:
    """Remove the workers at one index of a grid; their neighbours take over their parts of a tensor."""
    shape = tuple(side - (d == dim) for d, side in enumerate(grid.shape))
    ranks = [rank for rank in grid.ranks if grid.index(rank)[dim] != index]

    def change(value: object) -> object:
        if isinstance(value, Layout) and value.partition == grid:
            windows: list[tuple[Window, ...] | None] = []
            for tensor_dim, axis in enumerate(value.axes):
                old = value.windows[tensor_dim]
                windows.append(old if axis != dim else _without_part(value, tensor_dim, index))
            return _layout(value, value.shape, Partition(shape, ranks), windows)
        return Partition(shape, ranks) if value == grid else value

    return change


def _without_index(shape: tuple[int, ...], dim: int, index: int) -> Change:
    """Remove one index from dimension `dim` of all layouts of that shape, and of tuples equal to it."""
    shorter = tuple(side - (d == dim) for d, side in enumerate(shape))

    def change(value: object) -> object:
        if value == shape:
            return shorter
        if not isinstance(value, Layout) or value.shape != shape:
            return value
        windows: list[tuple[Window, ...] | None] = list(value.windows)
        windows[dim] = (
            None
            if _is_balanced(value, dim)
            else tuple((start - (start > index), stop - (stop > index)) for start, stop in value.windows[dim])
        )
        return _layout(value, shorter, value.partition, windows)

    return change


def _shorter_inputs(shapes: tuple[Sequence[int], ...], place: int, side: int) -> Change:
    """Shorten dimension `place` of all inputs that have length `side` there.

    Together, because torch's attention kernels write out of bounds if the inputs do not match.
    """

    def shorter(shape: Sequence[int]) -> Sequence[int]:
        sides = [own - (at == place and own == side) for at, own in enumerate(shape)]
        return sides if isinstance(shape, list) else tuple(sides)

    def change(value: object) -> object:
        return tuple(map(shorter, shapes)) if value == shapes else value

    return change


def _nearer_to_zero(number: int) -> Change:
    """Move entry `number` of the parameters, an integer, one towards zero."""
    counted = count()

    def change(value: object) -> object:
        if isinstance(value, tuple):
            return value  # its entries are counted one by one
        if next(counted) == number and isinstance(value, int):
            return value - 1 if value > 0 else value + 1
        return value

    return change


def _then(first: Change, second: Change) -> Change:
    return lambda value: second(first(value))


# Layouts


def _without_part(layout: Layout, dim: int, index: int) -> tuple[Window, ...] | None:
    """The windows of a dimension after one part is removed; `None` for the balanced cut."""
    if _is_balanced(layout, dim):
        return None
    ends = layout.ends(dim)
    if ends is not None:
        return tuple(pairwise(_without_boundary(ends, index)))
    windows = list(layout.windows[dim])
    del windows[index]
    return tuple(windows)


def _without_boundary(ends: Sequence[int], part: int) -> Sequence[int]:
    """The boundaries after one part is merged into the one before it, or the first into the second."""
    boundary = max(part, 1)
    return (*ends[:boundary], *ends[boundary + 1 :])


def _layout(
    layout: Layout, shape: tuple[int, ...], partition: Partition, windows: list[tuple[Window, ...] | None]
) -> Layout:
    """A layout with these windows; `None` stands for the balanced cut of a dimension."""
    balanced = Layout(shape, partition, axes=layout.axes)
    chosen = [own if given is None else given for own, given in zip(balanced.windows, windows, strict=True)]
    return Layout(shape, partition, chosen, layout.axes)


def _over(layout: Layout, partition: object) -> Layout:
    assert isinstance(partition, Partition)
    return Layout(layout.shape, partition, layout.windows, layout.axes)


def _is_balanced(layout: Layout, dim: int) -> bool:
    return layout.windows[dim] == Layout(layout.shape, layout.partition, axes=layout.axes).windows[dim]
