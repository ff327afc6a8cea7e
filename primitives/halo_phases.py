"""The phases of a halo exchange on array buffers: pack, exchange, unpack; reversed, with adds (eqs. 22 to 25).

One core for both forms of the exchange: x, over a worker's bulk, and y, over its window, are two arrays out of place
and two views of one array in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from adjointlab import MPI
from adjointlab.core import arrays, transport
from adjointlab.primitives.boxes import ViewIndex
from adjointlab.primitives.halo_plan import HaloPlan, Link
from adjointlab.typing import Array, Buffer, Communicator

__all__ = ["HaloPhases"]

_TAG = 0
"""Of every message. Callers may send messages of their own on the same communicator with any other tag."""


# forward phase      C_P  pack sent boxes from x and earlier boxes    C_E  exchange    C_U  unpack received boxes into y
# adjoint phase      C_U* pack what was received, from y              C_E* send back   C_P* add into x and earlier boxes
class HaloPhases:
    """A worker's plan on a communicator, with the buffers of its messages.

    Each message has one buffer for each array library, made when first needed and reused by every later call. A message of
    one box that lies in one piece of memory needs none: it is sent from the arrays or received into them. All messages of a
    phase are complete before the next begins, as the next one sends what this one receives.
    """

    def __init__(self, comm: Communicator, plan: HaloPlan, dtype: str) -> None:
        self.comm, self.plan, self.dtype = comm, plan, dtype
        self._rank = comm.Get_rank()
        self._reused: dict[Hashable, list[list[_LinkBuffers]]] = {}

    def forward(
        self, x: Array, y: Array, batch: tuple[int, ...], meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Collective: H = H_{d-1} ... H_0. Fill the halo of y from the bulks x of its owners, and clear its padding.

        The bulk of y is neither read nor written. `meanwhile`, called while messages travel, may write it, but not x.
        """
        comm, sources = transport.over(self.comm, y), [x]
        phases = self._phases(y, batch) or [[]]  # without any, what is local is still done, once
        for phase_number, links in enumerate(phases):
            received = [link.received_into(y) or link.received for link in links]
            # Receives first: a message that finds its receive posted goes straight to its memory, and no worker waits for
            # another one to have sent. None from this worker to itself: it packs what it unpacks.
            requests = [
                comm.Irecv(message.memory, link.peer, _TAG)
                for link, message in zip(links, received, strict=True)
                if link.receives
            ]
            for together in transport.packed_together(links, y):
                messages = _packed(together, sources)
                for link, message in zip(together, messages, strict=True):
                    if link.sends:
                        requests.append(comm.Isend(message.memory, link.peer, _TAG))
            try:
                if phase_number == 0:  # while the first messages travel
                    for padding in self.plan.padding:
                        arrays.clear(y[padding])
                    if meanwhile is not None:
                        meanwhile()
            finally:  # an error of `meanwhile` must not free memory that messages are received into
                # Not Waitany: MPICH's takes many times longer where there are more ranks than cores.
                if requests:
                    MPI.Request.Waitall(requests)
            arrays.copy_all([(y[index], cells) for message in received for cells, _, index in message.pieces])
            for message in received:
                # Later phases count the sources as the plan does. A box that was received into y is a view of y.
                sources += message.boxes

    def adjoint(
        self, y: Array, x: Array, batch: tuple[int, ...], meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Collective: H* = H_0* ... H_{d-1}*. Add the halo of y into the bulks x of its owners; y is not written.

        `meanwhile`, called while messages travel, writes what is added to.
        """
        comm, phases = transport.over(self.comm, y), self._phases(y, batch)
        # All boxes are packed before the first phase: a later phase of forward, which comes earlier here, adds to boxes of
        # an earlier one (the way back of corners), and only then are these sent.
        to_pack: list[tuple[Array, Array]] = []
        returned, sources = [], [x]
        for links in phases:
            messages = [_cotangents(link, y, to_pack) for link in links]
            returned.append(messages)
            for message in messages:
                sources += message.boxes
        arrays.copy_all(to_pack)
        if not phases and meanwhile is not None:
            meanwhile()
        for number, (links, messages) in enumerate(zip(reversed(phases), reversed(returned), strict=True)):
            requests = [comm.Irecv(link.sent.memory, link.peer, _TAG) for link in links if link.sends]
            for link, message in zip(links, messages, strict=True):
                if link.receives:
                    requests.append(comm.Isend(message.memory, link.peer, _TAG))
            try:
                if number == 0 and meanwhile is not None:
                    meanwhile()
            finally:
                if requests:
                    MPI.Request.Waitall(requests)
            _add_pieces(links, sources)

    def _phases(self, like: Array, batch: tuple[int, ...]) -> list[list[_LinkBuffers]]:
        """The links of each phase with buffers in the library of `like`: reused, but new ones for a batch."""
        # A look-up that costs nothing for arrays of NumPy, and this is on the way of every call.
        kind = arrays.memory_kind(like)
        reused = None if batch else self._reused.get(kind)
        if reused is None:
            with arrays.kept(like):
                empty = arrays.empty((0,), self.dtype, like)
            reused = [
                [_LinkBuffers(link, self._rank, empty, batch) for link in links] for links in self.plan.phases
            ]
            if not batch:
                self._reused[kind] = reused
        return reused


class _Message(NamedTuple):
    """Memory that MPI moves, the boxes that lie in it one behind the other as arrays, and where their cells belong.

    A piece is a view of a box, the number of a source, and the index there; of a received box the source is y.
    """

    memory: Buffer
    boxes: tuple[Array, ...]
    pieces: tuple[tuple[Array, int, ViewIndex], ...]


class _LinkBuffers:
    """A link with the buffers of this worker's two messages in it, which are made when first used."""

    def __init__(self, link: Link, rank: int, like: Array, batch: tuple[int, ...]) -> None:
        self.link, self.peer, self._like, self._batch = link, link.peer, like, batch
        self._is_local = link.peer == rank
        self.sends = bool(link.sent) and not self._is_local
        self.receives = bool(link.received) and not self._is_local
        self.is_passed_on = any(box.is_passed_on for box in link.received)
        self._is_received_as_block = self.receives and len(link.received) == 1 and link.received[0].is_block
        self._is_sent_as_block = self.sends and len(link.sent) == 1 and link.sent[0].is_block

    @cached_property
    def received(self) -> _Message:
        """The buffer of what is received forward and sent back."""
        with arrays.kept(self._like):
            message = self._buffer([box.shape for box in self.link.received])
            pieces = [
                (array[box.in_box], 0, box.in_window)
                for array, box in zip(message.boxes, self.link.received, strict=True)
                if box.in_window is not None
            ]
        return message._replace(pieces=tuple(pieces))

    @cached_property
    def sent(self) -> _Message:
        """The buffer of what is sent forward and received back.

        A worker that needs images of its own cells packs them into the buffer that it unpacks.
        """
        with arrays.kept(self._like):
            message = self.received if self._is_local else self._buffer([box.shape for box in self.link.sent])
            pieces = [
                (array[part.in_box], part.source, part.in_source)
                for array, box in zip(message.boxes, self.link.sent, strict=True)
                for part in box.parts
            ]
        return message._replace(pieces=tuple(pieces))

    def received_into(self, y: Array) -> _Message | None:
        """The received box as y holds it, if that is one piece of memory, instead of the buffer."""
        return _as_message(y[self.link.received[0].in_window]) if self._is_received_as_block else None

    def sent_from(self, sources: Sequence[Array]) -> _Message | None:
        """The sent box as a source holds it, if that is one piece of memory, instead of the buffer."""
        if not self._is_sent_as_block:
            return None
        (part,) = self.link.sent[0].parts
        return _as_message(sources[part.source][part.in_source])

    def _buffer(self, shapes: Sequence[tuple[int, ...]]) -> _Message:
        shapes_of_batch = [(*shape, *self._batch) for shape in shapes]
        ends = [0, *accumulate(map(math.prod, shapes_of_batch))]
        flat = arrays.empty((ends[-1],), arrays.dtype_of(self._like).name, self._like)
        boxes = [
            flat[start:stop].reshape(shape)
            for (start, stop), shape in zip(pairwise(ends), shapes_of_batch, strict=True)
        ]
        return _Message(arrays.message(flat), tuple(boxes), ())


def _as_message(view: Array) -> _Message | None:
    """A view as a message by itself; `None` if it is not in row-major order, as of an array in another memory order."""
    return _Message(arrays.message(view), (view,), ()) if arrays.is_row_major(view) else None


def _packed(links: Sequence[_LinkBuffers], sources: Sequence[Array]) -> list[_Message]:
    """The messages of the links, with the cells of their boxes in them."""
    messages, to_pack = [], []
    for link in links:
        message = link.sent_from(sources)
        if message is None:
            message = link.sent
            to_pack += [(cells, sources[source][index]) for cells, source, index in message.pieces]
        messages.append(message)
    arrays.copy_all(to_pack)
    return messages


def _add_pieces(links: Sequence[_LinkBuffers], sources: Sequence[Array]) -> None:
    """Add what has come back over the links, in one launch where no two pieces meet."""
    arrays.add_all(
        [(sources[source][index], cells) for link in links for cells, source, index in link.sent.pieces]
    )


def _cotangents(link: _LinkBuffers, y: Array, to_pack: list[tuple[Array, Array]]) -> _Message:
    """The received boxes of a link as y holds them, zero outside the window; what has to be packed is appended to `to_pack`.

    They are sent from y's memory if they lie in one piece there and nothing will be added to them.
    """
    if not link.is_passed_on and (block := link.received_into(y)) is not None:
        return block
    message = link.received
    for box, array in zip(link.link.received, message.boxes, strict=True):
        if not box.is_whole:
            arrays.clear(array)
    to_pack += [(cells, y[index]) for cells, _, index in message.pieces]
    return message
