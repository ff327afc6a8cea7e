"""Cases that differ from a case in their cuts alone: the tensors cut evenly, or unevenly, over the same ranks.

An even cut needs as many elements as there are parts, or a multiple of them. So sides grow, in all cases alike, and a fault that vanishes
with even cuts is looked for with uneven cuts of the same sides too:

    the case      [0  1)[1  1)              sides 1, cut at 0|1|1
    even          [0      2)[2      4)      sides 4
    longer        [0  1  2)[3  4  5)        sides 6, cut evenly: no power of two, which strides and windows may ask for
    moved         [0  1)[1         4)       sides 4, every part with elements
    with empty    [0            4)[4 4)     sides 4, parts empty that are empty in the case
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
    """The cuts of a case that is made of another one."""

    EVEN = auto()
    LONGER = auto()
    MOVED = auto()
    WITH_EMPTY = auto()


class _Uneven(NamedTuple):
    """A shape of tensors, and for each dimension in which some are cut unevenly the side with which they are cut evenly."""

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
    """The case with each kind of cuts in place of uneven ones; none if its parameters do not say how tensors are cut.

    `spaces` are those that its operator declares. The subject's strategy need not draw the cases, and the operator may refuse them.
    """
    made = {cuts: structs.replace(case, parameters=_parameters(case, spaces, cuts)) for cuts in Cuts}
    # Longer sides are other ones whatever the cuts are: they tell whether the parameters say any.
    return {} if made[Cuts.LONGER].parameters == dict(case.parameters) else made


def _parameters(case: Case, spaces: Sequence[Space], cuts: Cuts) -> dict[str, Any]:
    """The parameters of a case, cut otherwise."""
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
    """The smallest multiple of all `parts` that is at least `side`, and twice the largest of them; if `longer`, the next one."""
    multiple = math.lcm(*parts)
    least = max(side, 2 * max(parts))
    return multiple * (math.ceil(least / multiple) + longer)


# Parameters


def _changed(value: object, uneven: _Uneven, cuts: Cuts) -> Any:
    """Return parameters with tensors of that shape cut otherwise, wherever they say its sides or its cuts."""
    shape, sides = uneven
    longer = tuple(sides.get(dim, side) for dim, side in enumerate(shape))
    # Where the cut is the balanced one of every side, a side of one more is cut unevenly.
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
            # One cut for each dimension, which is looked at as if it were alone: another dimension may have the side of its new cut.
            return tuple(
                _changed(each, _Uneven(shape, {dim: sides[dim]}), cuts) if dim in sides else each
                for dim, each in enumerate(value)
            )
        return value

    return mapped(value, change)


def _cut(layout: Layout, shape: tuple[int, ...], dims: Collection[int], cuts: Cuts) -> Layout:
    """The layout of another shape with such cuts of these dimensions, and its own windows in the others."""
    windows = list(layout.windows)
    for dim in dims:
        ends = layout.ends(dim)
        if ends is not None:
            windows[dim] = tuple(pairwise(_ends(ends, shape[dim], cuts)))
    return Layout(shape, layout.partition, windows, layout.axes)


def _ends(ends: Sequence[int], side: int, cuts: Cuts) -> tuple[int, ...]:
    """The boundaries of as many parts of a longer side; one part is all of it."""
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
