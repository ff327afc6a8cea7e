"""Attributes that user code attaches to a communicator, under mpi4py's names."""

from __future__ import annotations

import sys
from typing import Any, Final, SupportsIndex

from adjointlab import MPI

__all__ = ["Attributes"]

_LARGEST_TAG: Final = 2**31 - 1


class Attributes:
    """Base of the worlds' communicators: keeps attributes with the Python object, for the run that it belongs to.

    Local operations, as in MPI. A duplicate begins without attributes.
    """

    _attributes: dict[int | MPI.Keyval, Any]

    def Get_attr(self, keyval: SupportsIndex) -> Any:
        """Return the value that :meth:`Set_attr` attached for `keyval`; None if there is none."""
        key = _hashable(keyval)
        return self._attributes[key] if key in self._attributes else self._predefined(key)

    def Set_attr(self, keyval: SupportsIndex, attrval: Any) -> None:
        """Attach `attrval` for `keyval`, of :func:`adjointlab.MPI.Create_keyval` or mpi4py's ``Comm.Create_keyval``."""
        self._attributes[_hashable(keyval)] = attrval

    def Delete_attr(self, keyval: SupportsIndex) -> None:
        """Remove what is attached for `keyval`; `adjointlab.MPI.Exception` if nothing is."""
        if self._attributes.pop(_hashable(keyval), _NOTHING) is _NOTHING:
            raise MPI.Exception(f"the communicator has no attribute for {keyval!r}", MPI.ERR_OTHER)

    def _predefined(self, key: int | MPI.Keyval) -> Any:
        """Value of an attribute that MPI itself attaches, as far as programs ask for them."""
        mpi: Any = sys.modules.get("mpi4py.MPI")
        return _LARGEST_TAG if mpi is not None and key == mpi.TAG_UB else None


_NOTHING: Final = object()


def _hashable(keyval: SupportsIndex) -> int | MPI.Keyval:
    return keyval if isinstance(keyval, MPI.Keyval) else keyval.__index__()
