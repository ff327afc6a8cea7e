"""MPI's constants under mpi4py's names, without MPI.

Operators that take their constants from here run in every world: the simulated one needs no MPI at all,
and the guarded communicator of the MPI world translates them (:mod:`adjointlab.worlds.constants`).
mpi4py's own constants are understood in both worlds too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BAND",
    "BOOL",
    "BOR",
    "BXOR",
    "BYTE",
    "COMPLEX",
    "DOUBLE",
    "DOUBLE_COMPLEX",
    "FLOAT",
    "FLOAT_COMPLEX",
    "INT",
    "INT8_T",
    "INT16_T",
    "INT32_T",
    "INT64_T",
    "IN_PLACE",
    "LAND",
    "LONG",
    "LOR",
    "LXOR",
    "MAX",
    "MIN",
    "PROC_NULL",
    "PROD",
    "ROOT",
    "SUM",
    "UINT8_T",
    "UINT16_T",
    "UINT32_T",
    "UINT64_T",
    "UNDEFINED",
    "Buffer",
    "Datatype",
    "Op",
    "Status",
]

# Integers that no MPI library uses, so that none of theirs is taken for one of ours.
ANY_SOURCE: Final = -9001
ANY_TAG: Final = -9002
PROC_NULL: Final = -9003
ROOT: Final = -9004
UNDEFINED: Final = -9005


class Op(Enum):
    """A reduction operation."""

    SUM = "SUM"
    PROD = "PROD"
    MAX = "MAX"
    MIN = "MIN"
    LAND = "LAND"
    LOR = "LOR"
    LXOR = "LXOR"
    BAND = "BAND"
    BOR = "BOR"
    BXOR = "BXOR"


SUM: Final = Op.SUM
PROD: Final = Op.PROD
MAX: Final = Op.MAX
MIN: Final = Op.MIN
LAND: Final = Op.LAND
LOR: Final = Op.LOR
LXOR: Final = Op.LXOR
BAND: Final = Op.BAND
BOR: Final = Op.BOR
BXOR: Final = Op.BXOR


class Buffer(Enum):
    """A stand-in for a buffer."""

    IN_PLACE = "IN_PLACE"


IN_PLACE: Final = Buffer.IN_PLACE


@dataclass(frozen=True)
class Datatype:
    """An elementary datatype: MPI's name and NumPy's."""

    name: str
    numpy: str


BYTE: Final = Datatype("BYTE", "uint8")
BOOL: Final = Datatype("BOOL", "bool")
INT: Final = Datatype("INT", "int32")
LONG: Final = Datatype("LONG", "int64")
FLOAT: Final = Datatype("FLOAT", "float32")
DOUBLE: Final = Datatype("DOUBLE", "float64")
COMPLEX: Final = Datatype("COMPLEX", "complex64")
FLOAT_COMPLEX: Final = COMPLEX
DOUBLE_COMPLEX: Final = Datatype("DOUBLE_COMPLEX", "complex128")
INT8_T: Final = Datatype("INT8_T", "int8")
INT16_T: Final = Datatype("INT16_T", "int16")
INT32_T: Final = Datatype("INT32_T", "int32")
INT64_T: Final = Datatype("INT64_T", "int64")
UINT8_T: Final = Datatype("UINT8_T", "uint8")
UINT16_T: Final = Datatype("UINT16_T", "uint16")
UINT32_T: Final = Datatype("UINT32_T", "uint32")
UINT64_T: Final = Datatype("UINT64_T", "uint64")


class Status:
    """What a completed receive or probe tells: source, tag and size of the message."""

    def __init__(self) -> None:
        self.source: int = ANY_SOURCE
        self.tag: int = ANY_TAG
        self.nbytes: int = 0

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_count(self, datatype: Any = BYTE) -> int:
        """The number of elements of `datatype` received (:data:`UNDEFINED` if not a whole number)."""
        size = _itemsize(datatype)
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED


def _itemsize(datatype: Any) -> int:
    if isinstance(datatype, Datatype):
        import numpy as np

        return int(np.dtype(datatype.numpy).itemsize)
    return int(datatype.Get_size())
