"""Values of vectors for tests, drawn from a counter, so that every rank fills its own part of a tensor without communication.

A value is a hash of (seed, draw, tensor, primal or dual, global index). So it depends neither on the layout nor on the order of calls: a
rank fills its window alone, and the sequential twin has the same tensor. The rank is in the key too wherever several ranks hold the
same element of a varying or partial tensor. With equal copies some wrong adjoints are right: a broadcast's adjoint that returns
P*y_0 for sum_r y_r passes every test in which all y_r are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from adjointlab.core.arrays import Dtype
from adjointlab.core.space import Space, Tensor
from adjointlab.core.splitmix import mixed, with_key, without_key
from adjointlab.typing import NumpyArray

__all__ = [
    "SMALL_INTEGERS",
    "THIRDS",
    "VALUES",
    "Draw",
    "Side",
    "local_values",
]

Side: TypeAlias = Literal["primal", "dual"]
"""Values are an argument of forward, or of the adjoint: a cotangent."""

SMALL_INTEGERS = "integers"
THIRDS = "thirds"

VALUES = (SMALL_INTEGERS, "fractions", "negative", "equal", THIRDS)
"""Kinds of values that do not fill the whole significand: any integers up to the bound, those with 12 fractional bits, only negative
integers, one integer for all elements of a tensor, and integers divided by three. Tensors of an integer type have any integers up to the
bound, whatever the kind."""

_FRACTION_BITS = 12


@dataclass(frozen=True)
class Draw:
    """The key of the generator (`seed`, `index` of the draw, `side`) and the set the values come from.

    With `bound` K > 0 the values are integers in {-K, ..., K} times ``2**exponent`` (Gaussian integers in a complex tensor);
    with `bound` 0 they fill the whole significand, uniform in [-1, 1) times ``2**exponent``. Tensors of an integer type have
    no exponent and need a bound. `values` is one of :data:`VALUES`, which need a bound too. With `beyond`, a rank and another seed,
    elements that this rank does not hold have values of that seed. If `halved`, elements outside the first half of any dimension (the
    last half in draws of an odd index) are zero, so that some ranks may hold only zeros. If `peaked`, one element exceeds the bound and
    so all others, so that the largest element of a rank's part need not be that of the tensor; integer and complex tensors have no peak.

    Raises `ValueError` for a side that is neither "primal" nor "dual", a negative bound, and one that no 64-bit integer type
    holds.
    """

    # Why integers, and why a bound K: where `gain` is an operator's largest absolute row sum, all that it computes is at most
    # gain * K. With K = 2**p // gain these are integers of p bits, which the element type holds exactly: no rounding hides a wrong
    # entry or accuses a right one. The larger K, the rarer a wrong adjoint agrees by chance, with probability 2 / (2K + 1) at
    # most [Schwartz80]. The power of two changes no significand; it is there to reveal a cast to integers on the way.
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
    """Return the local values of tensor `position` on `rank`, in NumPy (bfloat16 as float32, which is exact)."""
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
    """Return the part of a tensor in this window; one element of the tensor is set beyond the bound, with its sign kept."""
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
    """Return the part of a tensor in this window, with zeros outside the first or the last half of each dimension."""
    for axis, ((start, stop), side) in enumerate(zip(window, shape, strict=True)):
        indices = np.arange(start, stop)
        is_kept = indices >= side // 2 if is_last else indices < (side + 1) // 2
        local = local * is_kept.reshape(-1, *(1,) * (local.ndim - axis - 1)).astype(local.dtype)
    return local


@lru_cache(maxsize=256)  # shared by all ranks
def _key(seed: int, index: int, position: int, side: Side) -> int:
    """The part of a draw's key that all ranks have in common, in 64 bits."""
    key = 0
    for part in (seed, index, position, int(side == "dual")):
        key = mixed(key ^ part)
    return key


def _is_held_by(holder: int, tensor: Tensor, rank: int) -> bool:
    """Return True if `holder` holds the same copies of the same elements as `rank`; otherwise it holds none of them."""
    # Windows of ranks with the same copy key are equal or disjoint: ranks whose windows overlap otherwise have different keys.
    window = tensor.layout.window
    return window(rank) == window(holder) and tensor.copy_key(rank) == tensor.copy_key(holder)


def _bits(
    window: Sequence[tuple[int, int]], hull: Sequence[tuple[int, int]], part: int, parts: int, are_equal: bool
) -> NumpyArray:
    """Return random bits for each element of a window, the same for all keys; with `are_equal` the same for all elements."""
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
"""The largest window whose bits are cached; a case has some hundred of such windows, for passes, draws and whole tensors."""

_kept_bits = lru_cache(maxsize=512)(_bits)


def _component(element: Dtype, bits: NumpyArray, draw: Draw) -> NumpyArray:
    """Turn random 64-bit numbers into real numbers of the set that `draw` names."""
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
