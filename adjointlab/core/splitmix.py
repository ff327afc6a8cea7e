"""A stateless generator: pseudo-random numbers from counters, by the output function of SplitMix64 [Steele14]."""

from __future__ import annotations

from typing import Final

import numpy as np

from adjointlab.typing import NumpyArray

__all__ = ["hashed", "mixed", "with_key", "without_key"]

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def mixed(number: int) -> int:
    """Return 64 bits for one number, computed with Python's integers, which need a mask to wrap."""
    number = (number + _GAMMA) & _MASK
    number = ((number ^ (number >> 30)) * _FIRST) & _MASK
    number = ((number ^ (number >> 27)) * _SECOND) & _MASK
    return number ^ (number >> 31)


def hashed(counters: NumpyArray, key: int) -> NumpyArray:
    """Return 64 bits for each of an array of counters (uint64), which depend on a key of 64 bits."""
    # One pass over the counter, and another with the key. A pass over their sum would give neighbouring keys the same values, shifted.
    return with_key(without_key(counters), key)


def without_key(counters: NumpyArray) -> NumpyArray:
    """The first pass of :func:`hashed`, the same for all keys."""
    return _finalised(counters + np.uint64(_GAMMA))


def with_key(bits: NumpyArray, key: int) -> NumpyArray:
    """The second pass of :func:`hashed`, over the result of the first."""
    return _finalised(bits ^ np.uint64(key))


# Arrays, since NumPy converts scalars in each operation. They are never written to.
_SHIFTS: Final = tuple(np.array(bits, dtype=np.uint64) for bits in (30, 27, 31))
_FACTORS: Final = tuple(np.array(factor, dtype=np.uint64) for factor in (_FIRST, _SECOND))


def _finalised(z: NumpyArray) -> NumpyArray:
    z = (z ^ (z >> _SHIFTS[0])) * _FACTORS[0]
    z = (z ^ (z >> _SHIFTS[1])) * _FACTORS[1]
    return np.asarray(z ^ (z >> _SHIFTS[2]))
