"""Results that follow from a case alone, whatever the interleaving of its ranks: what two runs of it must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.core.pairing import Exact
from adjointlab.core.space import Space

__all__ = ["ElementResult", "InnerProductResult", "MatrixResult", "ScheduleInvariant"]


class ScheduleInvariant(Protocol):
    """A result of one run, to be compared with that of another."""

    def difference(self, other: Any) -> tuple[str, str, str] | None:
        """Where they first differ by more than rounding can do, and both values there; `None` if nowhere."""


@dataclass(frozen=True)
class ElementResult(ScheduleInvariant):
    """What all ranks hold of an element of a space; `tolerance` is nothing where values are exact."""

    space: Space
    local: Sequence[Local]
    tolerance: Tolerance

    def difference(self, other: ElementResult) -> tuple[str, str, str] | None:
        return first_difference(self.space, self.local, other.local, self.tolerance)


@dataclass(frozen=True)
class InnerProductResult(ScheduleInvariant):
    """An inner product, and how far rounding may put it off: 0 where it is exact."""

    value: Exact
    within: float

    def difference(self, other: InnerProductResult) -> tuple[str, str, str] | None:
        if abs(self.value - other.value) <= self.within + other.within:
            return None
        return "", str(self.value), str(other.value)


@dataclass(frozen=True)
class MatrixResult(ScheduleInvariant):
    """Entries of a matrix, and how far rounding may put one off: 0 where they are whole numbers."""

    matrix: np.ndarray[Any, Any]
    within: float

    def difference(self, other: MatrixResult) -> tuple[str, str, str] | None:
        if self.matrix.shape != other.matrix.shape:
            return "shape", str(self.matrix.shape), str(other.matrix.shape)
        wrong = ~(np.abs(self.matrix - other.matrix) <= self.within + other.within)
        if not wrong.any():
            return None
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        place = f"row {row}, column {column}"
        return place, f"{self.matrix[row, column]:g}", f"{other.matrix[row, column]:g}"
