"""The cheapest way from one assignment of a tensor's dimensions to another [Dryden19, sections 2.3.4 and 2.3.5].

    all-gather       * ← ◦_d,  ◦_d ← ◦_{d,e}          assembles a dimension, or its parts, along the last grid dimensions
    discard          ◦_d ← *,  ◦_{d,e} ← ◦_d          each worker keeps a part of its copy
    reduce-scatter   ◦_{d,e} ← Σ̃_e ◦_d                sums, and leaves each worker a part
    all-reduce       * ← Σ̃ *                          sums, and leaves every worker the sum
    all-to-all       ◦ * ← * ◦                        whatever is needed goes straight to the target

The last one is always the last step, and there are no summands any more when it is taken. Nor is everything else among the
steps: grid dimensions are added to a dimension in one order, in which those that the target has there come first.

A chain of these is compared with another by the elements that its busiest worker receives, step by step; then by its
messages, then by its steps. A collective over g workers counts with the fewest elements and messages that it can do
with: (g-1)/g of the result and ⌈log₂ g⌉ messages for an all-gather.

Pure data. Grid dimensions of side 1 are left out: they distribute nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import combinations, count, takewhile
from typing import Any, NamedTuple

import numpy as np

from adjointlab.primitives.assignment import Assignment, nested_cut, subscript

__all__ = ["Cost", "Plan", "Step", "cheapest"]

Array = np.ndarray[Any, Any]
Windows = tuple[tuple[Array, Array], ...]


class Cost(NamedTuple):
    """What a chain costs, in the order of importance."""

    elements: int = 0
    messages: int = 0
    steps: int = 0
    direct: int = 0  # all-to-alls: a collective that costs the same is preferred

    def plus(self, other: Cost) -> Cost:
        """The cost of one chain after another."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Step:
    """One step of a chain: what is done to which dimension of the tensor, among the workers along which grid dimensions.

    An all-reduce and an all-to-all have no one dimension, an all-to-all no one group of workers.
    """

    kind: str
    source: Assignment
    target: Assignment
    dim: int | None = None
    along: tuple[int, ...] = ()

    def text(self) -> str:
        """The step in [Dryden19]'s notation."""
        summed = [axis for axis in self.source.summed if axis not in self.target.summed]
        sums = f"Σ̃{subscript(summed)} " if summed else ""
        arrow = f"{self.target.text('x')} ← {sums}{self.source.text('x')}"
        group = f" along grid dimension{'s' * (len(self.along) > 1)} {', '.join(map(str, self.along))}"
        return f"{arrow}: {self.kind}{group if self.along else ''}"


@dataclass(frozen=True)
class Plan:
    """A chain of steps and what it costs."""

    steps: tuple[Step, ...]
    cost: Cost


@lru_cache(maxsize=256)
def cheapest(grid: tuple[int, ...], shape: tuple[int, ...], source: Assignment, target: Assignment) -> Plan:
    """The cheapest plan for a tensor of the shape over a grid of these sides, by Dijkstra's search over assignments."""
    start, goal = _without_ones(grid, source), _without_ones(grid, target)
    known: dict[Assignment, Cost] = {start: Cost()}
    last: dict[Assignment, Step] = {}
    order = count()  # equal costs in the order of their discovery, the same on all ranks
    frontier = [(Cost(), next(order), start)]
    done = set()
    while frontier:
        cost, _, here = heappop(frontier)
        if here == goal:
            break
        if here in done:
            continue
        done.add(here)
        for step in _steps(grid, here, goal):
            total = cost.plus(_cost(grid, shape, step))
            there = step.target
            if there in known and known[there] <= total:
                continue
            if goal in known and known[goal] <= total.plus(_least(grid, shape, there, goal)):
                continue  # a way to the goal that is no dearer is known
            known[there], last[there] = total, step
            heappush(frontier, (total, next(order), there))
    steps: list[Step] = []
    here = goal
    while here != start:
        steps.append(last[here])
        here = last[here].source
    return Plan(tuple(reversed(steps)), known[goal])


def _without_ones(grid: Sequence[int], given: Assignment) -> Assignment:
    return Assignment(
        tuple(tuple(axis for axis in axes if grid[axis] > 1) for axes in given.dims),
        tuple(axis for axis in given.summed if grid[axis] > 1),
    )


def _steps(grid: Sequence[int], here: Assignment, goal: Assignment) -> Iterator[Step]:
    """Everything that can be done next."""
    copied = [axis for axis in here.redundant(grid) if grid[axis] > 1 and axis not in here.summed]
    for dim, axes in enumerate(here.dims):
        for kept in range(len(axes)):
            yield Step("all-gather", here, _with(here, dim, axes[:kept]), dim, axes[kept:])
        for added in _added(copied, axes, goal.dims[dim]):
            yield Step("discard", here, _with(here, dim, axes + added), dim, added)
        for added in _added(here.summed, axes, goal.dims[dim]):
            yield Step("reduce-scatter", here, _with(here, dim, axes + added, added), dim, added)
    for size in range(1, len(here.summed) + 1):
        for along in combinations(here.summed, size):
            rest = tuple(axis for axis in here.summed if axis not in along)
            yield Step("all-reduce", here, Assignment(here.dims, rest), None, along)
    if not here.summed:
        yield Step("all-to-all", here, goal)


def _with(here: Assignment, dim: int, axes: tuple[int, ...], summed: Sequence[int] = ()) -> Assignment:
    dims = (*here.dims[:dim], axes, *here.dims[dim + 1 :])
    return Assignment(dims, tuple(axis for axis in here.summed if axis not in summed))


def _added(free: Sequence[int], axes: tuple[int, ...], goal: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Some of the free grid dimensions, in one order: first those that lead to the goal, as it has them."""
    ahead = goal[len(axes) :] if goal[: len(axes)] == axes else ()
    for size in range(1, len(free) + 1):
        for chosen in combinations(free, size):
            leading = tuple(takewhile(frozenset(chosen).__contains__, ahead))
            yield leading + tuple(axis for axis in chosen if axis not in leading)


def _cost(grid: tuple[int, ...], shape: tuple[int, ...], step: Step) -> Cost:
    workers = math.prod(grid[axis] for axis in step.along)
    rounds = (workers - 1).bit_length()
    held, needed = _windows(grid, shape, step.source.dims), _windows(grid, shape, step.target.dims)
    size = _volume([stop - start for start, stop in needed])
    direct = 0
    match step.kind:
        case "discard":
            elements, messages = 0, 0
        case "reduce-scatter":
            elements, messages = (workers - 1) * int(size.max()), rounds
        case "all-reduce":
            largest = int(size.max())
            part, rest = divmod(largest, workers)
            # A reduce-scatter of all elements, then an all-gather.
            elements = (workers - 1) * (part + (rest > 0)) + largest - part
            messages = 2 * rounds
        case _:
            met = _volume([_met(one, other) for one, other in zip(held, needed, strict=True)])
            elements, messages = int((size - met).max()), rounds
            if step.kind == "all-to-all":
                parts = [
                    _met_parts(nested_cut(side, [grid[axis] for axis in axes]), window)
                    for side, axes, window in zip(shape, step.source.dims, needed, strict=True)
                ]
                messages = int((_volume(parts) - (met > 0)).max())
                direct = 1
    return Cost(elements, messages if elements else 0, 1, direct)


def _least(grid: tuple[int, ...], shape: tuple[int, ...], here: Assignment, goal: Assignment) -> Cost:
    """No way from here to the goal costs less."""
    if here == goal:
        return Cost()
    if not here.summed:
        elements = _received(_windows(grid, shape, here.dims), _windows(grid, shape, goal.dims))
        return Cost(elements, int(elements > 0), 1)
    # To give C workers the sum of G values takes G + C - 2 messages, which at best are spread over all workers.
    summands = math.prod(grid[axis] for axis in here.summed)
    copies = math.prod(grid[axis] for axis in goal.redundant(grid))
    elements = -(-math.prod(shape) * (summands + copies - 2) // math.prod(grid))
    return Cost(elements, (summands - 1).bit_length() if elements else 0, 1)


def _received(held: Windows, needed: Windows) -> int:
    """The largest number of elements that a worker needs and does not hold."""
    met = _volume([_met(one, other) for one, other in zip(held, needed, strict=True)])
    return int((_volume([stop - start for start, stop in needed]) - met).max())


@lru_cache(maxsize=1024)
def _windows(
    grid: tuple[int, ...], shape: tuple[int, ...], dims: tuple[tuple[int, ...], ...]
) -> tuple[tuple[Array, Array], ...]:
    """In each dimension of the tensor where every worker's window starts and stops, as arrays over the grid.

    They have side 1 along the grid dimensions that do not matter.
    """
    return tuple(_window(grid, side, axes) for side, axes in zip(shape, dims, strict=True))


@lru_cache(maxsize=1024)
def _window(grid: tuple[int, ...], side: int, axes: tuple[int, ...]) -> tuple[Array, Array]:
    sides = [grid[axis] for axis in axes]
    ends = np.array(nested_cut(side, sides))
    order = sorted(range(len(axes)), key=axes.__getitem__)
    over = [length if axis in axes else 1 for axis, length in enumerate(grid)]
    starts, stops = (cut.reshape(sides).transpose(order).reshape(over) for cut in (ends[:-1], ends[1:]))
    return starts, stops


def _met(one: tuple[Array, Array], other: tuple[Array, Array]) -> Array:
    """The number of indices that two windows share."""
    shared: Array = np.minimum(one[1], other[1]) - np.maximum(one[0], other[0])
    return shared.clip(min=0)


def _met_parts(ends: tuple[int, ...], window: tuple[Array, Array]) -> Array:
    """The number of parts of a cut that share an index with a window."""
    inner = np.unique(ends)  # empty parts hold nothing
    first = np.searchsorted(inner, window[0], side="right") - 1
    last = np.searchsorted(inner, window[1], side="left")
    met: Array = np.where(window[0] < window[1], last - first, 0)
    return met


def _volume(lengths: Sequence[Array]) -> Array:
    """The product over the dimensions, as an array over the grid."""
    product: Array = np.ones((), np.int64)
    for length in lengths:
        product = product * length
    return product
