"""MPI's reduction operations on arrays and on objects, always in the order of ranks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from adjointlab import MPI
from adjointlab.worlds.buffers import Elements, Flat

__all__ = ["accumulate_into", "check", "fold", "fold_objects"]


class Operation(NamedTuple):
    """A reduction operation: on arrays, on objects, and the kinds of NumPy dtype that MPI defines it for."""

    ufunc: np.ufunc
    function: Callable[[Any, Any], Any]
    kinds: str


def _truth(test: Callable[[bool, bool], bool]) -> Callable[[Any, Any], bool]:
    return lambda a, b: test(bool(a), bool(b))


OPERATIONS = {
    MPI.SUM: Operation(np.add, operator.add, "iufc"),
    MPI.PROD: Operation(np.multiply, operator.mul, "iufc"),
    MPI.MAX: Operation(np.maximum, lambda a, b: b if b > a else a, "iuf"),
    MPI.MIN: Operation(np.minimum, lambda a, b: b if b < a else a, "iuf"),
    MPI.LAND: Operation(np.logical_and, _truth(operator.and_), "biu"),
    MPI.LOR: Operation(np.logical_or, _truth(operator.or_), "biu"),
    MPI.LXOR: Operation(np.logical_xor, _truth(operator.xor), "biu"),
    MPI.BAND: Operation(np.bitwise_and, operator.and_, "iu"),
    MPI.BOR: Operation(np.bitwise_or, operator.or_, "iu"),
    MPI.BXOR: Operation(np.bitwise_xor, operator.xor, "iu"),
}


def check(op: Any, elements: Elements) -> MPI.Op:
    """`op`, if MPI has it for these elements; `MPI.Exception` otherwise."""
    if not isinstance(op, MPI.Op):
        raise NotImplementedError(f"{op!r}: of buffers, only MPI's own operations are known here")
    kinds = (
        "u" if elements.datatype is MPI.BYTE and op in (MPI.BAND, MPI.BOR, MPI.BXOR) else OPERATIONS[op].kinds
    )
    if elements.array.dtype.kind not in kinds or (elements.datatype is MPI.BYTE and kinds != "u"):
        raise MPI.Exception(
            f"MPI_Op operation not defined for this datatype: {op.value} of {elements.datatype.name}",
            MPI.ERR_OP,
        )
    return op


def accumulate_into(total: Flat, op: MPI.Op, more: Flat) -> None:
    """``total ← total op more``, rounded to the dtype at every step as MPI does."""
    OPERATIONS[op].ufunc(total, more, out=total, casting="unsafe")


def fold(op: MPI.Op, arrays: Sequence[Flat]) -> Flat:
    """A new array: all `arrays`, combined from the first to the last."""
    total = arrays[0].copy()
    for more in arrays[1:]:
        accumulate_into(total, op, more)
    return total


def fold_objects(op: Any, objects: Iterable[Any]) -> Any:
    """All `objects`, combined from the first to the last; `op` is MPI's or any function of two."""
    return reduce(OPERATIONS[op].function if isinstance(op, MPI.Op) else op, objects)
