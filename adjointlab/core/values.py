"""Values from a counter: every rank fills its own part of a tensor, without communication.

A value is a hash of (seed, draw, tensor, primal or dual, global index). So it depends neither on the layout nor on the order
of calls: a rank fills its window alone, and the sequential twin has the same tensor.

The rank is in the key too wherever several ranks hold the same element of a varying or partial tensor. With equal copies some
wrong adjoints are right: a broadcast's adjoint that returns P*y_0 for sum_r y_r passes every test in which all y_r are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from adjointlab.core.layout import Window
from adjointlab.core.space import Space, Tensor
from adjointlab.typing import NumpyArray

__all__ = ["Draw", "Role", "global_values", "local_values"]

Role = Literal["primal", "dual"]
"""Values are an argument of an operator, or a cotangent."""

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Draw:
    """The key of the generator (`seed`, `index` of the draw, `role`) and the set the values come from.

    With `bound` K > 0 the values are integers in {-K, ..., K} times ``2**exponent`` (Gaussian integers in a complex tensor);
    with `bound` 0 they fill the whole significand, uniform in [-1, 1) times ``2**exponent``. Tensors of an integer type have
    no exponent and need a bound.

    Raises `ValueError` for a role that is neither "primal" nor "dual", a negative bound, and one that no 64-bit integer type
    holds.
    """

    # Why integers, and why a bound K: where `gain` is an operator's largest absolute row sum, all that it computes is at most
    # gain * K. With K = 2**p // gain these are integers of p bits, which the element type holds exactly: no rounding hides a wrong
    # entry or accuses a right one. The larger K, the rarer a wrong adjoint agrees by chance, with probability 2 / (2K + 1) at
    # most [Schwartz80]. The power of two changes no significand; it is there so that a cast to integers on the way shows.
    seed: int
    index: int
    role: Role
    bound: int = 0
    exponent: int = 0

    def __post_init__(self) -> None:
        if self.role not in ("primal", "dual"):
            raise ValueError(f"role: {self.role!r} is neither 'primal' nor 'dual'")
        if not 0 <= self.bound < 1 << 63:
            raise ValueError(f"bound: {self.bound} is not in 0 ... 2**63 - 1")


def local_values(space: Space, position: int, rank: int, draw: Draw) -> NumpyArray:
    """Return what `rank` holds of tensor `position`, in NumPy (bfloat16 as float32, which is exact)."""
    tensor = space.tensors[position]
    layout = tensor.layout
    window = layout.window(rank)
    if window is None:
        return np.zeros(layout.local_shape(rank), dtype=tensor.element.in_numpy)
    return _values(tensor, position, window, _copy_key(tensor, rank), draw)


def global_values(space: Space, position: int, draw: Draw) -> NumpyArray:
    """Return the global tensor whose windows :func:`local_values` gives, for the sequential twin.

    Raises `ValueError` where ranks hold different values of one element, so that there is no global tensor.
    """
    tensor = space.tensors[position]
    if any(_differs(tensor)):
        raise ValueError(f"the copies in {tensor} have values of their own; there is no one global tensor")
    return _values(tensor, position, tuple((0, side) for side in tensor.layout.shape), 0, draw)


def _values(tensor: Tensor, position: int, window: tuple[Window, ...], copy: int, draw: Draw) -> NumpyArray:
    key = 0
    for part in (draw.seed, draw.index, position, int(draw.role == "dual"), copy):
        key = _mix_int(key ^ part)
    # The counter of an element is its row-major index in the hull of the tensor and all windows, not in the tensor: windows may
    # reach beyond the tensor, and what they hold there needs values too.
    counters: NumpyArray = np.zeros(1, np.uint64)  # of order 1: NumPy warns where scalars wrap around
    for (start, stop), (low, high) in zip(window, tensor.layout.hull, strict=True):
        indices = np.arange(start - low, stop - low, dtype=np.uint64)
        counters = counters[..., None] * np.uint64(high - low) + indices
    parts = 2 if tensor.element.is_complex else 1
    components = [
        _component(tensor, _hash(counters * np.uint64(parts) + np.uint64(part), key), draw)
        for part in range(parts)
    ]
    values = components[0] if parts == 1 else components[0] + 1j * components[1]
    return np.asarray(values, dtype=tensor.element.in_numpy).reshape([stop - start for start, stop in window])


def _component(tensor: Tensor, bits: NumpyArray, draw: Draw) -> NumpyArray:
    """Turn 64 random bits each into real numbers of the set that `draw` names."""
    scale = 2.0**draw.exponent
    precision = tensor.element.precision
    if draw.bound > 2**precision - tensor.element.is_integer:
        raise ValueError(f"bound: integers up to {draw.bound} are not exact in {tensor.dtype}")
    if draw.bound:
        whole = (bits % np.uint64(2 * draw.bound + 1)).astype(np.int64) - draw.bound
        return np.asarray(whole if tensor.element.is_integer else whole * scale)
    if tensor.element.is_integer:
        raise ValueError("an integer tensor has no floating values; give a bound")
    # p + 1 random bits, less 2**p: an integer in [-2**p, 2**p), which p bits and a sign hold without rounding.
    significands = (bits >> np.uint64(63 - precision)).astype(np.int64) - 2**precision
    return np.asarray(significands * 2.0**-precision * scale)


def _differs(tensor: Tensor) -> list[bool]:
    """For each partition dimension: True if ranks along it hold values of their own for one element."""
    return [
        overlapping and not entry.is_shared
        for overlapping, entry in zip(tensor.layout.overlapping, tensor.types, strict=True)
    ]


def _copy_key(tensor: Tensor, rank: int) -> int:
    """Number the copies of an element: the rank's grid index along the dimensions where copies differ."""
    key = 0
    partition = tensor.layout.partition
    for i, side, differs in zip(partition.index(rank), partition.shape, _differs(tensor), strict=True):
        key = key * side + (i if differs else 0)
    return key


def _hash(counters: NumpyArray, key: int) -> NumpyArray:
    # SplitMix64's finaliser [Steele14] over the counter, and once more with the key. One pass over their sum would give
    # neighbouring keys the same values, shifted.
    return _mix(_mix(counters + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(key))


def _mix(z: NumpyArray) -> NumpyArray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _mix_int(z: int) -> int:
    """Return the next 64 bits of SplitMix64 from the state `z`, on Python's integers, which do not wrap by themselves."""
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
