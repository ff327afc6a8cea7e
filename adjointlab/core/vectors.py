"""Vectors of a space for tests: drawn from a counter, and paired exactly with those of its dual.

*Values* come from a counter, so that every rank fills its own part of a tensor without communication. A value is a hash of
(seed, draw, tensor, primal or dual, global index). So it depends neither on the layout nor on the order of calls: a rank
fills its window alone, and the sequential twin has the same tensor. The rank is in the key too wherever several ranks hold the
same element of a varying or partial tensor. With equal copies some wrong adjoints are right: a broadcast's adjoint that returns
P*y_0 for sum_r y_r passes every test in which all y_r are equal.

The *pairing* is accumulated exactly. Floating-point numbers are dyadic rationals, so a sum of products has an exact value.
Nothing in it rounds: products of significands are summed as integers, exponent by exponent, and the result is a `Fraction`. An
inner product in floating point would need a tolerance that grows with the length of the vectors, and in a long one a lost
element is within it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from operator import mul
from typing import Literal, TypeAlias

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.arrays import Dtype
from adjointlab.core.space import Space, Tensor
from adjointlab.core.splitmix import mixed, with_key, without_key
from adjointlab.typing import Array, NumpyArray

__all__ = [
    "SMALL_INTEGERS",
    "THIRDS",
    "VALUES",
    "ZERO",
    "Draw",
    "Exact",
    "NotFinite",
    "Side",
    "dot",
    "exact_sum",
    "local_values",
    "pair_local",
]

Side: TypeAlias = Literal["primal", "dual"]
"""Values are an argument of forward, or of the adjoint: a cotangent."""

SMALL_INTEGERS = "integers"
THIRDS = "thirds"

VALUES = (SMALL_INTEGERS, "fractions", "negative", "equal", THIRDS)
"""Kinds of values that are not drawn from the whole significand: any integers up to the bound, those with 12 bits more, integers below
zero alone, one integer for all elements of a tensor, and integers divided by three. Tensors of an integer type have any integers in all
of them."""

_FRACTION_BITS = 12


@dataclass(frozen=True)
class Draw:
    """The key of the generator (`seed`, `index` of the draw, `side`) and the set the values come from.

    With `bound` K > 0 the values are integers in {-K, ..., K} times ``2**exponent`` (Gaussian integers in a complex tensor);
    with `bound` 0 they fill the whole significand, uniform in [-1, 1) times ``2**exponent``. Tensors of an integer type have
    no exponent and need a bound. `values` is one of :data:`VALUES`, which need a bound too. With `beyond`, a rank and another seed,
    elements that this rank does not hold have values of that seed. If `halved`, elements beyond the first half of any dimension are zero
    (of draws of an odd index, those before the last half), so that some ranks may hold zeros alone. If `peaked`, one element is larger than
    all others, beyond the bound, so that the largest of a rank's part is not that of the tensor; none of integer and complex tensors is.

    Raises `ValueError` for a side that is neither "primal" nor "dual", a negative bound, and one that no 64-bit integer type
    holds.
    """

    # Why integers, and why a bound K: where `gain` is an operator's largest absolute row sum, all that it computes is at most
    # gain * K. With K = 2**p // gain these are integers of p bits, which the element type holds exactly: no rounding hides a wrong
    # entry or accuses a right one. The larger K, the rarer a wrong adjoint agrees by chance, with probability 2 / (2K + 1) at
    # most [Schwartz80]. The power of two changes no significand; it is there so that a cast to integers on the way shows.
    seed: int
    index: int
    side: Side
    bound: int = 0
    exponent: int = 0
    values: str = SMALL_INTEGERS
    beyond: tuple[int, int] | None = None
    halved: bool = False
    peaked: bool = False

    def __post_init__(self) -> None:
        if self.values not in VALUES:
            raise ValueError(f"values: {self.values!r} is not one of {', '.join(VALUES)}")
        if self.side not in ("primal", "dual"):
            raise ValueError(f"side: {self.side!r} is neither 'primal' nor 'dual'")
        if not 0 <= self.bound < 1 << 63:
            raise ValueError(f"bound: {self.bound} is not in 0 ... 2**63 - 1")


def local_values(space: Space, position: int, rank: int, draw: Draw) -> NumpyArray:
    """Return what `rank` holds of tensor `position`, in NumPy (bfloat16 as float32, which is exact)."""
    tensor = space.tensors[position]
    layout = tensor.layout
    window = layout.window(rank)
    if window is None:
        return np.zeros(layout.local_shape(rank), dtype=tensor.element.in_numpy)
    if draw.beyond is not None:
        holder, seed = draw.beyond
        seed = draw.seed if _is_held_by(holder, tensor, rank) else seed
        return local_values(space, position, rank, replace(draw, beyond=None, seed=seed))
    element, shape = tensor.element, layout.local_shape(rank)
    key = mixed(_key(draw.seed, draw.index, position, draw.side) ^ tensor.copy_key(rank))
    are_equal = draw.values == "equal" and not element.is_integer
    bits_of = _kept_bits if math.prod(shape) <= _KEPT_ELEMENTS else _bits
    if element.is_complex:
        real, imaginary = (
            _component(element, with_key(bits_of(window, layout.hull, part, 2, are_equal), key), draw)
            for part in range(2)
        )
        values = real + 1j * imaginary
    else:
        values = _component(element, with_key(bits_of(window, layout.hull, 0, 1, are_equal), key), draw)
    local = np.asarray(values, dtype=element.in_numpy).reshape(shape)
    if draw.peaked and not element.is_integer and not element.is_complex:
        local = _peaked(local, window, layout.shape, draw)
    return _halved(local, window, layout.shape, is_last=bool(draw.index % 2)) if draw.halved else local


def _peaked(
    local: NumpyArray, window: Sequence[tuple[int, int]], shape: Sequence[int], draw: Draw
) -> NumpyArray:
    """The part of a tensor that lies in this window, with one element of the tensor beyond the bound, which keeps its sign."""
    peak = [2 * side // 3 for side in shape]
    is_inside = all(start <= index < stop for index, (start, stop) in zip(peak, window, strict=True))
    if math.prod(shape) < 2 or not is_inside:
        return local
    place = tuple(index - start for index, (start, _) in zip(peak, window, strict=True))
    peaked = local.copy()
    largest = (draw.bound + 1) * 2.0**draw.exponent / (3 if draw.values == THIRDS else 1)
    peaked[place] = math.copysign(largest, local[place])
    return peaked


def _halved(
    local: NumpyArray, window: Sequence[tuple[int, int]], shape: Sequence[int], *, is_last: bool
) -> NumpyArray:
    """The part of a tensor that lies in this window, with zeros outside the first or the last half of each dimension."""
    for axis, ((start, stop), side) in enumerate(zip(window, shape, strict=True)):
        indices = np.arange(start, stop)
        is_kept = indices >= side // 2 if is_last else indices < (side + 1) // 2
        local = local * is_kept.reshape(-1, *(1,) * (local.ndim - axis - 1)).astype(local.dtype)
    return local


@lru_cache(maxsize=256)  # of all ranks
def _key(seed: int, index: int, position: int, side: Side) -> int:
    """The part of a draw's key that all ranks have in common, in 64 bits."""
    key = 0
    for part in (seed, index, position, int(side == "dual")):
        key = mixed(key ^ part)
    return key


def _is_held_by(holder: int, tensor: Tensor, rank: int) -> bool:
    """True if `holder` has the values of all elements of `rank` too; else it has those of none."""
    # Windows of ranks with the same copies are equal or disjoint: where they overlap otherwise, each rank's copies are its own.
    window = tensor.layout.window
    return window(rank) == window(holder) and tensor.copy_key(rank) == tensor.copy_key(holder)


def _bits(
    window: Sequence[tuple[int, int]], hull: Sequence[tuple[int, int]], part: int, parts: int, are_equal: bool
) -> NumpyArray:
    """Random bits of each element of a window, the same for all keys; or those of one for all."""
    # The counter of an element is its row-major index in the hull of the tensor and all windows, not in the tensor: windows may
    # reach beyond the tensor, and what they hold there needs values too.
    counters: NumpyArray = np.zeros(1, np.uint64)  # of order 1: NumPy warns where scalars wrap around
    for (start, stop), (low, high) in zip(window, hull, strict=True):
        indices = np.arange(start - low, stop - low, dtype=np.uint64)
        counters = counters[..., None] * np.uint64(high - low) + indices
    if are_equal:
        counters = np.zeros_like(counters)
    bits = without_key(counters * np.uint64(parts) + np.uint64(part))
    bits.flags.writeable = False
    return bits


_KEPT_ELEMENTS = 1024
"""The largest window of which the bits are kept; there are some hundred of such in a case, for passes, draws and whole tensors."""

_kept_bits = lru_cache(maxsize=512)(_bits)


def _component(element: Dtype, bits: NumpyArray, draw: Draw) -> NumpyArray:
    """Turn 64 random bits each into real numbers of the set that `draw` names."""
    precision, bound = element.precision, draw.bound
    if bound > 2**precision - element.is_integer:
        raise ValueError(f"bound: integers up to {bound} are not exact in {element.name}")
    if bound:
        whole = (bits % np.uint64(2 * bound + 1)).view(np.int64) - bound
        return np.asarray(whole if element.is_integer else _of_kind(whole, bits, draw) * 2.0**draw.exponent)
    if element.is_integer:
        raise ValueError("an integer tensor has no floating values; give a bound")
    # p + 1 random bits, less 2**p: an integer in [-2**p, 2**p), which p bits and a sign hold without rounding.
    significands = (bits >> np.uint64(63 - precision)).view(np.int64) - 2**precision
    return np.asarray(significands * 2.0**-precision * 2.0**draw.exponent)


def _of_kind(whole: NumpyArray, bits: NumpyArray, draw: Draw) -> NumpyArray:
    """Turn integers up to the bound, made of `bits`, into values of the kind that `draw` asks for."""
    if draw.values == "negative":
        return np.asarray(-1 - (bits % np.uint64(draw.bound)).astype(np.int64))
    if draw.values == "fractions":
        return np.asarray(
            whole + (bits >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64) / 2**_FRACTION_BITS
        )
    return whole / 3 if draw.values == THIRDS else whole


_FEW = 64
"""Number of elements up to which Python's integers are quicker than NumPy's limbs."""


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
    """Return what `rank` contributes to <x, g>, for x in `space` and g in its dual, conjugating g.

    Summed over all ranks this is the pairing: the Euclidean one over all memory, except that only the first of invariant copies
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
    # Over one denominator: `Fraction` looks for a common divisor in each of its additions.
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
    # one exponent is summed by itself. The few sums left are added as Python's integers, shifted by their exponents.
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
