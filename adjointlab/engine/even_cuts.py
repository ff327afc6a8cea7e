"""Cases that differ from a given case only in their cuts: the tensors are cut evenly, or unevenly, over the same ranks.

An even cut needs as many elements as there are parts, or a multiple of that. So sides grow, in all these cases alike, and if a fault
vanishes with even cuts, it is also tried with uneven cuts of the same sides:

    the case      [0  1)[1  1)              sides 1, cut at 0|1|1
    even          [0      2)[2      4)      sides 4
    longer        [0  1  2)[3  4  5)        sides 6, cut evenly: not a power of two, which strides and windows may need
    moved         [0  1)[1         4)       sides 4, every part with elements
    with empty    [0            4)[4 4)     sides 4, the same parts empty as in the case
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard

from msgspec import structs

from adjointlab.core.layout import Layout, balanced_cut
from adjointlab.core.space import Space
from adjointlab.engine.case import Case
from adjointlab.engine.parameter_tree import is_cut, mapped, nodes

__all__ = ["Cuts", "has_uneven_cuts", "with_cuts"]


class Cuts(Enum):
    """The cuts of a case that is derived from another one."""

    EVEN = auto()
    LONGER = auto()
    MOVED = auto()
    WITH_EMPTY = auto()


class _Uneven(NamedTuple):
    """A shape of tensors, and for each unevenly cut dimension the side with which the cut is even."""

    shape: tuple[int, ...]
    sides: Mapping[int, int]


def has_uneven_cuts(spaces: Sequence[Space]) -> bool:
    """Return True if some tensor is cut into parts of different lengths."""
    return any(
        _is_uneven(tensor.layout, dim)
        for space in spaces
        for tensor in space.tensors
        for dim in range(tensor.layout.order)
    )


def with_cuts(case: Case, spaces: Sequence[Space]) -> Mapping[Cuts, Case]:
    """The case with each kind of cuts in place of uneven ones; none if its parameters do not determine the cuts.

    `spaces` are those that its operator declares. The subject's strategy may be unable to draw these cases, and the operator may
    refuse them.
    """
    made = {cuts: structs.replace(case, parameters=_parameters(case, spaces, cuts)) for cuts in Cuts}
    # Sides are always longer there: if the parameters are the same even so, they do not determine any sides or cuts.
    return {} if made[Cuts.LONGER].parameters == dict(case.parameters) else made


def _parameters(case: Case, spaces: Sequence[Space], cuts: Cuts) -> dict[str, Any]:
    """The parameters of a case with other cuts."""
    parts: dict[tuple[int, ...], dict[int, set[int]]] = {}
    for layout in (tensor.layout for space in spaces for tensor in space.tensors):
        for dim in range(layout.order):
            if _is_uneven(layout, dim):
                parts.setdefault(layout.shape, {}).setdefault(dim, set()).add(len(layout.windows[dim]))
    parameters = dict(case.parameters)
    for shape, by_dim in parts.items():
        sides = {
            dim: _even_side(shape[dim], found, longer=cuts is Cuts.LONGER) for dim, found in by_dim.items()
        }
        parameters = _changed(parameters, _Uneven(shape, sides), cuts)
    return parameters


def _is_uneven(layout: Layout, dim: int) -> bool:
    return len({stop - start for start, stop in layout.windows[dim]}) > 1


def _even_side(side: int, parts: Collection[int], *, longer: bool) -> int:
    """The smallest multiple of all `parts` that is at least `side` and twice the largest part count; if `longer`, the next one."""
    multiple = math.lcm(*parts)
    least = max(side, 2 * max(parts))
    return multiple * (math.ceil(least / multiple) + longer)


# Parameters


def _changed(value: object, uneven: _Uneven, cuts: Cuts) -> Any:
    """Return parameters in which tensors of that shape have other cuts, wherever its sides or its cuts occur."""
    shape, sides = uneven
    longer = tuple(sides.get(dim, side) for dim, side in enumerate(shape))
    # If the cut is always the balanced one, a side that is longer by one makes it uneven.
    follows = cuts in (Cuts.MOVED, Cuts.WITH_EMPTY) and not any(
        _says_a_cut(value, shape[dim]) for dim in sides
    )
    as_shape = tuple(side + (follows and dim in sides) for dim, side in enumerate(longer))

    def change(value: object) -> object:
        if isinstance(value, Layout):
            return _cut(value, longer, sides, cuts) if value.shape == shape else value
        if not isinstance(value, tuple):
            return value
        if value == shape:
            return as_shape
        for dim, side in sides.items():
            if _is_cut_of(value, shape[dim]):
                return _ends(value, side, cuts)
        if len(value) == len(shape) and any(_is_cut_of(each, shape[dim]) for each in value for dim in sides):
            # One cut for each dimension. Each is changed by itself: the new cut of one may end at the old side of another.
            return tuple(
                _changed(each, _Uneven(shape, {dim: sides[dim]}), cuts) if dim in sides else each
                for dim, each in enumerate(value)
            )
        return value

    return mapped(value, change)


def _cut(layout: Layout, shape: tuple[int, ...], dims: Collection[int], cuts: Cuts) -> Layout:
    """The layout with another shape: new cuts in the dimensions `dims`, its own windows in the others."""
    windows = list(layout.windows)
    for dim in dims:
        ends = layout.ends(dim)
        if ends is not None:
            windows[dim] = tuple(pairwise(_ends(ends, shape[dim], cuts)))
    return Layout(shape, layout.partition, windows, layout.axes)


def _ends(ends: Sequence[int], side: int, cuts: Cuts) -> tuple[int, ...]:
    """The boundaries of as many parts of a longer side; a single part is all of it."""
    parts = len(ends) - 1
    if cuts is Cuts.WITH_EMPTY:
        ends_of_filled = sorted(set(ends))
        moved = balanced_cut(side, max(len(ends_of_filled) - 1, 1))
        return tuple(moved[ends_of_filled.index(end)] for end in ends)
    even = list(balanced_cut(side, parts))
    if cuts is Cuts.MOVED and parts > 1:
        even[1] -= 1  # the first part gives its last element to the second
    return tuple(even)


def _is_cut_of(value: object, side: int) -> TypeGuard[Sequence[int]]:
    """Return True for the boundaries of two parts or more of a side."""
    return is_cut(value) and len(value) > 2 and value[-1] == side


def _says_a_cut(value: object, side: int) -> bool:
    return any(isinstance(node, Layout) or _is_cut_of(node, side) for node in nodes(value))
