"""Results that depend on the case only, not on the order in which messages arrive: two runs must agree on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from adjointlab.checks.elements import Difference, Local, Tolerance, first_difference
from adjointlab.core.pairing import Exact
from adjointlab.core.space import Space
from adjointlab.typing import NumpyArray

__all__ = ["ElementResult", "InnerProductResult", "MatrixResult", "ScheduleInvariant"]


class ScheduleInvariant(ABC):
    """A result of one run, comparable with the same result of another run.

    Each result has a bound on its rounding error: the schedule chooses the order in which summands arrive, and
    floating-point addition is not associative. Exact integers may not differ at all.
    """

    @abstractmethod
    def difference(self, other: Self) -> Difference | None:
        """First place where the two differ by more than rounding; `None` if there is none."""


@dataclass(frozen=True)
class ElementResult(ScheduleInvariant):
    """An element of a space, as all ranks hold it."""

    space: Space
    local: Sequence[Local]
    tolerance: Tolerance

    def difference(self, other: Self) -> Difference | None:
        return first_difference(self.space, self.local, other.local, self.tolerance)


@dataclass(frozen=True)
class InnerProductResult(ScheduleInvariant):
    """An inner product, and a bound on its rounding error: 0 if it is exact."""

    value: Exact
    within: float

    def difference(self, other: Self) -> Difference | None:
        # Both runs may be off by their bound, in opposite directions.
        if abs(self.value - other.value) <= self.within + other.within:
            return None
        return Difference("", str(self.value), str(other.value))


@dataclass(frozen=True)
class MatrixResult(ScheduleInvariant):
    """Entries of a matrix, and a bound on the rounding error of each: 0 if all are integers."""

    matrix: NumpyArray
    within: float

    def difference(self, other: Self) -> Difference | None:
        if self.matrix.shape != other.matrix.shape:
            return Difference("shape", str(self.matrix.shape), str(other.matrix.shape))
        # Negated, so that a NaN, which compares as false, counts as a difference.
        wrong = ~(np.abs(self.matrix - other.matrix) <= self.within + other.within)
        if not wrong.any():
            return None
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        return Difference(
            f"row {row}, column {column}", f"{self.matrix[row, column]:g}", f"{other.matrix[row, column]:g}"
        )
