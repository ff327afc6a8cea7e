"""The arithmetic of an operator in one case: the integers that it keeps exact, and the tolerance for other results.

Integers that no operation rounds make a test exact: a right adjoint gives *equal* numbers, so not even the loss of one
ghost cell hides in a tolerance. An element type with p bits of precision holds all integers up to 2**p. If no intermediate of
the operator, in either direction, is larger than `gain` times the largest input, then inputs from {-K, ..., K} with

    K = floor((2**p - 1) / gain)

are never rounded, and the order in which a reduction adds them does not matter. That holds for integer coefficients. If they are
fractions, and the gain is read off the matrix, it is in units of their last bit: for an operator with halves, x/2 is a
multiple of 1/2, so that one bit is spent on the fraction. If it is declared, these units are unknown, and no test is exact.
"""

from __future__ import annotations

import math
import weakref
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adjointlab.checks.elements import EXACT, Tolerance
from adjointlab.checks.gain import Gain, exact_under, gain_of
from adjointlab.checks.verdict import Inapplicable

if TYPE_CHECKING:
    from adjointlab.checks.context import CheckContext

__all__ = ["Arithmetic"]

_GAIN_IF_UNKNOWN = 2**8
"""Gain assumed for an operator whose gain is unknown: a moderate one, since `tolerance` allows for rounding anyway."""

_LARGEST_INTEGER = 2**20
"""Bound of the integers that are compared one by one: two elements agree by accident with probability 1e-6 at most."""


class Arithmetic:
    """The integers that the operator of a check's context keeps exact, and the tolerance for other numbers, on one rank."""

    def __init__(self, context: CheckContext) -> None:
        # The context holds this object. A cycle would delay the operator's `__del__`, in which user code may free resources, beyond the case.
        self._context: CheckContext = weakref.proxy(context)

    @cached_property
    def gain(self) -> Gain:
        """Gain of the operator; collective unless the operator has a program (:func:`~adjointlab.checks.gain.gain_of`)."""
        return gain_of(self._context)

    @cached_property
    def has_integers(self) -> bool:
        """True if a tensor of either space is of an integer type."""
        return any(tensor.element.is_integer for tensor in self._context.tensors)

    @cached_property
    def precision(self) -> int:
        """p: integers up to 2**p are exact in every tensor of both spaces."""
        return min(tensor.element.precision for tensor in self._context.tensors)

    def integer_bound(self, headroom: int = 1) -> int:
        """K, the largest bound of integers under which no intermediate rounds; 0 if even 1 might be rounded.

        `headroom` is the factor by which a check's own arithmetic may enlarge them.
        """
        return exact_under(self.precision, (self.gain.value or _GAIN_IF_UNKNOWN) * headroom)

    def integers(self, headroom: int = 1) -> int:
        """Bound of the integers for a check that compares values one by one.

        Raises :class:`Inapplicable` if the element type has no integers that are exact in this case.
        """
        bound = min(self.integer_bound(headroom), _LARGEST_INTEGER)
        if bound < 1 and not self.gain.is_exact:
            # Coefficients such as 1/3 leave no exact integer, and `tolerance` allows for their rounding.
            bound = 2 ** (self.precision // 2) // headroom
            if self.gain.row_sum * headroom * bound > self._largest:  # of float16
                bound = int(self._largest / (self.gain.row_sum * headroom))
        if bound < 1:
            raise Inapplicable(
                f"no integer is exact under a gain of {self.gain.value} with {self.precision} bits: declare a smaller `gain`, if "
                "there is one, or draw another element type"
            )
        return bound

    @property
    def _largest(self) -> float:
        """The largest number that every tensor of both spaces can hold."""
        limits = (
            np.finfo(each.element.in_numpy).max
            for each in self._context.tensors
            if not each.element.is_integer
        )
        return min(map(float, limits), default=math.inf)

    @cached_property
    def tolerance(self) -> Tolerance:
        """Largest legal difference between two computations of a value on :meth:`integers`."""
        return self.tolerance_under(1)

    def tolerance_under(self, headroom: int) -> Tolerance:
        """The same on integers drawn with this `headroom`, which the check's own arithmetic enlarges by that factor.

        Zero if integers are exact, as between tensors of integer types. Otherwise each of the `fan_in` terms of an output may be
        rounded once, and the sum with each, relative to the largest possible output: with u = 2**-p the unit roundoff, two sums of n terms
        differ by 2 (n + a few) u times that, doubled for complex products.
        """
        if self.gain.is_exact or all(tensor.element.is_integer for tensor in self._context.tensors):
            return EXACT
        relative = (self.gain.fan_in + 4) * 2.0 ** (2 - self.precision)
        # With headroom: without it, integers may still be exact, and their bound small, when these are not.
        largest = headroom * self.integers(headroom)
        measured = self.gain.measured
        reach = self.gain.row_sum * largest
        return Tolerance(relative + measured.relative, reach, absolute=measured.residual * largest)
