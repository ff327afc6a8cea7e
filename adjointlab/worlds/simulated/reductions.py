"""MPI's reduction operations on arrays and on objects, in a fixed order, so that runs are bitwise reproducible.

An MPI library may combine operands in any order if the operation commutes. Here predefined operations are applied in rank order. A
user-defined operation that is declared commutative is applied in the reverse order, which shows if it is not.
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
    """Return `op` if MPI defines it for these elements; raises `adjointlab.MPI.Exception` otherwise."""
    if not isinstance(op, MPI.Op):
        if getattr(op, "is_predefined", True):
            raise NotImplementedError(
                f"{op!r}: simulated ranks can reduce buffers only with {', '.join(each.value for each in MPI.Op)} and with operations "
                "of mpi4py's Op.Create; use it to reduce objects (allreduce, reduce, scan)"
            )
        return op  # user-defined, made with mpi4py's Op.Create
    if elements.is_derived:
        is_defined = False
    elif elements.datatype is MPI.BYTE:
        # MPI allows only bitwise operations on bytes (MPI 4.1, section 6.9.2), though NumPy's uint8 is a number.
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
        # Call it as MPI does: with two buffers, of which the second is overwritten by the result.
        result = more.copy()
        with noted(_WITHOUT_DATATYPE):
            op(_memory(total), _memory(result))
        total[...] = result
        return
    # "unsafe", so that the booleans of logical operations are cast to the array's dtype.
    # Without NumPy's warnings, because MPI gives none.
    with np.errstate(all="ignore"):
        OPERATIONS[op].ufunc(total, more, out=total, casting="unsafe")


def _memory(array: Flat) -> object:
    mpi: Any = sys.modules["mpi4py.MPI"]  # which `op` comes from
    return mpi.buffer.frombuffer(array)


def running(op: Operator, arrays: Iterable[Flat]) -> Iterator[Flat]:
    """Yield the running totals of `arrays`; each may be overwritten by the next one.

    They are combined from first to last; from last to first if user code has declared the operation commutative.
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
    """Combine one or more `arrays` into a new array, in the order of :func:`running`."""
    return deque(running(op, arrays), maxlen=1).pop()


def fold_objects(op: Operator, objects: Iterable[Any]) -> Any:
    """Combine `objects` from first to last."""
    return reduce(OPERATIONS[op].function if isinstance(op, MPI.Op) else op, objects)
