"""The gain of an operator: a bound on its arithmetic, declared, computed from its specification, or measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from adjointlab.checks.basis_probe import packed_matrix
from adjointlab.checks.elements import is_whole
from adjointlab.checks.measured_rounding import NOTHING_MEASURED, MeasuredRounding, measured_rounding
from adjointlab.core import arrays
from adjointlab.core.bases import basis_vector
from adjointlab.core.communicators import sum_of_ranks
from adjointlab.core.operator import Direction, has_program, specification_of
from adjointlab.typing import Array, NumpyArray

if TYPE_CHECKING:
    from adjointlab.checks.context import CheckContext

__all__ = [
    "Gain",
    "GainSource",
    "exact_under",
    "gain_of",
]

PROBED_DIMENSION = 64
"""Dimension of the largest operator whose gain is read off a basis probe if it is not declared."""

_LARGEST_BOUND = 2**53
"""Largest K. A value is a 64-bit hash modulo 2K + 1, which must be far below 2**64 for all values to be equally likely."""

_SMALL_INTEGERS = 2**6
"""Bound of integers whose images show fractions: far below the size at which every number of the type is an integer."""

_FOR_GAIN = 1000
"""Number of the first draw for investigating the gain; no check uses these draws."""

_FEW_COLUMNS = 6
"""Up to this number of columns, all are searched for fractions."""

_VECTORS_OF_SIGNS = 3
"""Number of vectors of signs that are applied if there are more columns."""

_CANCELLED = 16
"""Row sum assumed for the intermediates of an operator whose matrix is zero: no result shows how large they are."""

_LARGEST_GAIN = 2**64
"""Upper limit of gains: with it, no integer is exact in any element type."""


class GainSource(Enum):
    """The source of an operator's gain."""

    DECLARED = "declared"  # by the operator
    PROGRAM = "program"  # computed from its specification
    PROBE = "probe"  # from its matrix, which does not show intermediates
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Gain:
    """Bounds on the arithmetic of an operator, in both directions.

    `value` is the largest absolute row sum of any intermediate, in units of the coefficients' last bit; 0 if it or these are
    unknown, which leaves only the floating form of a test. `fan_in` bounds the number of terms added up for an output, and
    `row_sum` is the largest absolute row sum in units of one; 0 if it is unknown. `measured` is the measured rounding:
    neither the matrix nor a bound on its rows shows how an operator computes its results.
    """

    value: int
    fan_in: int
    row_sum: float
    source: GainSource
    measured: MeasuredRounding = NOTHING_MEASURED

    @property
    def is_exact(self) -> bool:
        """True if integers below 2**p / value are certain to be exact.

        A probe does not make it certain: an intermediate may be larger than any entry of the matrix, as in (x + c) - c.
        """
        return self.value > 0 and self.source in (GainSource.DECLARED, GainSource.PROGRAM)

    @property
    def is_whole(self) -> bool:
        """True if all coefficients are integers."""
        return 0 < self.value == self.row_sum

    @property
    def roundings(self) -> int:
        """Largest number of roundings on a path from an input to an output, if all tensors have one element type.

        A sum of n terms rounds n - 1 times, and once more if a coefficient is a fraction or the row sum exceeds the number of terms.
        """
        return self.fan_in - (self.is_whole and self.row_sum <= self.fan_in)


def gain_of(context: CheckContext) -> Gain:
    """Gain of the context's operator: declared, or read off its program, or off its matrix if that is small.

    Collective unless the operator has a program.
    """
    gain, declared = _declared_or_read_off(context), context.operator.rounding
    if declared:  # no integer is exact
        measured = measured_rounding(context)
        return replace(gain, value=0, measured=measured._replace(relative=max(declared, measured.relative)))
    if gain.is_whole and not context.measurement:
        return gain
    return replace(gain, measured=measured_rounding(context))


def _declared_or_read_off(context: CheckContext) -> Gain:
    """Gain without the measurement of rounding."""
    operator = context.operator
    if operator.gain is not None:
        fan_in = operator.fan_in or _dimension(context)
        value = operator.gain if _maps_integers_to_integers(context) else 0
        return Gain(value, fan_in, float(operator.gain), GainSource.DECLARED)
    specification = specification_of(operator)
    if specification is not None:
        programs = specification if isinstance(specification, tuple) else (specification,)
        value = max(program.gain() for program in programs)
        return Gain(value, operator.fan_in or value, float(value), GainSource.PROGRAM)
    if (dimension := _dimension(context)) > PROBED_DIMENSION:
        return Gain(0, operator.fan_in or dimension, 0.0, GainSource.UNKNOWN)
    precision, seed = context.arithmetic.precision, context.setting.seed
    matrix = packed_matrix(operator, context.library, precision, seed, context.forward)
    return _probed(_by_columns(context) if matrix is None else matrix, operator.fan_in)


def _by_columns(context: CheckContext) -> NumpyArray:
    """The matrix of forward, the same on every rank. Collective. (`operator.matrix` may be an attribute of user code.)"""
    contributions = context.linear_map(Direction.FORWARD).contributions(range(context.domain.dimension))
    return sum_of_ranks(context.operator.comm, contributions)


def _maps_integers_to_integers(context: CheckContext) -> bool:
    """False if a separate instance has shown that coefficients are fractions. Collective for operators of user code.

    If there are few columns, basis vectors show them all; if there are many, random integers and signs show most.
    """
    if has_program(context.operator) or all(tensor.element.is_integer for tensor in context.codomain.tensors):
        return True
    operator = context.fresh()  # keeps the checks' first calls the first ones
    dimension = context.domain.dimension
    columns = range(dimension) if dimension <= _FEW_COLUMNS else [context.setting.seed % dimension]
    vectors = [basis_vector(context.domain, column, context.rank, context.library) for column in columns]
    if dimension > _FEW_COLUMNS:
        bound = max(
            1, min(exact_under(context.arithmetic.precision, context.operator.gain or 1), _SMALL_INTEGERS)
        )
        vectors += [
            context.primal(_FOR_GAIN, bound),
            *(_signs(context, number) for number in range(_VECTORS_OF_SIGNS)),
        ]
    with np.errstate(all="ignore"):  # each check reports values that are not finite
        images = [array for vector in vectors for array in context.numpy(context.forward(vector, operator))]
        are_whole = all(map(is_whole, images))
    return all(operator.comm.allgather(are_whole))


def _signs(context: CheckContext, number: int) -> tuple[Array, ...]:
    """This rank's part of a random vector of 1 and -1 in the domain; multiplied by these, a fraction stays one."""
    values = context.drawn(context.domain, "primal", _FOR_GAIN + 2 + number, _SMALL_INTEGERS, 0)
    return tuple(
        arrays.from_numpy(np.where(each.real > 0, 1, -1), tensor.dtype, context.library)
        for each, tensor in zip(values, context.domain.tensors, strict=True)
    )


def _dimension(context: CheckContext) -> int:
    """The longer side of the operator's matrix."""
    return max(context.domain.dimension, context.codomain.dual.dimension)


def exact_under(precision: int, gain: int) -> int:
    """K, the largest bound of integers that are never rounded, for `precision` bits and a `gain`."""
    return int(min((2**precision - 1) // gain, _LARGEST_BOUND))


def _probed(matrix: NumpyArray, fan_in: int | None) -> Gain:
    """Gain of an operator with this matrix and no larger intermediates."""
    if not matrix.size or not np.all(np.isfinite(matrix)):
        # Any bound will do: each check reports values that are not finite before it compares anything.
        return Gain(1, fan_in or 1, 1.0, GainSource.PROBE)
    if not matrix.any():
        # Terms may cancel in intermediates: assume weights of some size, under which the other direction shows that it is not zero.
        return Gain(_CANCELLED, fan_in or 2, float(_CANCELLED), GainSource.PROBE)
    # |re| + |im| bounds the terms of either component of a complex product.
    magnitudes = np.abs(matrix.real) + np.abs(matrix.imag)
    # Rows bound forward, columns adjoint.
    row_sum = float(max(magnitudes.sum(axis=0).max(), magnitudes.sum(axis=1).max()))
    components = np.concatenate([matrix.real.ravel(), matrix.imag.ravel()])
    # The inverse of the lowest bit of all entries, whose denominators are powers of two.
    units = max(entry.as_integer_ratio()[1] for entry in np.unique(components).tolist())
    value = min(max(1, math.ceil(min(row_sum, _LARGEST_GAIN))) * units, _LARGEST_GAIN)
    terms = int(max((magnitudes != 0).sum(axis=0).max(), (magnitudes != 0).sum(axis=1).max()))
    # Intermediates that the matrix does not show may add up two terms more.
    return Gain(value, fan_in or terms + 2, row_sum, GainSource.PROBE)
