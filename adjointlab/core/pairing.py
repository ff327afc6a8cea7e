"""The pairing of a space with its dual, accumulated exactly.

Floating-point numbers are dyadic rationals, so a sum of products has an exact value. Products of significands are summed as integers,
exponent by exponent, and the result is a `Fraction`: nothing is rounded. An inner product in floating point would need a tolerance that
grows with the length of the vectors, and would hide a lost element of a long one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import mul

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.space import Space
from adjointlab.typing import Array, NumpyArray

__all__ = ["ZERO", "Exact", "NotFinite", "dot", "exact_sum", "pair_local"]

_FEW = 64
"""Number of elements up to which Python's integers are faster than limbs in NumPy."""


class NotFinite(ArithmeticError):
    """A NaN or an infinity is among numbers that should be finite."""


@dataclass(frozen=True)
class Exact:
    """An exact complex number."""

    real: Fraction
    imag: Fraction = Fraction(0)

    def __add__(self, other: Exact) -> Exact:
        return Exact(self.real + other.real, self.imag + other.imag)

    def __sub__(self, other: Exact) -> Exact:
        return Exact(self.real - other.real, self.imag - other.imag)

    def __abs__(self) -> float:
        return math.hypot(_float(self.real), _float(self.imag))

    def __str__(self) -> str:
        if not self.imag:
            return _decimal(self.real)
        return f"{_decimal(self.real)}{'-' if self.imag < 0 else '+'}{_decimal(abs(self.imag))}j"


ZERO = Exact(Fraction(0))


def pair_local(space: Space, x: Sequence[Array], g: Sequence[Array], rank: int) -> Exact:
    """Return the contribution of `rank` to <x, g>, for x in `space` and g in its dual, conjugating g.

    The pairing is the sum over all ranks: the Euclidean one over all memory, except that only the first of invariant copies
    counts. Raises :class:`NotFinite` if a NaN or infinity is among the values.
    """
    return exact_sum(
        [
            dot(arrays.to_numpy(a), arrays.to_numpy(b))
            for tensor, a, b in zip(space.tensors, x, g, strict=True)
            if tensor.is_counted(rank)
        ]
    )


def exact_sum(parts: Sequence[Exact]) -> Exact:
    """Return the sum of `parts`."""
    if len(parts) < 2:
        return parts[0] if parts else ZERO
    imaginary = [part.imag for part in parts if part.imag]
    return Exact(_sum([part.real for part in parts]), _sum(imaginary) if imaginary else ZERO.imag)


def _sum(terms: Sequence[Fraction]) -> Fraction:
    # Over one denominator: `Fraction` computes a greatest common divisor in each addition.
    ratios = [term.as_integer_ratio() for term in terms]
    scale = math.lcm(*[denominator for _, denominator in ratios])
    return Fraction(sum([numerator * (scale // denominator) for numerator, denominator in ratios]), scale)


def dot(a: NumpyArray, b: NumpyArray) -> Exact:
    """Return sum_i a_i conj(b_i), exactly. Raises :class:`NotFinite`, and `ValueError` where the shapes differ."""
    if a.shape != b.shape:
        raise ValueError(f"b: has shape {b.shape}, but a has shape {a.shape}")
    a, b = a.ravel(), b.ravel()
    if a.dtype.kind != "c" and b.dtype.kind != "c":
        return Exact(_dot(a, b))
    real = _dot(a.real, b.real)
    return Exact(real + _dot(a.imag, b.imag), _dot(a.imag, b.real) - _dot(a.real, b.imag))


def _dot(a: NumpyArray, b: NumpyArray) -> Fraction:
    if not a.size:
        return ZERO.real
    is_integer = a.dtype.kind in "iu" or b.dtype.kind in "iu"  # their 64 bits do not fit the limbs
    if a.size <= _FEW or is_integer:
        (scale_a, whole_a), (scale_b, whole_b) = _whole(a.tolist()), _whole(b.tolist())
        return Fraction(sum(map(mul, whole_a, whole_b)), scale_a * scale_b)
    blocks = range(0, a.size, _BLOCK)
    return sum((_dot_in_limbs(a[i : i + _BLOCK], b[i : i + _BLOCK]) for i in blocks), Fraction(0))


def _whole(values: list[float] | list[int]) -> tuple[int, list[int]]:
    """Return the values as integers over one common denominator, which comes first."""
    try:
        ratios = [value.as_integer_ratio() for value in values]
    except (OverflowError, ValueError):
        raise NotFinite("a NaN or an infinity is among the values") from None
    scale = max([denominator for _, denominator in ratios])  # all are powers of two
    if scale == 1:
        return 1, [numerator for numerator, _ in ratios]
    return scale, [numerator * (scale // denominator) for numerator, denominator in ratios]


# The product of two significands has 106 bits, more than any integer of NumPy. So each is split into three limbs of 18 bits
# (54 bits hold 53), and limbs are multiplied pairwise: a product has 36 bits, and the sum of a block of 2**20 of them 56, which
# int64 holds.
_LIMB_BITS = 18
_LIMBS = 3
_BLOCK = 1_048_576


def _dot_in_limbs(a: NumpyArray, b: NumpyArray) -> Fraction:
    # Only products with the same exponent can be added as integers of fixed length, so they are sorted by exponent, and each run of
    # one exponent is summed separately. The few sums are added as Python's integers, shifted by their exponents.
    significand_a, exponent_a = _significands(a)
    significand_b, exponent_b = _significands(b)
    exponents = exponent_a + exponent_b
    order = np.argsort(exponents, kind="stable")
    levels, starts = np.unique(exponents[order], return_index=True)
    limbs_a, limbs_b = _split(significand_a[order]), _split(significand_b[order])
    shifts = (levels - levels[0]).tolist()
    total = 0
    for i, limb_a in enumerate(limbs_a):
        for j, limb_b in enumerate(limbs_b):
            sums = np.add.reduceat(limb_a * limb_b, starts)
            for shift, partial in zip(shifts, sums.tolist(), strict=True):
                total += partial << (_LIMB_BITS * (i + j) + shift)
    return total * Fraction(2) ** int(levels[0])


def _significands(values: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Return integers m and exponents e with values = m * 2**e, |m| < 2**53."""
    if not np.all(np.isfinite(values)):
        raise NotFinite("a NaN or an infinity is among the values")
    fraction, exponent = np.frexp(values.astype(np.float64))
    return (fraction * 2.0**53).astype(np.int64), exponent.astype(np.int64) - 53


def _split(significands: NumpyArray) -> list[NumpyArray]:
    """Return the limbs, each with the sign of the whole, least significant first."""
    sign, magnitude = np.sign(significands), np.abs(significands)
    mask = (1 << _LIMB_BITS) - 1
    return [sign * ((magnitude >> (_LIMB_BITS * i)) & mask) for i in range(_LIMBS)]


def _decimal(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else repr(_float(value))


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
