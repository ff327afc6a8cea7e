"""Directional derivatives by differences, with an estimate of their error: Ridders' method [Ridders82].

The error of the symmetric difference D(h) = (F(p + hv) - F(p - hv)) / 2h of a smooth F has only even powers of h. The steps shrink
by a factor of 4, so every column of the tableau removes one more power of 16:

    D(h)
    D(h/4)     T(h/4)                T = (16 D(h/4) - D(h)) / 15
    D(h/16)    T(h/16)    U(h/16)    and so on

The error of an entry is estimated by its distance from its two neighbours in the previous column, plus F's rounding times 1/h. For
each element the best entry is taken.

At a kink, D(h) is the same for all h, but it is not the derivative, which may be any number between the two one-sided ones.
Half the difference of those, S(h) = (F(p + hv) - 2 F(p) + F(p - hv)) / 2h, is odd in h: after its terms in h and h³ are removed, it
goes to zero where F is smooth, and does not at a kink. It counts as an error of the entries of the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from adjointlab.typing import NumpyArray

__all__ = ["Estimate", "derivatives"]

_STEPS = tuple(2.0 ** -(3 + 2 * k) for k in range(5))
"""Steps, each a quarter of the one before. Points and directions are some units large."""

_SAFETY = 4.0
"""Factor on the error that the tableau shows, which is an estimate and not a bound."""


class Estimate(NamedTuple):
    """Elements of a derivative, and the error of each."""

    value: NumpyArray
    error: NumpyArray


def derivatives(
    evaluate: Callable[[float], Sequence[NumpyArray]],
    at_point: Sequence[NumpyArray],
    noise: Callable[[float], float],
) -> list[Estimate]:
    """Derivatives at t = 0 of the arrays that ``evaluate(t)`` returns, which are `at_point` there.

    `noise` is the error of an element of an array whose largest value is given. All steps are evaluated, whatever the results:
    an evaluation is collective.
    """
    ahead, behind = zip(*((evaluate(step), evaluate(-step)) for step in _STEPS), strict=True)
    with np.errstate(
        all="ignore"
    ):  # values that are not finite give an error that is not finite either finite either
        return [
            _derivative([a[n] for a in ahead], [b[n] for b in behind], _wide(here), noise)
            for n, here in enumerate(at_point)
        ]


def _derivative(
    ahead: Sequence[NumpyArray],
    behind: Sequence[NumpyArray],
    here: NumpyArray,
    noise: Callable[[float], float],
) -> Estimate:
    if not here.size:
        return Estimate(here, np.zeros(here.shape))
    ahead, behind = ([_wide(a) for a in each] for each in (ahead, behind))
    rounding = [
        noise(max(float(np.abs(a).max()) for a in (f, b, here))) / step for f, b, step in _each(ahead, behind)
    ]
    jumps = _jumps(ahead, behind, here)
    best = Estimate(here, np.full(here.shape, np.inf))
    column = [(f - b) / (2 * step) for f, b, step in _each(ahead, behind)]
    for order in range(1, len(_STEPS)):
        factor = 16.0**order
        following = [(factor * fine - coarse) / (factor - 1) for coarse, fine in pairwise(column)]
        for row, value in enumerate(following):
            finest = row + order
            if finest in jumps:
                # A kink between coarse steps shows in their jump, but not in that of finer ones.
                # An extrapolation is closer to the finer quotient than to the coarser one.
                error = abs(value - column[row]) + jumps[finest]
                best = _better(best, Estimate(value, _SAFETY * (error + rounding[finest])))
        column = following
    return best


def _jumps(
    ahead: Sequence[NumpyArray], behind: Sequence[NumpyArray], here: NumpyArray
) -> dict[int, NumpyArray]:
    """Half the jump of the one-sided derivatives, from three steps each, by the number of the finest of them."""
    halves = [(f - 2 * here + b) / (2 * step) for f, b, step in _each(ahead, behind)]
    for factor in (4.0, 64.0):
        halves = [(factor * fine - coarse) / (factor - 1) for coarse, fine in pairwise(halves)]
    return {number: abs(jump) for number, jump in enumerate(halves, start=2)}


def _each(
    ahead: Sequence[NumpyArray], behind: Sequence[NumpyArray]
) -> list[tuple[NumpyArray, NumpyArray, float]]:
    return list(zip(ahead, behind, _STEPS, strict=True))


def _wide(array: NumpyArray) -> NumpyArray:
    """The numbers in double precision."""
    return np.asarray(array, dtype=complex if np.iscomplexobj(array) else float)


def _better(one: Estimate, other: Estimate) -> Estimate:
    """For each element the estimate with the smaller error; NaN counts as larger than any error."""
    is_better = other.error < one.error
    return Estimate(np.where(is_better, other.value, one.value), np.where(is_better, other.error, one.error))
