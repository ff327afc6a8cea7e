"""Detects misuse of the buffers of pending operations: user code must not modify a send buffer, nor access a receive buffer.

MPI itself does not detect it (MPI 4.1, section 3.7.2), and results are wrong only if the library happens to read late or write
early. So the contents of a send buffer at completion are compared with those at the start, and the buffers of each new call with those
of the pending operations. If no operation is pending, this costs a blocking call a single test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from mpi4py import MPI

from adjointlab.core.arrays.device_buffer import DeviceBuffer
from adjointlab.typing import Buffer
from adjointlab.worlds.arguments import REFUSALS, Flat, blocks, elements
from adjointlab.worlds.constants import is_in_place
from adjointlab.worlds.mpi.calls import by_name
from adjointlab.worlds.mpi.collectives import collective_kind
from adjointlab.worlds.scattered import is_scattered

__all__ = ["BufferWatch", "CollectiveWatcher", "watch_receive", "watch_send"]

Range: TypeAlias = tuple[int, int]
"""Half-open range of addresses."""


class BufferWatch:
    """Memory that one pending operation reads and writes."""

    __slots__ = ("_ranges", "_reads", "_sent", "_writes")

    def __init__(self, reads: Sequence[Flat], writes: Sequence[Flat]) -> None:
        self._reads = reads
        self._writes = writes
        self._sent: list[bytes] | None = None
        self._ranges: tuple[list[Range], list[Range]] | None = None

    def begin(self) -> None:
        """Record the contents of the send buffer."""
        self._sent = [_digest(array) for array in self._reads]

    def misuse(self) -> str:
        """Describe misuse of the send buffer since :meth:`begin`; empty if there was none."""
        for array, sent in zip(self._reads, self._sent or (), strict=True):
            if _digest(array) != sent:
                return "changed the send buffer"
        return ""

    def misuse_by(self, newer: BufferWatch) -> str:
        """Describe misuse of the buffers by an operation that begins while this one is pending; empty if it is legal."""
        reads, writes = self.ranges
        newer_reads, newer_writes = newer.ranges
        if newer_writes and _meet(newer_writes, reads):
            return "changed the send buffer"
        if writes and _meet(newer_writes, writes):
            return "wrote into the receive buffer"
        if writes and _meet(newer_reads, writes):
            return "sent from the receive buffer"
        return ""

    @property
    def ranges(self) -> tuple[list[Range], list[Range]]:
        """Addresses that are read, and addresses that are written. Lazy: needed only if several operations are pending."""
        if self._ranges is None:
            self._ranges = _ranges(self._reads), _ranges(self._writes)
        return self._ranges


_WORDS: Final = 256
_WEIGHTS: Final = np.random.default_rng(0).integers(0, 2**64, _WORDS, dtype=np.uint64) | np.uint64(1)
_COPIED: Final = 1 << 16


def _digest(array: Flat) -> bytes:
    """The bytes of a small array; of a large one, a weighted sum of every 256 words, modulo 2^64."""
    if array.nbytes <= _COPIED or not isinstance(array, np.ndarray):  # device memory
        return array.tobytes()
    # Allocating a copy would cost more than the sum. The weights are odd, so that every change of a single word shows, and random.
    octets = array.ravel(order="K").view(np.uint8)
    whole = octets.size // (8 * _WORDS) * (8 * _WORDS)
    sums: Flat = octets[:whole].view(np.uint64).reshape(-1, _WORDS) @ _WEIGHTS
    return sums.tobytes() + octets[whole:].tobytes()


def _ranges(arrays: Sequence[Flat]) -> list[Range]:
    starts = [(_address(array), array.nbytes) for array in arrays if array.nbytes]
    return [(start, start + nbytes) for start, nbytes in starts]


def _address(array: Flat | DeviceBuffer) -> int:
    return array.address if isinstance(array, DeviceBuffer) else MPI.Get_address(array)


def _meet(one: Sequence[Range], other: Sequence[Range]) -> bool:
    return any(
        start < other_end and other_start < end for start, end in one for other_start, other_end in other
    )


_NOTHING: Final[Sequence[Flat]] = ()


def watch_send(buf: Buffer) -> BufferWatch | None:
    """Watch for a send; None if its elements cannot be determined without MPI."""
    arrays = _arrays(buf)
    return None if arrays is None else BufferWatch(arrays, _NOTHING)


def watch_receive(buf: Buffer) -> BufferWatch | None:
    """Watch for a receive; None if its elements cannot be determined without MPI."""
    arrays = _arrays(buf)
    return None if arrays is None else BufferWatch(_NOTHING, arrays)


def _arrays(spec: Buffer) -> Sequence[Flat] | None:
    if type(spec) is np.ndarray:
        return (spec,)  # contiguous, because MPI has accepted it
    return _known(lambda: [elements(spec, writable=False).array])


def _known(read: Callable[[], Sequence[Flat]]) -> Sequence[Flat] | None:
    try:
        arrays = read()
    except REFUSALS:
        return None
    return None if any(map(is_scattered, arrays)) else arrays


class _Ranks(Protocol):
    """The part of a communicator that determines the role of this rank."""

    rank: int
    size: int


class CollectiveWatcher:
    """Makes the watches of one collective `name` on a communicator."""

    def __init__(self, comm: _Ranks, name: str) -> None:
        self._kind = collective_kind(name)
        self._comm = comm

    def __call__(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> BufferWatch | None:
        """Watch for a call with these arguments; None if its buffers are unknown."""
        given = by_name(self._kind.parameters, arguments, keywords)
        is_root = given.get("root", 0) == self._comm.rank
        kind = self._kind
        if "buf" in kind.parameters:  # a broadcast
            return watch_send(given.get("buf")) if is_root else watch_receive(given.get("buf"))
        reads = writes = _NOTHING
        if is_root or not kind.only_root_sends:
            reads = self._of(given.get("sendbuf"), kind.sends_blocks)
        if is_root or not kind.only_root_receives:
            writes = self._of(given.get("recvbuf"), kind.receives_blocks)
        return BufferWatch(reads, writes) if reads or writes else None

    def _of(self, spec: Buffer, has_blocks: bool) -> Sequence[Flat]:
        if is_in_place(spec):
            return _NOTHING
        if not has_blocks:
            return _arrays(spec) or _NOTHING
        return _known(lambda: self._blocks(spec)) or _NOTHING

    def _blocks(self, spec: Buffer) -> list[Flat]:
        array, _, counts, starts = blocks(spec, self._comm.size, writable=False)
        return [array[start : start + count] for start, count in zip(starts, counts, strict=True)]
