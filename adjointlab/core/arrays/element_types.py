"""Element types, by name: their kind, precision and size, whatever the library of the array."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from adjointlab.typing import DtypeLike

__all__ = ["DTYPES", "Dtype", "dtype", "type_in_space"]


@dataclass(frozen=True)
class Dtype:
    """An element type.

    `precision` is the number of bits p for which every integer of magnitude at most 2**p is represented exactly in each real
    component (below 2**p in an integer type); `itemsize` is in bytes; `real` names the type of a component.
    """

    name: str
    kind: Literal["real", "complex", "integer"]
    precision: int
    itemsize: int
    real: str

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_integer(self) -> bool:
        return self.kind == "integer"

    @property
    def undefined(self) -> complex:
        """Value that reveals reads of unwritten memory: NaN, in both parts of a complex number, or the largest integer."""
        if self.is_integer:
            return int(2**self.precision) - 1
        return complex(math.nan, math.nan) if self.is_complex else math.nan

    @property
    def in_numpy(self) -> str:
        """The NumPy type that holds all values: float32 for bfloat16, which NumPy lacks."""
        return "float32" if self.name == "bfloat16" else self.name


# The precision of bfloat16 is 8: a stored significand of 7 bits, and the leading one. That of an integer type is the number of bits
# without the sign.
DTYPES = {
    entry.name: entry
    for entry in (
        Dtype("float64", "real", 53, 8, "float64"),
        Dtype("float32", "real", 24, 4, "float32"),
        Dtype("float16", "real", 11, 2, "float16"),
        Dtype("bfloat16", "real", 8, 2, "bfloat16"),
        Dtype("complex128", "complex", 53, 16, "float64"),
        Dtype("complex64", "complex", 24, 8, "float32"),
        Dtype("int64", "integer", 63, 8, "int64"),
        Dtype("int32", "integer", 31, 4, "int32"),
    )
}


def dtype(given: DtypeLike) -> Dtype:
    """Return the element type for a name, or a type of NumPy, torch or JAX; raise `ValueError` naming the legal ones."""
    name = given if isinstance(given, str) else getattr(given, "__name__", str(given)).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype: {given!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def type_in_space(name: str) -> str:
    """Return the element type by which a space declares a tensor that is only read: int64 for booleans and small integers."""
    return "int64" if name in _SMALL_INTEGERS else name


_SMALL_INTEGERS = frozenset({"bool", "uint8", "uint16", "uint32", "int8", "int16"})
"""Types that operators do not compute in, since their sums would overflow."""
