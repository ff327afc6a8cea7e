"""The room that a receive has for the pickle of an object.

mpi4py's `irecv` posts its receive before it knows the size of the message: it takes what fits into the buffer that it is given, and 32 KiB
without one. `recv` asks for the size first, unless it is given a buffer. A pickle that is larger is an error of truncation there.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from adjointlab.typing import Buffer
from adjointlab.worlds.arguments import elements

__all__ = ["ENOUGH", "ObjectRoom", "room_of"]

_IRECV_BUFSZ: Final = 32768


class ObjectRoom(NamedTuple):
    """So many bytes; None: as many as there are."""

    nbytes: int | None

    def overflow(self, sent: int) -> str:
        """Say that a pickle of `sent` bytes does not fit; empty if it does."""
        if self.nbytes is None or sent <= self.nbytes:
            return ""
        return (
            f"an object of {sent} bytes, pickled, was sent, and the receive has room for {self.nbytes}: give irecv a larger buffer (it has "
            f"{_default_of_irecv()} bytes without one), or use recv"
        )


ENOUGH: Final = ObjectRoom(None)


def room_of(buffer: Buffer | int, *, is_posted_first: bool = False) -> ObjectRoom:
    """The room of a receive with this buffer, or number of bytes; without either, it matters whether it is posted before it knows the size."""
    if buffer is None:
        return ObjectRoom(_default_of_irecv()) if is_posted_first else ENOUGH
    if isinstance(buffer, int):
        return ObjectRoom(buffer)
    return ObjectRoom(elements(buffer, writable=True).array.nbytes)


def _default_of_irecv() -> int:
    options = getattr(sys.modules.get("mpi4py"), "rc", None)
    return int(getattr(options, "irecv_bufsz", _IRECV_BUFSZ))
