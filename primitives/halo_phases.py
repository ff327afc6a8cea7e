"""The phases of a halo exchange on array buffers: pack, exchange, unpack; reversed, with adds (eqs. 22 to 25).

One core for both forms of the exchange: x, over a worker's bulk, and y, over its window, are two arrays out of place
and two views of one array in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from adjointlab import MPI
from adjointlab.core import arrays
from adjointlab.primitives.halo_plan import HaloPlan, Link
from adjointlab.primitives.overlaps import Place

__all__ = ["HaloPhases"]

_TAG = 0
"""Of every message: what a caller sends with another tag is the caller's."""


class HaloPhases:
    """A worker's plan on a communicator, with the buffers of its messages.

    Each message has one buffer for each array library, made when first needed and reused by every later call. What is
    a message by itself and lies in one piece of memory needs none: it is sent from the arrays or received in them. All
    messages of a phase are complete before the next begins.
    """

    def __init__(self, comm: Any, plan: HaloPlan, dtype: str) -> None:
        self.comm, self.plan, self.dtype = comm, plan, dtype
        self._rank = comm.Get_rank()
        self._kept: dict[str, list[list[_Ends]]] = {}

    def forward(
        self, x: Any, y: Any, batch: tuple[int, ...], meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Collective: H = H_{d-1} ... H_0. Fill the halo of y from the bulks x of its owners, and clear its padding.

        The bulk of y is neither read nor written. `meanwhile`, called while messages travel, may write it, but not x.
        """
        comm, sources = self.comm, [x]
        for number, phase in enumerate(self._ends(y, batch) or [[]]):  # one phase at least, for what is local
            requests, received = [], []
            for ends in phase:
                boxes = ends.received_in(y) or ends.boxes
                if ends.receives:
                    requests.append(comm.Irecv(boxes.memory, ends.peer, _TAG))
                received.append(boxes)
            for ends in phase:
                faces = ends.sent_from(sources)
                if faces is None:
                    faces = ends.faces
                    for array, source, place in faces.pieces:
                        arrays.copy_into(array, sources[source][place])
                if ends.sends:
                    requests.append(comm.Isend(faces.memory, ends.peer, _TAG))
            if number == 0:
                for place in self.plan.padding:
                    arrays.clear(y[place])
                if meanwhile is not None:
                    meanwhile()
            MPI.Request.Waitall(requests)
            for boxes in received:
                for array, _, place in boxes.pieces:
                    arrays.copy_into(y[place], array)
                sources += boxes.arrays

    def adjoint(
        self, y: Any, x: Any, batch: tuple[int, ...], meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Collective: H* = H_0* ... H_{d-1}*. Add the halo of y into the bulks x of its owners; y is not written.

        What later phases add to a box that an earlier phase brought is added in the buffer of that box. `meanwhile`,
        called while messages travel, writes what is added to.
        """
        comm, sources, phases = self.comm, [x], self._ends(y, batch)
        sent = [[_cotangents(ends, y) for ends in phase] for phase in phases]
        for messages in sent:
            for boxes in messages:
                sources += boxes.arrays
        if not phases and meanwhile is not None:
            meanwhile()
        for number, (phase, messages) in enumerate(zip(reversed(phases), reversed(sent), strict=True)):
            requests = [comm.Irecv(ends.faces.memory, ends.peer, _TAG) for ends in phase if ends.sends]
            for ends, boxes in zip(phase, messages, strict=True):
                if ends.receives:
                    requests.append(comm.Isend(boxes.memory, ends.peer, _TAG))
            if number == 0 and meanwhile is not None:
                meanwhile()
            MPI.Request.Waitall(requests)
            for ends in phase:
                for array, source, place in ends.faces.pieces:
                    arrays.add_into(sources[source][place], array)

    def _ends(self, like: Any, batch: tuple[int, ...]) -> list[list[_Ends]]:
        """The ends of the links of each phase, with the buffers for the library of `like`; new ones for a batch."""
        library = arrays.library_of(like)
        if batch or library not in self._kept:
            empty = arrays.empty((0,), self.dtype, like)
            made = [[_Ends(link, self._rank, empty, batch) for link in links] for links in self.plan.phases]
            if batch:
                return made
            self._kept[library] = made
        return self._kept[library]


class _Message(NamedTuple):
    """What MPI moves, the arrays that lie in it one behind the other, and where their pieces belong.

    A piece is a view of an array, the number of its source, and its place there; a box has its pieces in y.
    """

    memory: Any
    arrays: tuple[Any, ...]
    pieces: tuple[tuple[Any, int, Place], ...]


class _Ends:
    """A link with the buffers of this worker's ends of it; they are made when first used."""

    def __init__(self, link: Link, rank: int, like: Any, batch: tuple[int, ...]) -> None:
        self.link, self.peer, self._like, self._batch = link, link.peer, like, batch
        self._is_local = link.peer == rank
        self.sends = bool(link.faces) and not self._is_local
        self.receives = bool(link.boxes) and not self._is_local
        self.is_passed_on = any(box.is_passed_on for box in link.boxes)
        self._lands = self.receives and len(link.boxes) == 1 and link.boxes[0].is_block
        self._leaves = self.sends and len(link.faces) == 1 and link.faces[0].is_block

    @cached_property
    def boxes(self) -> _Message:
        """The buffer of what is received forward and sent back."""
        message = self._buffer([box.shape for box in self.link.boxes])
        pieces = [
            (array[box.here], 0, box.there)
            for array, box in zip(message.arrays, self.link.boxes, strict=True)
            if box.there is not None
        ]
        return message._replace(pieces=tuple(pieces))

    @cached_property
    def faces(self) -> _Message:
        """The buffer of what is sent forward and received back; what stays here is packed where it is unpacked."""
        message = self.boxes if self._is_local else self._buffer([face.shape for face in self.link.faces])
        pieces = [
            (array[part.here], part.source, part.there)
            for array, face in zip(message.arrays, self.link.faces, strict=True)
            for part in face.parts
        ]
        return message._replace(pieces=tuple(pieces))

    def received_in(self, y: Any) -> _Message | None:
        """In place of the buffer: what is received, as y holds it, if that is one piece of memory."""
        return _one_piece(y[self.link.boxes[0].there]) if self._lands else None

    def sent_from(self, sources: Sequence[Any]) -> _Message | None:
        """In place of the buffer: what is sent, as a source holds it, if that is one piece of memory."""
        if not self._leaves:
            return None
        (part,) = self.link.faces[0].parts
        return _one_piece(sources[part.source][part.there])

    def _buffer(self, shapes: Sequence[tuple[int, ...]]) -> _Message:
        whole = [(*shape, *self._batch) for shape in shapes]
        ends = [0, *accumulate(map(math.prod, whole))]
        flat = arrays.empty((ends[-1],), arrays.dtype_of(self._like).name, self._like)
        views = [
            flat[start:stop].reshape(shape)
            for (start, stop), shape in zip(pairwise(ends), whole, strict=True)
        ]
        return _Message(arrays.message(flat), tuple(views), ())


def _one_piece(view: Any) -> _Message | None:
    return _Message(arrays.message(view), (view,), ()) if arrays.is_row_major(view) else None


def _cotangents(ends: _Ends, y: Any) -> _Message:
    """The boxes of a link as y holds them, in its memory if nothing will be added to them; zero outside the window."""
    there = None if ends.is_passed_on else ends.received_in(y)
    if there is not None:
        return there
    boxes = ends.boxes
    for box, array in zip(ends.link.boxes, boxes.arrays, strict=True):
        if not box.is_whole:
            arrays.clear(array)
    for array, _, place in boxes.pieces:
        arrays.copy_into(array, y[place])
    return boxes
