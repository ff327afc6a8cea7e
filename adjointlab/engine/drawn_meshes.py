"""The meshes on which a call checks: of an extent for each dimension, or of all that the ranks of a case make."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis.strategies import DrawFn

from adjointlab.core.kept_strategies import BOOLEANS, choices
from adjointlab.core.strategies import grids

__all__ = ["drawn_meshes"]


def drawn_meshes(
    given: Sequence[str] | Sequence[int] | Mapping[str, int] | None,
) -> tuple[int | None, Callable[[DrawFn, int], Mapping[str, int] | tuple[int, ...]]]:
    """The number of ranks if the mesh fixes it, and a strategy of meshes."""
    if given is None:
        return None, lambda draw, ranks: (ranks,)
    what: Any = given
    if isinstance(what, str):
        raise TypeError(f"mesh: {what!r} is a text; give the names of dimensions as ({what!r},)")
    if isinstance(what, int):
        raise TypeError(f"mesh: {what} is a number; give the extents of dimensions as ({what},)")
    if given and (isinstance(given, Mapping) or all(isinstance(each, int) for each in given)):
        shape: Any = given
        extents = shape.values() if isinstance(shape, Mapping) else shape
        if not all(isinstance(each, int) and each > 0 for each in extents):
            raise ValueError(f"mesh: {given!r} has extents that are not whole numbers of at least 1")
        return math.prod(extents), lambda draw, ranks: shape
    if not given or not all(isinstance(each, str) for each in given):
        raise TypeError(f"mesh: {given!r} are neither names of dimensions nor their extents, whole numbers")
    names = tuple(map(str, given))
    if len(set(names)) < len(names):
        raise ValueError(f"mesh: {list(given)} has one name twice")

    def drawn(draw: DrawFn, ranks: int) -> Mapping[str, int]:
        shapes = grids(ranks, len(names))[::-1]
        # A mesh with all ranks in one dimension, as two of the three meshes of 4 ranks, does not show when two dimensions are mixed up.
        if several := [shape for shape in shapes if ranks not in shape]:
            shapes = tuple(several) if draw(BOOLEANS) else shapes
        extents = draw(choices(shapes))
        return dict(zip(names, extents, strict=True))

    return None, drawn
