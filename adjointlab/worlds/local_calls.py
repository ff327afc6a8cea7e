"""Local calls on a communicator, with mpi4py's names."""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Final, SupportsIndex

from adjointlab import MPI

__all__ = ["LARGEST_TAG", "LocalCalls"]

LARGEST_TAG: Final = 2**29 - 1
"""Value of ``TAG_UB`` in simulation: MPICH's. Open MPI allows more."""


class LocalCalls:
    """Base of the worlds' communicators: stores name and attributes in the Python object, which belongs to one run.

    Attributes are not copied to duplicates.
    """

    rank: int
    size: int
    _kind: ClassVar = "Intracomm"
    _name: str  # name in reports; empty for the run's own communicator
    _attributes: dict[int | MPI.Keyval, object]

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """mpi4py's class if mpi4py is imported, so that ``isinstance(comm, MPI.Comm)`` in user code is True."""
        return MPI.class_of_mpi4py(self._kind, otherwise=type(self))

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Get_name(self) -> str:
        return self._name

    def Set_name(self, name: str) -> None:
        self._name = name

    name = property(Get_name, Set_name)

    def Is_inter(self) -> bool:
        return False

    def Is_intra(self) -> bool:
        return True

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    def Get_attr(self, keyval: SupportsIndex) -> Any:
        """Return the value that :meth:`Set_attr` attached for `keyval`; None if there is none."""
        key = _hashable(keyval)
        return self._attributes[key] if key in self._attributes else self._predefined(key)

    def Set_attr(self, keyval: SupportsIndex, attrval: object) -> None:
        """Attach `attrval` for `keyval`, of :func:`adjointlab.MPI.Create_keyval` or mpi4py's ``Comm.Create_keyval``."""
        self._attributes[_hashable(keyval)] = attrval

    def Delete_attr(self, keyval: SupportsIndex) -> None:
        """Remove the value attached for `keyval`; raises `adjointlab.MPI.Exception` if there is none."""
        if self._attributes.pop(_hashable(keyval), _NOTHING) is _NOTHING:
            raise MPI.Exception(f"the communicator has no attribute for {keyval!r}", MPI.ERR_OTHER)

    def _predefined(self, key: int | MPI.Keyval) -> object:
        """Value of a predefined attribute; only those that programs use are supported."""
        mpi = sys.modules.get("mpi4py.MPI")
        return LARGEST_TAG if mpi is not None and key == mpi.TAG_UB else None


_NOTHING: Final = object()


def _hashable(keyval: SupportsIndex) -> int | MPI.Keyval:
    return keyval if isinstance(keyval, MPI.Keyval) else keyval.__index__()
