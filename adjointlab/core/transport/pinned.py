"""A pool of pinned host memory, since allocating it takes longer than most copies."""

from __future__ import annotations

from typing import NamedTuple

from adjointlab.core.arrays.streams import Mark, Streams
from adjointlab.typing import NumpyArray

__all__ = ["PinnedPool"]

_LEAST = 512
"""Size of the smallest piece in bytes."""


class _Free(NamedTuple):
    memory: NumpyArray
    after: Mark | None  # a copy that still reads it


class PinnedPool:
    """Pieces of pinned memory, whose sizes in bytes are powers of two."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._free: dict[int, list[_Free]] = {}

    def take(self, nbytes: int) -> NumpyArray:
        """Return a free piece of at least `nbytes` bytes."""
        size = max(_LEAST, 1 << (nbytes - 1).bit_length())
        free = self._free.setdefault(size, [])
        for position, (memory, after) in enumerate(free):
            # A copy to the device reads it until its mark is reached, although the message has been received.
            if after is None or self._streams.is_reached(after):
                del free[position]
                return memory
        return self._streams.pinned(size)

    def give_back(self, memory: NumpyArray, after: Mark | None = None) -> None:
        """Give back a piece that :meth:`take` returned; it is free once the mark `after` is reached.

        A piece that MPI still reads or writes, because a wait was cancelled, is never given back.
        """
        self._free[memory.nbytes].append(_Free(memory, after))
