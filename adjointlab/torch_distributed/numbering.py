"""Names of parameters that each rank numbers from 0, such as those of its experts or of the layers of its pipeline stage.

The sequential module numbers all of them. Its initial values show which of them a rank has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from adjointlab.typing import NumpyArray

__all__ = ["Numbering"]

_NUMBER: Final = re.compile(r"\d+")


class Numbering:
    """Maps the names of a rank's `parts` to those of the `wholes` of the sequential module with the same values."""

    def __init__(self, parts: Mapping[str, NumpyArray], wholes: Mapping[str, NumpyArray]) -> None:
        alike: dict[str, list[str]] = {}
        for name in wholes:
            alike.setdefault(_NUMBER.sub("#", name), []).append(name)
        found: dict[str, set[str]] = {}
        for name, part in parts.items():
            fitting = [
                other for other in alike.get(_NUMBER.sub("#", name), ()) if _is_part(part, wholes[other])
            ]
            if fitting:
                for prefix, *others in zip(*map(_prefixes, (name, *fitting)), strict=True):
                    found.setdefault(prefix, set(others)).intersection_update(others)
        self._prefixes = _resolved(found)

    def __call__(self, name: str) -> str:
        """Return the name in the sequential module; the same name if the values do not determine it."""
        known = next((prefix for prefix in reversed(_prefixes(name)) if prefix in self._prefixes), "")
        return self._prefixes.get(known, "") + name.removeprefix(known)


def _prefixes(name: str) -> list[str]:
    """The prefixes of a name that end with a number: for "layers.0.experts.1.bias", "layers.0" and "layers.0.experts.1"."""
    return [name[: match.end()] for match in _NUMBER.finditer(name)]


def _resolved(found: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The sequential prefix of each prefix; the same one if that is among several possible ones, as for parameters of one element."""
    chosen: dict[str, str] = {}
    for prefix in sorted(found, key=len):
        above = next((each for each in reversed(_prefixes(prefix)[:-1]) if each in chosen), "")
        unchanged = chosen.get(above, "") + prefix.removeprefix(above)
        possible = {each for each in found[prefix] if each.startswith(chosen.get(above, ""))}
        if unchanged in possible:
            chosen[prefix] = unchanged
        elif len(possible) == 1:
            chosen[prefix] = possible.pop()
    return chosen


def _is_part(part: NumpyArray, whole: NumpyArray) -> bool:
    """Return True if a nonempty part is a contiguous part of the whole, which may be longer in one dimension."""
    if not part.size or part.ndim != whole.ndim:
        return False
    longer = [dim for dim in range(part.ndim) if part.shape[dim] != whole.shape[dim]]
    if not longer:
        return np.array_equal(part, whole)
    (dim, *others) = longer
    if others or part.shape[dim] > whole.shape[dim]:
        return False
    rows, all_rows = np.moveaxis(part, dim, 0), np.moveaxis(whole, dim, 0)
    begins = (all_rows[: len(all_rows) - len(rows) + 1] == rows[0]).reshape(-1, rows[0].size).all(axis=1)
    return any(np.array_equal(all_rows[start : start + len(rows)], rows) for start in np.flatnonzero(begins))
