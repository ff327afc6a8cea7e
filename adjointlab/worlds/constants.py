"""Translation between mpi4py's constants and adjointlab's.

The worlds use those of :mod:`adjointlab.MPI`. Constants that user code took from mpi4py are translated on entry;
:func:`to_mpi4py` goes the other way, for a communicator that is built on mpi4py. mpi4py is looked for in ``sys.modules`` and
never imported, for it would initialize MPI: if nobody has imported it, nobody has a constant of it.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from adjointlab import MPI

__all__ = [
    "datatype",
    "datatype_of",
    "fill_status",
    "from_mpi4py",
    "is_datatype",
    "is_in_place",
    "is_null",
    "is_undefined",
    "mark_cancelled",
    "op",
    "root",
    "source",
    "tag",
    "to_mpi4py",
]

INTEGERS = ("ANY_SOURCE", "ANY_TAG", "PROC_NULL", "ROOT", "UNDEFINED")
DATATYPES = {value.name: value for value in vars(MPI).values() if isinstance(value, MPI.Datatype)}
BY_NUMPY = {value.numpy: value for value in DATATYPES.values() if value is not MPI.BYTE}
CODES = {np.dtype(name).str[1:]: value for name, value in BY_NUMPY.items()} | {
    np.dtype(name).char: value for name, value in BY_NUMPY.items()
}
# Codes of mpi4py's for the same types; and what has no constant in adjointlab.MPI, but a code and a NumPy dtype.
CODES |= {"q": MPI.INT64_T, "Q": MPI.UINT64_T, "l": MPI.LONG, "Zf": MPI.COMPLEX, "Zd": MPI.DOUBLE_COMPLEX}
CODES |= {"e": MPI.Datatype("FLOAT16", "float16"), "f2": MPI.Datatype("FLOAT16", "float16")}


def op(value: Any) -> Any:
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
        f"{value!r} is no reduction operation; known are {', '.join(each.value for each in MPI.Op)}"
    )


def source(value: int) -> int:
    """Return a rank, `ANY_SOURCE`, `PROC_NULL` or `ROOT` as adjointlab's."""
    return value if value >= 0 else _integer(value, ("ANY_SOURCE", "PROC_NULL", "ROOT"))


root = source


def tag(value: int) -> int:
    """Return a tag or `ANY_TAG` as adjointlab's."""
    return value if value >= 0 else _integer(value, ("ANY_TAG",))


def is_undefined(value: int) -> bool:
    """Return True if `value` is `UNDEFINED`."""
    return value < 0 and _integer(value, ("UNDEFINED",)) == MPI.UNDEFINED


def is_in_place(value: object) -> bool:
    """Return True if `value` stands for IN_PLACE (mpi4py takes None for it too)."""
    if value is None or value is MPI.IN_PLACE:
        return True
    mpi = _mpi4py()
    return mpi is not None and value is mpi.IN_PLACE


def is_null(value: object) -> bool:
    """Return True if `value` is a null communicator, ours or mpi4py's."""
    if value is None or value is MPI.COMM_NULL:
        return True
    mpi = _mpi4py()
    return mpi is not None and isinstance(value, mpi.Comm) and value == mpi.COMM_NULL


def is_datatype(value: object) -> bool:
    """Return True if `value` names a datatype: a constant of either library or a string code."""
    if isinstance(value, MPI.Datatype | str):
        return True
    mpi = _mpi4py()
    return mpi is not None and isinstance(value, mpi.Datatype)


def datatype(value: Any) -> MPI.Datatype:
    """Return the elementary datatype that `value` names; `KeyError` (as mpi4py raises) for an unknown code."""
    if isinstance(value, MPI.Datatype):
        return value
    if isinstance(value, str):
        if value in CODES:
            return CODES[value]
        raise KeyError(f"cannot map {value!r} to MPI datatype")
    mpi = _mpi4py()
    if mpi is not None and isinstance(value, mpi.Datatype):
        if value == mpi.BYTE:
            return MPI.BYTE
        if value.is_predefined and value.typestr in CODES:
            return CODES[value.typestr]
        raise NotImplementedError(
            f"{value.Get_name() or 'a derived datatype'}: only elementary datatypes are known here"
        )
    raise TypeError(f"{value!r} is no datatype")


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


def fill_status(status: Any, source: int, tag: int, nbytes: int) -> None:
    """Write the source, tag and size of a message into `status`, ours or mpi4py's (then with mpi4py's constants)."""
    if status is None:
        return
    if isinstance(status, MPI.Status):
        status.source, status.tag, status.nbytes = source, tag, nbytes
        return
    status.Set_source(to_mpi4py(source))
    status.Set_tag(to_mpi4py(tag))
    status.count = nbytes


def mark_cancelled(status: Any) -> None:
    """Mark `status`, ours or mpi4py's, as that of a cancelled receive."""
    if isinstance(status, MPI.Status):
        status.cancelled = True
    elif status is not None:
        status.Set_cancelled(True)


def from_mpi4py(value: Any) -> Any:
    """Return adjointlab's constant for mpi4py's; an integer is read as a rank, and what is no constant returned as it is."""
    if type(value) is int or type(value) is MPI.Constant:
        return source(value)
    mpi = _mpi4py()
    if mpi is None:
        return value
    if isinstance(value, mpi.Op):
        return op(value)
    if isinstance(value, mpi.Datatype):
        return datatype(value)
    return MPI.IN_PLACE if value is mpi.IN_PLACE else value


def to_mpi4py(value: Any) -> Any:
    """Return the mpi4py constant for adjointlab's; a buffer specification is translated item by item.

    What is no constant is returned as it is. mpi4py must be imported.
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
        mpi = _mpi4py()
        named = getattr(mpi, value.name, None)
        return (
            named if isinstance(named, mpi.Datatype) else mpi.Datatype.fromcode(np.dtype(value.numpy).str[1:])
        )
    return value


def _mpi4py() -> Any:
    """Return mpi4py.MPI if somebody has imported it, else None."""
    return sys.modules.get("mpi4py.MPI")


def _integer(value: int, names: tuple[str, ...]) -> int:
    """Return which of our constants `value` is, read as ours and, if mpi4py is imported, as mpi4py's; or `value`."""
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
