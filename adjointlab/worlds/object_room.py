"""Capacity of an object receive for the pickle.

mpi4py's `irecv` posts its receive before the size of the message is known: its capacity is that of the buffer passed to it, or 32 KiB
without one. `recv` probes for the size first, unless it is given a buffer. A larger pickle is a truncation error in MPI.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from adjointlab.typing import Buffer
from adjointlab.worlds.arguments import elements

__all__ = ["ENOUGH", "ObjectRoom", "room_of"]

_IRECV_BUFSZ: Final = 32768


class ObjectRoom(NamedTuple):
    """Capacity in bytes; None if it is unlimited."""

    nbytes: int | None

    def overflow(self, sent: int) -> str:
        """Message that a pickle of `sent` bytes does not fit; empty if it does."""
        if self.nbytes is None or sent <= self.nbytes:
            return ""
        return (
            f"an object of {sent} bytes, pickled, was sent, and the receive has room for {self.nbytes}: give irecv a larger buffer (it has "
            f"{_default_of_irecv()} bytes without one), or use recv"
        )


ENOUGH: Final = ObjectRoom(None)


def room_of(buffer: Buffer | int, *, is_posted_first: bool = False) -> ObjectRoom:
    """The capacity of a receive with this buffer or number of bytes; without either, unlimited unless it is posted before the size is known."""
    if buffer is None:
        return ObjectRoom(_default_of_irecv()) if is_posted_first else ENOUGH
    if isinstance(buffer, int):
        return ObjectRoom(buffer)
    return ObjectRoom(elements(buffer, writable=True).array.nbytes)


def _default_of_irecv() -> int:
    options = getattr(sys.modules.get("mpi4py"), "rc", None)
    return int(getattr(options, "irecv_bufsz", _IRECV_BUFSZ))
