"""The cheapest way from one assignment of a tensor's dimensions to another [Dryden19, sections 2.3.4 and 2.3.5].

    all-gather       * ← ◦_d,  ◦_d ← ◦_{d,e}          assembles a dimension, or its parts, along the last grid dimensions
    discard          ◦_d ← *,  ◦_{d,e} ← ◦_d          each worker keeps a part of its copy
    reduce-scatter   ◦_{d,e} ← Σ̃_e ◦_d                sums, and leaves each worker a part
    all-reduce       * ← Σ̃ *                          sums, and leaves every worker the sum
    all-to-all       ◦ * ← * ◦                        all elements that are needed go directly to the target

A chain of such steps leads from one assignment to another. Not every chain is searched: an all-to-all is the last step,
taken when no summands are left; and grid dimensions are added to a tensor dimension in one order only, which begins with those
that the target has there.

Chains are compared by the elements that the busiest worker receives, added up over the steps; then by messages, then by the
number of steps. A collective over g workers is charged the fewest elements and messages that any algorithm needs:
(g-1)/g of the result and ⌈log₂ g⌉ messages for an all-gather.

Pure data. Grid dimensions of side 1 are left out: they distribute nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from heapq import heappop, heappush
from itertools import combinations, count, takewhile
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adjointlab.primitives.assignment import Assignment, nested_cut, subscript

__all__ = ["Cost", "PlanStep", "RedistributionPlan", "StepKind", "cheapest"]

_GridArray: TypeAlias = NDArray[np.int64]
"""A number for each worker: one axis for each grid dimension, of side 1 where the number does not depend on it."""

_Windows: TypeAlias = tuple[_GridArray, _GridArray]
"""Starts and stops of the windows of all workers in one tensor dimension."""


class StepKind(Enum):
    """Kind of a step; the value is its name in the notation."""

    ALL_GATHER = "all-gather"
    DISCARD = "discard"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"


class Cost(NamedTuple):
    """Cost of a chain; costs are compared lexicographically."""

    elements: int = 0
    messages: int = 0
    steps: int = 0
    all_to_alls: int = 0  # a collective that costs the same is preferred

    def plus(self, other: Cost) -> Cost:
        """The cost of one chain after another."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class PlanStep:
    """One step of a chain: a collective on tensor dimension `dim` among the workers along the grid dimensions `along`.

    An all-reduce and an all-to-all have no `dim`, and an all-to-all has no `along`.
    """

    kind: StepKind
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
        return f"{arrow}: {self.kind.value}{group if self.along else ''}"


@dataclass(frozen=True)
class RedistributionPlan:
    """A chain of steps and its cost."""

    steps: tuple[PlanStep, ...]
    cost: Cost


@lru_cache(maxsize=256)
def cheapest(
    grid: tuple[int, ...], shape: tuple[int, ...], source: Assignment, target: Assignment
) -> RedistributionPlan:
    """The cheapest plan for a tensor of the shape over a grid of these sides, by Dijkstra's search over assignments."""
    start, goal = _without_ones(grid, source), _without_ones(grid, target)
    known: dict[Assignment, Cost] = {start: Cost()}
    last_step_to: dict[Assignment, PlanStep] = {}
    order = count()  # equal costs in the order of their discovery, the same on all ranks
    frontier = [(Cost(), next(order), start)]
    done = set()
    while frontier:
        cost, _, current = heappop(frontier)
        if current == goal:
            break
        if current in done:
            continue
        done.add(current)
        for step in _steps(grid, current, goal):
            total = cost.plus(_cost(grid, shape, step))
            following = step.target
            if following in known and known[following] <= total:
                continue
            if goal in known and known[goal] <= total.plus(_least(grid, shape, following, goal)):
                continue  # no chain through this assignment can cost less than a known one
            known[following], last_step_to[following] = total, step
            heappush(frontier, (total, next(order), following))
    steps: list[PlanStep] = []
    current = goal
    while current != start:
        steps.append(last_step_to[current])
        current = last_step_to[current].source
    return RedistributionPlan(tuple(reversed(steps)), known[goal])


def _without_ones(grid: Sequence[int], assigned: Assignment) -> Assignment:
    return Assignment(
        tuple(tuple(axis for axis in axes if grid[axis] > 1) for axes in assigned.dims),
        tuple(axis for axis in assigned.summed if grid[axis] > 1),
    )


def _steps(grid: Sequence[int], current: Assignment, goal: Assignment) -> Iterator[PlanStep]:
    """Yield the steps that start from an assignment."""
    copied = [axis for axis in current.redundant(grid) if grid[axis] > 1 and axis not in current.summed]
    for dim, axes in enumerate(current.dims):
        for kept in range(len(axes)):
            yield PlanStep(StepKind.ALL_GATHER, current, _with(current, dim, axes[:kept]), dim, axes[kept:])
        for added in _added(copied, axes, goal.dims[dim]):
            yield PlanStep(StepKind.DISCARD, current, _with(current, dim, axes + added), dim, added)
        for added in _added(current.summed, axes, goal.dims[dim]):
            yield PlanStep(
                StepKind.REDUCE_SCATTER, current, _with(current, dim, axes + added, added), dim, added
            )
    for size in range(1, len(current.summed) + 1):
        for along in combinations(current.summed, size):
            rest = tuple(axis for axis in current.summed if axis not in along)
            yield PlanStep(StepKind.ALL_REDUCE, current, Assignment(current.dims, rest), None, along)
    if not current.summed:
        yield PlanStep(StepKind.ALL_TO_ALL, current, goal)


def _with(current: Assignment, dim: int, axes: tuple[int, ...], summed: Sequence[int] = ()) -> Assignment:
    dims = (*current.dims[:dim], axes, *current.dims[dim + 1 :])
    return Assignment(dims, tuple(axis for axis in current.summed if axis not in summed))


def _added(free: Sequence[int], axes: tuple[int, ...], goal: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every choice of free grid dimensions to add to `axes`, in one order, which begins with those that follow in the goal."""
    ahead = goal[len(axes) :] if goal[: len(axes)] == axes else ()
    for size in range(1, len(free) + 1):
        for chosen in combinations(free, size):
            leading = tuple(takewhile(frozenset(chosen).__contains__, ahead))
            yield leading + tuple(axis for axis in chosen if axis not in leading)


def _cost(grid: tuple[int, ...], shape: tuple[int, ...], step: PlanStep) -> Cost:
    workers = math.prod(grid[axis] for axis in step.along)
    rounds = (workers - 1).bit_length()
    held, needed = _windows(grid, shape, step.source.dims), _windows(grid, shape, step.target.dims)
    size = _volume([stop - start for start, stop in needed])
    all_to_alls = 0
    match step.kind:
        case StepKind.DISCARD:
            elements, messages = 0, 0
        case StepKind.REDUCE_SCATTER:
            elements, messages = (workers - 1) * int(size.max()), rounds
        case StepKind.ALL_REDUCE:
            largest = int(size.max())
            part, rest = divmod(largest, workers)
            # A reduce-scatter of all elements, then an all-gather.
            elements = (workers - 1) * (part + (rest > 0)) + largest - part
            messages = 2 * rounds
        case _:
            shared = _volume([_shared_lengths(one, other) for one, other in zip(held, needed, strict=True)])
            elements, messages = int((size - shared).max()), rounds
            if step.kind is StepKind.ALL_TO_ALL:
                parts = [
                    _parts_met(nested_cut(side, [grid[axis] for axis in axes]), window)
                    for side, axes, window in zip(shape, step.source.dims, needed, strict=True)
                ]
                # One message from each worker whose window it overlaps, except from itself.
                messages = int((_volume(parts) - (shared > 0)).max())
                all_to_alls = 1
    return Cost(elements, messages if elements else 0, 1, all_to_alls)


def _least(grid: tuple[int, ...], shape: tuple[int, ...], current: Assignment, goal: Assignment) -> Cost:
    """Return a lower bound of the cost of any chain from `current` to the goal, to prune the search."""
    if current == goal:
        return Cost()
    if not current.summed:
        elements = _received(_windows(grid, shape, current.dims), _windows(grid, shape, goal.dims))
        return Cost(elements, int(elements > 0), 1)
    # To give C workers the sum of G values, an element takes G + C - 2 transfers, at best spread over all workers evenly.
    summands = math.prod(grid[axis] for axis in current.summed)
    copies = math.prod(grid[axis] for axis in goal.redundant(grid))
    elements = -(-math.prod(shape) * (summands + copies - 2) // math.prod(grid))
    return Cost(elements, (summands - 1).bit_length() if elements else 0, 1)


def _received(held: Sequence[_Windows], needed: Sequence[_Windows]) -> int:
    """The largest number of elements that a worker needs and does not hold."""
    shared = _volume([_shared_lengths(one, other) for one, other in zip(held, needed, strict=True)])
    return int((_volume([stop - start for start, stop in needed]) - shared).max())


@lru_cache(maxsize=1024)
def _windows(
    grid: tuple[int, ...], shape: tuple[int, ...], dims: tuple[tuple[int, ...], ...]
) -> tuple[_Windows, ...]:
    """The windows of all workers in each dimension of the tensor, which `dims` assigns to grid dimensions."""
    return tuple(_window(grid, side, axes) for side, axes in zip(shape, dims, strict=True))


@lru_cache(maxsize=1024)
def _window(grid: tuple[int, ...], side: int, axes: tuple[int, ...]) -> _Windows:
    sides = [grid[axis] for axis in axes]
    ends = np.array(nested_cut(side, sides))
    # The parts of a nested cut are in row-major order of `axes`; the grid's order is ascending.
    ascending = sorted(range(len(axes)), key=axes.__getitem__)
    over = [length if axis in axes else 1 for axis, length in enumerate(grid)]
    starts, stops = (cut.reshape(sides).transpose(ascending).reshape(over) for cut in (ends[:-1], ends[1:]))
    return starts, stops


def _shared_lengths(one: _Windows, other: _Windows) -> _GridArray:
    """The number of indices that two windows share."""
    shared: _GridArray = np.minimum(one[1], other[1]) - np.maximum(one[0], other[0])
    return shared.clip(min=0)


def _parts_met(ends: tuple[int, ...], window: _Windows) -> _GridArray:
    """The number of parts of a cut that share an index with a window."""
    inner = np.unique(ends)  # without empty parts
    first = np.searchsorted(inner, window[0], side="right") - 1
    last = np.searchsorted(inner, window[1], side="left")
    parts: _GridArray = np.where(window[0] < window[1], last - first, 0)
    return parts


def _volume(lengths: Sequence[_GridArray]) -> _GridArray:
    """The product over the dimensions, as an array over the grid."""
    product: _GridArray = np.ones((), np.int64)
    for length in lengths:
        product = product * length
    return product
