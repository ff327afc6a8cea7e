"""MPI's constants under mpi4py's names, without MPI.

Operators that take their constants from here run in every world: the simulated one needs no MPI at all,
and the guarded communicator of the MPI world translates them (:mod:`adjointlab.worlds.constants`).
mpi4py's own constants are understood in both worlds too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
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
    "CART",
    "COMM_NULL",
    "COMPLEX",
    "DOUBLE",
    "DOUBLE_COMPLEX",
    "ERR_ARG",
    "ERR_BUFFER",
    "ERR_COMM",
    "ERR_GROUP",
    "ERR_OP",
    "ERR_OTHER",
    "ERR_RANK",
    "ERR_ROOT",
    "ERR_TAG",
    "ERR_TRUNCATE",
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
    "Exception",
    "Op",
    "Request",
    "Status",
]


class Constant(int):
    """An integer with a meaning of its own: it equals mpi4py's constant of the same name, where mpi4py is imported.

    So code that compares what a call returned with a constant need not care which library either comes from. (Equal
    ones do not hash alike, so a dictionary finds only those of one library.)
    """

    _name: str

    def __new__(cls, name: str, value: int) -> Constant:
        made = super().__new__(cls, value)
        made._name = name
        return made

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not int:
            return isinstance(other, int) and int(self) == int(other)
        theirs = sys.modules.get("mpi4py.MPI")
        return int(self) == other or (theirs is not None and other == getattr(theirs, self._name))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self._name, int(self))

    def __repr__(self) -> str:
        return self._name


# Integers that no MPI library uses, so that none of theirs is taken for one of ours.
ANY_SOURCE: Final = Constant("ANY_SOURCE", -9001)
ANY_TAG: Final = Constant("ANY_TAG", -9002)
PROC_NULL: Final = Constant("PROC_NULL", -9003)
ROOT: Final = Constant("ROOT", -9004)
UNDEFINED: Final = Constant("UNDEFINED", -9005)

# Classes of errors.
ERR_ARG: Final = -9101
ERR_BUFFER: Final = -9102
ERR_COMM: Final = -9103
ERR_GROUP: Final = -9104
ERR_OP: Final = -9105
ERR_OTHER: Final = -9106
ERR_RANK: Final = -9107
ERR_ROOT: Final = -9108
ERR_TAG: Final = -9109
ERR_TRUNCATE: Final = -9110

CART: Final = Constant("CART", -9006)  # what Get_topology says of a grid


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
        self.cancelled: bool = False

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_count(self, datatype: Any = BYTE) -> int:
        """The number of elements of `datatype` received (:data:`UNDEFINED` if not a whole number)."""
        size = _itemsize(datatype)
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def count(self) -> int:
        """The bytes received."""
        return self.nbytes


def _itemsize(datatype: Any) -> int:
    if isinstance(datatype, Datatype):
        import numpy as np

        return int(np.dtype(datatype.numpy).itemsize)
    return int(datatype.Get_size())


class Exception(RuntimeError):
    """A call that MPI itself refuses: a rank out of range, an operation that the datatype does not have."""

    def __init__(self, text: str, error_class: int = ERR_OTHER) -> None:
        super().__init__(text)
        self.error_class = error_class
        self.error_string = text

    def Get_error_class(self) -> int:
        return self.error_class

    def Get_error_string(self) -> str:
        return self.error_string


class NullCommunicator:
    """What a rank holds of a communicator that it is not in."""

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NullCommunicator) or _is_null_of_mpi4py(other)

    def __hash__(self) -> int:
        return hash(NullCommunicator)

    def __getattr__(self, name: str) -> Any:
        raise Exception(f"{name} of the null communicator: this rank is not in the communicator", ERR_COMM)

    def __repr__(self) -> str:
        return "COMM_NULL"


COMM_NULL: Final = NullCommunicator()


def _is_null_of_mpi4py(value: object) -> bool:
    theirs = sys.modules.get("mpi4py.MPI")
    return theirs is not None and isinstance(value, theirs.Comm) and bool(value == theirs.COMM_NULL)


class Request:
    """mpi4py's operations on several requests at once, for requests of every world.

    Requests of one kind are completed as their own class does it (the simulated ones block once for all); mpi4py's
    own `Request.Waitall` takes only mpi4py's requests, so code for every world calls this one.
    """

    @staticmethod
    def Waitall(requests: Sequence[Any], statuses: list[Any] | None = None) -> bool:
        """Wait for all; true."""
        kind = _common(requests)
        if kind is not None:
            return bool(kind.Waitall(requests, statuses))
        for index, request in enumerate(requests):
            request.Wait(_nth(statuses, index))
        return True

    @staticmethod
    def Testall(requests: Sequence[Any], statuses: list[Any] | None = None) -> bool:
        """Whether all are complete."""
        kind = _common(requests)
        if kind is not None:
            return bool(kind.Testall(requests, statuses))
        return all(request.Test(_nth(statuses, index)) for index, request in enumerate(requests))

    @staticmethod
    def Waitany(requests: Sequence[Any], status: Any = None) -> int:
        """Wait for one: its index, or `UNDEFINED` if none is active."""
        kind = _common(requests)
        if kind is not None:
            one: int = kind.Waitany(requests, status)
            return one
        active = [index for index, request in enumerate(requests) if request]
        while active:
            for index in active:
                if requests[index].Test(status):
                    return index
            time.sleep(0)
        return UNDEFINED

    @staticmethod
    def Waitsome(requests: Sequence[Any], statuses: list[Any] | None = None) -> list[int] | None:
        """Wait for at least one: the indices of those complete, or None if none is active."""
        kind = _common(requests)
        if kind is not None:
            found: list[int] | None = kind.Waitsome(requests, statuses)
            return found
        active = [index for index, request in enumerate(requests) if request]
        while active:
            done = [index for index in active if requests[index].Test()]
            if done:
                return done
            time.sleep(0)
        return None

    @staticmethod
    def Testany(requests: Sequence[Any], status: Any = None) -> tuple[int, bool]:
        """Whether one is complete: its index, and true (`UNDEFINED` and true if none is active)."""
        kind = _common(requests)
        if kind is not None:
            index, flag = kind.Testany(requests, status)
            return index, bool(flag)
        active = [index for index, request in enumerate(requests) if request]
        for index in active:
            if requests[index].Test(status):
                return index, True
        return UNDEFINED, not active

    @staticmethod
    def Testsome(requests: Sequence[Any], statuses: list[Any] | None = None) -> list[int] | None:
        """The indices of those that are complete, or None if none is active."""
        kind = _common(requests)
        if kind is not None:
            found: list[int] | None = kind.Testsome(requests, statuses)
            return found
        active = [index for index, request in enumerate(requests) if request]
        return [index for index in active if requests[index].Test()] if active else None

    @staticmethod
    def waitall(requests: Sequence[Any], statuses: list[Any] | None = None) -> list[Any]:
        """Wait for all: the objects received."""
        return [request.wait(_nth(statuses, index)) for index, request in enumerate(requests)]

    @staticmethod
    def testall(requests: Sequence[Any], statuses: list[Any] | None = None) -> tuple[bool, list[Any] | None]:
        """Whether all are complete, and then the objects received."""
        kind = _common(requests)
        if kind is not None:
            flag, objects = kind.testall(requests, statuses)
            return bool(flag), objects
        if not Request.Testall(requests):
            return False, None
        return True, Request.waitall(requests, statuses)

    @staticmethod
    def waitany(requests: Sequence[Any], status: Any = None) -> tuple[int, Any]:
        """Wait for one: its index and the object received (`UNDEFINED` and None if none is active)."""
        kind = _common(requests)
        if kind is not None:
            index, value = kind.waitany(requests, status)
            return index, value
        active = [index for index, request in enumerate(requests) if request]
        while active:
            for index in active:
                done, value = requests[index].test(status)
                if done:
                    return index, value
            time.sleep(0)
        return UNDEFINED, None


def _common(requests: Sequence[Any]) -> Any:
    """The class of all `requests` if they have one and it can complete several at once."""
    if not requests:
        return None
    kind = type(requests[0])
    return kind if hasattr(kind, "Waitall") and set(map(type, requests)) == {kind} else None


def _nth(statuses: list[Any] | None, index: int) -> Any:
    return None if statuses is None or index >= len(statuses) else statuses[index]
