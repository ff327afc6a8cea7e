"""Translation between the constants, datatypes and statuses of :mod:`adjointlab.MPI`, which the worlds use, and mpi4py's.

mpi4py's are translated on entry; :func:`to_mpi4py` goes the other way, for a communicator that is built on mpi4py. mpi4py is looked
up in ``sys.modules`` and never imported, which would initialize MPI: if it is not there, user code cannot hold any of its constants.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, finalize, ref

import numpy as np

from adjointlab import MPI
from adjointlab.datatypes import Derivation
from adjointlab.typing import Status

__all__ = [
    "Operator",
    "as_op",
    "as_source",
    "as_tag",
    "c_int",
    "datatype",
    "datatype_of",
    "fill_status",
    "is_bottom",
    "is_datatype",
    "is_in_place",
    "is_undefined",
    "mark_cancelled",
    "op_name",
    "refuse_in_place_off_root",
    "to_mpi4py",
]

Operator: TypeAlias = "MPI.Op | Callable[[Any, Any], Any]"
"""Reduction operation as user code passes it. mpi4py's, which is callable too, is translated on entry."""

INTEGERS = (
    "ANY_SOURCE",
    "ANY_TAG",
    "COMM_TYPE_SHARED",
    "PROC_NULL",
    "ROOT",
    "UNDEFINED",
    "UNWEIGHTED",
    "WEIGHTS_EMPTY",
)
DATATYPES = {value.name: value for value in vars(MPI).values() if isinstance(value, MPI.Datatype)}
BY_NUMPY = {value.numpy: value for value in DATATYPES.values() if value is not MPI.BYTE}
CODES = {np.dtype(name).str[1:]: value for name, value in BY_NUMPY.items()} | {
    np.dtype(name).char: value for name, value in BY_NUMPY.items()
}
# mpi4py's codes for the same types; and a type without a constant in adjointlab.MPI, but with codes and a NumPy dtype.
CODES |= {"q": MPI.INT64_T, "Q": MPI.UINT64_T, "l": MPI.LONG, "Zf": MPI.COMPLEX, "Zd": MPI.DOUBLE_COMPLEX}
CODES |= {"e": MPI.Datatype("FLOAT16", "float16"), "f2": MPI.Datatype("FLOAT16", "float16")}


def as_op(value: object) -> Operator:
    """Return the reduction operation `value` as adjointlab's; anything else callable is returned as it is."""
    if isinstance(value, MPI.Op):
        return value
    mpi = _mpi4py()
    if mpi is not None and isinstance(value, mpi.Op):
        for ours in MPI.Op:
            if value == getattr(mpi, ours.value):
                return ours
    if callable(value):
        return value
    raise TypeError(
        f"{value!r} is not a reduction operation; known are {', '.join(each.value for each in MPI.Op)}"
    )


def op_name(value: object) -> str:
    """Name of a reduction operation, comparable between ranks. All user functions share one, since each rank has its own copy."""
    known = as_op(value)
    return known.value if isinstance(known, MPI.Op) else "an operation of user code"


def c_int(value: object) -> int:
    """Convert a number to a C `int` as mpi4py does; raises `TypeError` or `OverflowError` if that is not possible."""
    # Like mpi4py, this truncates fractions. A string has no __int__, though int() would accept it.
    convert = getattr(value, "__int__", None)
    if convert is None:
        raise TypeError(f"an integer is required, not {value!r}")
    number: int = convert()
    if not -(2**31) <= number < 2**31:
        raise OverflowError(f"{number} is too large for an int of C")
    return number


def as_source(value: int) -> int:
    """Return a rank, `ANY_SOURCE`, `PROC_NULL` or `ROOT` as adjointlab's."""
    return value if value >= 0 else _integer(value, ("ANY_SOURCE", "PROC_NULL", "ROOT"))


def as_tag(value: int) -> int:
    """Return a tag or `ANY_TAG` as adjointlab's."""
    return value if value >= 0 else _integer(value, ("ANY_TAG",))


def is_undefined(value: int) -> bool:
    """Return True if `value` is `UNDEFINED`."""
    return value < 0 and _integer(value, ("UNDEFINED",)) == MPI.UNDEFINED


def refuse_in_place_off_root(name: str, buffer: object) -> None:
    """Raise `adjointlab.MPI.Exception` if a rank that is not the root gives IN_PLACE to the rooted collective `name`.

    MPI libraries need not detect it, and some then wait for ever.
    """
    if buffer is not None and is_in_place(buffer):
        raise MPI.Exception(f"{name}: only the root may give IN_PLACE", MPI.ERR_BUFFER)


def is_in_place(value: object) -> bool:
    """Return True if `value` stands for IN_PLACE (mpi4py takes None for it too)."""
    if value is None or value is MPI.IN_PLACE:
        return True
    mpi = _mpi4py()
    return mpi is not None and value is mpi.IN_PLACE


def is_bottom(value: object) -> bool:
    """Return True if `value` is mpi4py's BOTTOM: the datatype given with it holds absolute addresses."""
    mpi = _mpi4py()
    return mpi is not None and value is mpi.BOTTOM


def is_datatype(value: object) -> bool:
    """Return True if `value` names a datatype: a constant of either library or a string code."""
    if isinstance(value, MPI.Datatype | str):
        return True
    mpi = _mpi4py()
    return mpi is not None and isinstance(value, mpi.Datatype)


def datatype(value: object) -> MPI.Datatype:
    """Return the datatype that `value` names; `KeyError` (as mpi4py raises) for an unknown code."""
    if isinstance(value, MPI.Datatype):
        return value
    if isinstance(value, str):
        if value in CODES:
            return CODES[value]
        raise KeyError(f"cannot map {value!r} to MPI datatype")
    mpi = _mpi4py()
    if mpi is not None and isinstance(value, mpi.Datatype):
        if value == mpi.DATATYPE_NULL:
            raise MPI.Exception("Invalid datatype: it has been freed, or is DATATYPE_NULL", MPI.ERR_TYPE)
        if value.is_predefined:
            return _datatype_from_mpi4py(mpi, value)
        own, known = _of_mpi4py.get(id(value), (None, MPI.BYTE))
        if own is None or own() is not value:
            _require_committed(mpi, value)
            known = _datatype_from_mpi4py(mpi, value)
            _of_mpi4py[id(value)] = ref(value, partial(_forget, id(value))), known
        return known
    raise TypeError(f"{value!r} is not a datatype")


# Caches derived datatypes, since decoding one with many elements takes time. Keyed by the object's id, because it is not hashable, and
# checked with a weak reference, because MPI may reuse the handle of a datatype that has been freed.
_of_mpi4py: dict[int, tuple[ref[Any], MPI.Datatype]] = {}


def _forget(key: int, _: object) -> None:
    _of_mpi4py.pop(key, None)


def _require_committed(mpi: Any, value: Any) -> None:
    """Raise for a derived datatype that is not committed. MPI has no query for that, but MPICH's `Pack_size` fails for one."""
    try:
        value.Pack_size(1, mpi.COMM_SELF)
    except mpi.Exception as error:
        if error.Get_error_class() == mpi.ERR_TYPE:
            raise MPI.Exception(
                "Datatype has not been committed: call its Commit() first", MPI.ERR_TYPE
            ) from None
        raise


def _datatype_from_mpi4py(mpi: Any, value: Any) -> MPI.Datatype:
    if value == mpi.BYTE:
        return MPI.BYTE
    if value.is_predefined:
        if value.typestr in CODES:
            return CODES[value.typestr]
        if value in (mpi.CHAR, mpi.CHARACTER):
            return MPI.BYTE
        if value == mpi.LONG_DOUBLE:
            return datatype_of(np.dtype(np.longdouble))
        raise _unknown(value)
    old, combiner, parameters = value.decode()
    if combiner == "STRUCT":
        parameters["datatypes"] = [_datatype_from_mpi4py(mpi, each) for each in parameters["datatypes"]]
    if combiner == "SUBARRAY":
        is_fortran = parameters["order"] == mpi.ORDER_FORTRAN
        parameters["order"] = MPI.ORDER_FORTRAN if is_fortran else MPI.ORDER_C
    base = MPI.BYTE if combiner == "STRUCT" else _datatype_from_mpi4py(mpi, old)
    constructor = getattr(base, f"Create_{combiner.lower()}", None)
    if constructor is None:
        raise _unknown(value)
    made: MPI.Datatype = constructor(**parameters)
    # Extents may depend on the library, which can pad a structure for alignment.
    return made.Create_resized(value.lb, value.extent).Commit()


def _unknown(value: Any) -> NotImplementedError:
    name = value.Get_name() or "this derived datatype"
    # Pairs such as MPI_DOUBLE_INT, which MINLOC and MAXLOC take.
    advice = (
        "reduce the pairs as objects, comm.allreduce((value, index), MPI.MINLOC)"
        if name.endswith("_INT") or name == "MPI_2INT"
        else "send the elements as another type"
        if value.is_predefined
        else "copy the elements into an array of their own (numpy.ascontiguousarray) and send that"
    )
    return NotImplementedError(f"{name}: not known on simulated ranks; {advice}, or check it under mpiexec")


@lru_cache(maxsize=64)
def datatype_of(dtype: np.dtype[Any]) -> MPI.Datatype:
    """Return the datatype of the elements of a NumPy array; `KeyError`, as mpi4py raises, if MPI has none."""
    if not dtype.isnative:
        raise BufferError(f"format string {dtype.str!r} with non-native byte order")
    found = BY_NUMPY.get(dtype.name) or CODES.get(dtype.char)
    if found is not None:
        return found
    if dtype.kind in "biufc":
        return MPI.Datatype(dtype.name.upper(), dtype.name)
    if dtype.kind in "SV" and dtype.names is None:
        return MPI.BYTE
    raise KeyError(f"cannot map {dtype.str!r} to MPI datatype")


def fill_status(status: Status | None, source: int, tag: int, nbytes: int) -> None:
    """Write the source, tag and size of a message into `status`, ours or mpi4py's (then with mpi4py's constants)."""
    if status is None:
        return
    if not isinstance(status, MPI.Status):
        source, tag = to_mpi4py(source), to_mpi4py(tag)
    status.Set_source(source)
    status.Set_tag(tag)
    status.Set_cancelled(False)  # the status may have been used for an earlier receive
    status.count = nbytes


def mark_cancelled(status: Status | None) -> None:
    """Mark `status`, ours or mpi4py's, as that of a cancelled receive."""
    if status is not None:
        status.Set_cancelled(True)


def to_mpi4py(value: object) -> Any:
    """Return the mpi4py constant for adjointlab's; a buffer specification is translated item by item.

    Any other value is returned unchanged. mpi4py must have been imported.
    """
    if type(value) is int or type(value) is MPI.Constant:
        return _ours_to_theirs().get(value, value) if value < 0 else value
    if isinstance(value, list | tuple):
        return type(value)(to_mpi4py(item) for item in value)
    if isinstance(value, MPI.Op):
        return getattr(_mpi4py(), value.value)
    if value is MPI.IN_PLACE:
        return _mpi4py().IN_PLACE
    if isinstance(value, MPI.Datatype):
        if value.derivation is not None:
            return _made_by_mpi4py(value.derivation)
        mpi = _mpi4py()
        named = getattr(mpi, value.name, None)
        return (
            named if isinstance(named, mpi.Datatype) else mpi.Datatype.fromcode(np.dtype(value.numpy).str[1:])
        )
    return value


_MADE: WeakKeyDictionary[Derivation, dict[bool, Any]] = WeakKeyDictionary()
"""mpi4py's datatypes for each of our derivations, keyed by whether they are committed; kept while the derivation is in use."""


def _made_by_mpi4py(derivation: Derivation) -> Any:
    made, is_committed = _MADE.setdefault(derivation, {}), derivation.is_committed
    if is_committed not in made:
        mpi, (old, constructor, arguments) = _mpi4py(), derivation.recipe
        order = {MPI.ORDER_C: mpi.ORDER_C, MPI.ORDER_FORTRAN: mpi.ORDER_FORTRAN}
        translated = [order.get(each, each) if type(each) is int else to_mpi4py(each) for each in arguments]
        new = getattr(mpi.Datatype if old is None else to_mpi4py(old), constructor)(*translated)
        made[is_committed] = new.Commit() if is_committed else new
        # MPI frees it only after pending messages complete. At exit MPI may be finalized already, and frees everything by itself.
        finalize(derivation, new.Free).atexit = False
    return made[is_committed]


def _mpi4py() -> Any:
    """Return mpi4py.MPI if it has been imported, else None."""
    return sys.modules.get("mpi4py.MPI")


def _integer(value: int, names: tuple[str, ...]) -> int:
    """Return the constant of ours, among `names`, that `value` equals as ours or as mpi4py's; else `value` itself."""
    mpi = _mpi4py()
    for name in names:
        ours: int = getattr(MPI, name)
        if value == ours or (mpi is not None and value == getattr(mpi, name)):
            return ours
    return value


@lru_cache(maxsize=1)
def _ours_to_theirs() -> dict[int, int]:
    mpi = _mpi4py()
    return {getattr(MPI, name): getattr(mpi, name) for name in INTEGERS}
