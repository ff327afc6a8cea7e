"""MPI's reduction operations on arrays and on objects, always in one order, so that runs repeat bit by bit.

An MPI library may combine in any order where the operation commutes. Here its own operations are combined in the order of ranks. One
of user code that is declared to commute is combined in the opposite order: if it does not, as much is seen.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from adjointlab import MPI
from adjointlab.notes import noted
from adjointlab.worlds.arguments import Elements, Flat
from adjointlab.worlds.constants import Operator

__all__ = ["accumulate_into", "check", "fold", "fold_objects", "running"]

_WITHOUT_DATATYPE = (
    "raised by an operation on simulated ranks, which give it no datatype: its third argument is None"
)


class Operation(NamedTuple):
    """Reduction operation: on arrays, on objects, and the kinds of NumPy dtype that MPI defines it for."""

    ufunc: np.ufunc
    function: Callable[[Any, Any], Any]
    kinds: str


def _truth(test: Callable[[bool, bool], bool]) -> Callable[[Any, Any], bool]:
    return lambda a, b: test(bool(a), bool(b))


OPERATIONS = {
    MPI.SUM: Operation(np.add, operator.add, "iufc"),
    MPI.PROD: Operation(np.multiply, operator.mul, "iufc"),
    MPI.MAX: Operation(np.maximum, max, "iuf"),
    MPI.MIN: Operation(np.minimum, min, "iuf"),
    MPI.LAND: Operation(np.logical_and, _truth(operator.and_), "biu"),
    MPI.LOR: Operation(np.logical_or, _truth(operator.or_), "biu"),
    MPI.LXOR: Operation(np.logical_xor, _truth(operator.xor), "biu"),
    MPI.BAND: Operation(np.bitwise_and, operator.and_, "iu"),
    MPI.BOR: Operation(np.bitwise_or, operator.or_, "iu"),
    MPI.BXOR: Operation(np.bitwise_xor, operator.xor, "iu"),
}


def check(op: Operator, elements: Elements) -> Operator:
    """Return `op` if MPI has it for these elements; raises `adjointlab.MPI.Exception` otherwise."""
    if not isinstance(op, MPI.Op):
        if getattr(op, "is_predefined", True):
            raise NotImplementedError(
                f"{op!r}: of buffers, only {', '.join(each.value for each in MPI.Op)} and the operations of mpi4py's Op.Create "
                "are known here; reduce objects with it (allreduce, reduce, scan)"
            )
        return op  # of user code, made with mpi4py's Op.Create
    if elements.is_derived:
        is_defined = False
    elif elements.datatype is MPI.BYTE:
        # Bytes have bits but are no numbers (MPI 4.1, section 6.9.2), though NumPy's are.
        is_defined = op in (MPI.BAND, MPI.BOR, MPI.BXOR)
    else:
        is_defined = elements.array.dtype.kind in OPERATIONS[op].kinds
    if not is_defined:
        raise MPI.Exception(
            f"MPI_Op operation not defined for this datatype: {op.value} of {_described(elements)}",
            MPI.ERR_OP,
        )
    return op


def _described(elements: Elements) -> str:
    name = elements.datatype.name
    return f"a derived datatype of {name}" if elements.is_derived else name


def accumulate_into(total: Flat, op: Operator, more: Flat) -> None:
    """Compute ``total ← total op more``."""
    if not isinstance(op, MPI.Op):
        # As MPI calls it: with memory, of which the second is overwritten by the result.
        result = more.copy()
        with noted(_WITHOUT_DATATYPE):
            op(_memory(total), _memory(result))
        total[...] = result
        return
    # "unsafe", so that logical operations write their booleans as numbers of the array's own dtype.
    # And without NumPy's warnings, for MPI gives none.
    with np.errstate(all="ignore"):
        OPERATIONS[op].ufunc(total, more, out=total, casting="unsafe")


def _memory(array: Flat) -> object:
    mpi: Any = sys.modules["mpi4py.MPI"]  # which `op` comes from
    return mpi.buffer.frombuffer(array)


def running(op: Operator, arrays: Iterable[Flat]) -> Iterator[Flat]:
    """For each of `arrays`, yield what it and those before it come to, in memory that may be overwritten for the next one.

    They are combined from the first to the last; from the last to the first if user code says that the order is all one.
    """
    says_commutes: Callable[[], bool] = getattr(op, "Is_commutative", lambda: False)
    is_reversed, total = says_commutes(), None
    for more in arrays:
        if total is None:
            total = more.copy()
        elif is_reversed:
            before, total = total, more.copy()
            accumulate_into(total, op, before)
        else:
            accumulate_into(total, op, more)
        yield total


def fold(op: Operator, arrays: Sequence[Flat]) -> Flat:
    """Combine `arrays`, one at least, into a new array, in the order of :func:`running`."""
    return deque(running(op, arrays), maxlen=1).pop()


def fold_objects(op: Operator, objects: Iterable[Any]) -> Any:
    """Combine `objects` from the first to the last."""
    return reduce(OPERATIONS[op].function if isinstance(op, MPI.Op) else op, objects)
