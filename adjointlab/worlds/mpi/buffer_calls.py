"""mpi4py's upper-case calls: buffers, over the revocable waits of the guarded communicator.

A blocking call is implemented as the non-blocking one and a revocable wait. Each function here builds one method of one
communicator, so that values that do not change between calls are looked up once. The fast path of a call is a few tests of its
request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.core import arrays
from adjointlab.devices.cuda_aware_mpi import OVERRIDE, loaded_library
from adjointlab.typing import Buffer, Status
from adjointlab.worlds.arguments import REFUSALS, elements
from adjointlab.worlds.call_labels import CallLabel, label_of_call
from adjointlab.worlds.call_sites import call_site, caller
from adjointlab.worlds.constants import c_int, refuse_in_place_off_root, to_mpi4py
from adjointlab.worlds.mpi.buffer_watch import BufferWatch, CollectiveWatcher, watch_receive, watch_send
from adjointlab.worlds.mpi.call_log import CallSignature, SignatureReader
from adjointlab.worlds.mpi.calls import GuardedCall, by_name
from adjointlab.worlds.mpi.collectives import collective_kind
from adjointlab.worlds.mpi.communicator_base import CommBase
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.mpi.message_log import content_of, set_envelope
from adjointlab.worlds.mpi.neighbourhoods import in_blocking_order
from adjointlab.worlds.mpi.requests import GuardedRequest
from adjointlab.worlds.scattered import is_scattered

__all__ = ["BUFFER_CALLS", "NEIGHBOUR_BUFFER_CALLS", "native", "peer_of", "peer_or_tag"]

# fmt: off
_COLLECTIVES: Final = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
    "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan",
)
# fmt: on
_OF_NEIGHBOURS: Final = tuple(
    f"Neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
)
_OPERATIONS: Final = {op: to_mpi4py(op) for op in ours.Op}


def native(value: Any) -> Any:
    """Translate our constants to mpi4py's, also inside buffer specifications; any other value is returned unchanged."""
    # Compares exact types, the commonest first, because every argument of every call comes here.
    kind = type(value)
    if kind is int:
        # Our constants are below -9000, and no MPI library has constants that small.
        return value if value > -9000 else to_mpi4py(value)
    if kind is ours.Constant:
        return to_mpi4py(value)
    if kind is ours.Op:
        return _OPERATIONS[value]
    if kind is ours.Buffer or kind is ours.Datatype:
        return to_mpi4py(value)
    if kind is list or kind is tuple:
        return kind(map(native, value))
    if arrays.is_on_device(value):
        _refuse_unless_aware(value)
    return value


def peer_or_tag(value: Any) -> int:
    """Translate a rank or tag to mpi4py's; like mpi4py, accept numbers of any type and truncate fractions."""
    whole: int = native(value if type(value) is int else c_int(value))
    return whole


def _refuse_unless_aware(buffer: Any) -> None:
    """Raise `BufferError` if the MPI library is not device-aware: it would use a device address as a host address, and crash."""
    library = loaded_library()
    if not library.is_aware:
        raise BufferError(
            f"message: an array on {arrays.place_name(buffer)}, and the MPI library does not take device memory "
            f"({library.reason}); copy it to the host, or move it with an operator of adjointlab.primitives, which stages it; "
            f"{OVERRIDE}=yes where you know that the library takes it"
        )


def peer_of(rank: int) -> int | None:
    """The one rank that a call waits for; None for ``ANY_SOURCE`` and ``PROC_NULL``."""
    return rank if rank >= 0 else None


def _as_bytes(buf: Buffer) -> Any:
    """The buffer specification of a receive, in bytes if its elements are known.

    MPICH 5.0.2 ends the process if a message is not a whole number of elements, as a pickle rarely is. Mismatched types are
    found when the messages are compared.
    """
    if type(buf) is np.ndarray and buf.dtype.kind in "biufc":
        return [buf, MPI.BYTE]
    if isinstance(buf, list | tuple):
        try:
            found = elements(buf, writable=True)
        except REFUSALS:
            return native(buf)
        # The elements of a derived datatype may be non-contiguous.
        return native(buf) if found.is_derived else [found.array, MPI.BYTE]
    return native(buf)


def _collective(comm: CommBase, name: str) -> Callable[..., None]:
    start = _starter(comm, "I" + name.lower())
    if name in _OF_NEIGHBOURS:
        start = in_blocking_order(comm, name, start)
    start_plain = getattr(comm.inner, "I" + name.lower())
    guard, quick_polls = comm.guard, comm.guard.quick_polls
    signature, watcher = SignatureReader(name, comm.rank, comm.size), CollectiveWatcher(comm, name)
    arrays, index = signature.arrays, signature.counted_array
    root, op = signature.default_root, signature.default_op
    ndarray, getframe = np.ndarray, sys._getframe

    # Only blocking collectives are compared beforehand: waiting in a non-blocking one could make a correct program hang.
    def call_strictly(*arguments: Buffer, **keywords: object) -> None:
        frame = caller(getframe(1))
        entry = signature(arguments, keywords, frame.f_code, frame.f_lasti)
        comm.log.append(entry)
        call = GuardedCall(comm, name, arguments, keywords)
        comm.compare(entry, call)
        if guard.open_requests:
            _note_misuse(guard, watcher(arguments, keywords), call)
        guard.wait(start(arguments, keywords), call)

    def call(*arguments: Buffer, **keywords: object) -> None:
        frame = caller(getframe(1))
        try:
            # Nearly all calls have only arrays as arguments: then nothing needs translation, and microseconds count. With two
            # buffers, ~index is the other one; with one, the same.
            if (
                len(arguments) == arrays
                and not keywords
                and type(counted := arguments[index]) is ndarray
                and type(arguments[~index]) is ndarray
            ):
                request = start_plain(*arguments)
                comm.log.append((name, root, op, counted.dtype, counted.size, frame.f_code, frame.f_lasti))
            else:
                request = start(arguments, keywords)
                comm.log.append(signature(arguments, keywords, frame.f_code, frame.f_lasti))
        except MPI.Exception:
            # Open MPI executes a part of some collectives at once. The failed call is logged too: it may be the mismatched one.
            comm.log.append(signature(arguments, keywords, frame.f_code, frame.f_lasti))
            raise
        guard.failed_polls = 0
        if guard.open_requests:
            _note_misuse(guard, watcher(arguments, keywords), GuardedCall(comm, name, arguments, keywords))
        test = request.Test
        for _ in quick_polls:
            if test():
                return
        guard.wait(request, GuardedCall(comm, name, arguments, keywords))

    return call_strictly if guard.strict else call


def _started_collective(comm: CommBase, name: str) -> Callable[..., GuardedRequest]:
    start, signature = _starter(comm, name), SignatureReader(name, comm.rank, comm.size)
    watcher = CollectiveWatcher(comm, name)

    def log(arguments: Sequence[Buffer], keywords: Mapping[str, object]) -> CallLabel | None:
        entry, label = CallSignature(*signature(arguments, keywords, *call_site())), label_of_call()
        comm.log.append(entry if label is None else entry._replace(name=str(label)))
        return label

    def call(*arguments: Buffer, **keywords: object) -> GuardedRequest:
        try:
            request = start(arguments, keywords)
        except MPI.Exception:
            log(arguments, keywords)
            raise
        label = log(arguments, keywords)
        watch = watcher(arguments, keywords)
        call = GuardedCall(comm, name, arguments, keywords, label=label)
        return GuardedRequest(request, call, comm.guard, watch)

    return call


def _starter(comm: CommBase, name: str) -> Callable[[Sequence[Buffer], Mapping[str, object]], MPI.Request]:
    """Return MPI's non-blocking call `name` with translation of its arguments."""
    start, kind = getattr(comm.inner, name), collective_kind(name)
    of_root = kind.only_root_in_place

    def started(arguments: Sequence[Buffer], keywords: Mapping[str, object]) -> MPI.Request:
        if of_root is not None:
            given = by_name(kind.parameters, arguments, keywords)
            if given.get("root", 0) != comm.rank:
                refuse_in_place_off_root(name.removeprefix("I").capitalize(), given.get(of_root))
        translated = {key: native(value) for key, value in keywords.items()}
        request: MPI.Request = start(*map(native, arguments), **translated)
        return request

    return started


def _note_misuse(guard: Guard, watch: BufferWatch | None, call: GuardedCall) -> None:
    """Record misuse of the buffers of pending operations by a blocking call."""
    if watch is not None:
        guard.note_misuse_by(watch, lambda: f"{call} at {call_site()}")


def _send(comm: CommBase, name: str) -> Callable[[Buffer, int, int], None]:
    start, getframe = getattr(comm.inner, {"Send": "Isend", "Ssend": "Issend"}[name]), sys._getframe
    guard, quick_polls = comm.guard, comm.guard.quick_polls

    def call(buf: Buffer, dest: int, tag: int = 0) -> None:
        dest, tag = peer_or_tag(dest), peer_or_tag(tag)
        request = start(native(buf), dest, tag)
        comm.count(dest, is_send=True)
        frame = caller(getframe(1))
        comm.messages.send(dest, tag, name, content_of(buf), frame.f_code, frame.f_lasti)
        guard.failed_polls = 0
        if guard.open_requests and dest != MPI.PROC_NULL:
            _note_misuse(guard, watch_send(buf), GuardedCall(comm, name, (buf, dest, tag)))
        test = request.Test
        for _ in quick_polls:
            if test():
                return
        guard.wait(request, GuardedCall(comm, name, (buf, dest, tag), peer=peer_of(dest)))

    return call


def _started_send(comm: CommBase, name: str) -> Callable[[Buffer, int, int], GuardedRequest]:
    start = getattr(comm.inner, name)

    def call(buf: Buffer, dest: int, tag: int = 0) -> GuardedRequest:
        dest, tag = peer_or_tag(dest), peer_or_tag(tag)
        request = start(native(buf), dest, tag)
        comm.count(dest, is_send=True)
        comm.messages.send(dest, tag, name, content_of(buf), *call_site())
        peer = peer_of(dest)
        watch = None if peer is None else watch_send(buf)
        pending = GuardedCall(comm, name, (buf, dest, tag), peer=peer, label=label_of_call())
        return GuardedRequest(request, pending, comm.guard, watch)

    return call


def _persistent(comm: CommBase, name: str) -> Callable[..., ours.Prequest]:
    # Each start is an ordinary non-blocking call, so that it can be revoked, logged and watched.
    start = getattr(comm, "I" + name.lower().removesuffix("_init"))

    def call(*arguments: Buffer, **keywords: object) -> ours.Prequest:
        return ours.Prequest(lambda: start(*arguments, **keywords))

    return call


def _receive(comm: CommBase, name: str) -> Callable[..., None]:
    start, getframe = comm.inner.Irecv, sys._getframe
    guard, quick_polls = comm.guard, comm.guard.quick_polls

    def call(
        buf: Buffer, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG, status: Status | None = None
    ) -> None:
        source, tag = peer_or_tag(source), peer_or_tag(tag)
        request = start(_as_bytes(buf), source, tag)
        comm.count(source, is_send=False)
        frame = caller(getframe(1))
        entry = comm.messages.receive(source, tag, name, content_of(buf), frame.f_code, frame.f_lasti)
        if status is None and (source < 0 or tag < 0):
            status = MPI.Status()  # to know what was received
        guard.failed_polls = 0
        if guard.open_requests and source != MPI.PROC_NULL:
            _note_misuse(guard, watch_receive(buf), GuardedCall(comm, name, (buf, source, tag)))
        if status is None:
            test = request.Test
            for _ in quick_polls:
                if test():
                    return
        pending = GuardedCall(comm, name, (buf, source, tag), peer=peer_of(source))
        try:
            comm.wait_for_all((request, pending, status))
        finally:
            set_envelope(entry, status)  # also if MPI raises because the message is too long

    return call


def _started_receive(comm: CommBase, name: str) -> Callable[..., GuardedRequest]:
    start = comm.inner.Irecv

    def call(buf: Buffer, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG) -> GuardedRequest:
        source, tag = peer_or_tag(source), peer_or_tag(tag)
        request = start(_as_bytes(buf), source, tag)
        comm.count(source, is_send=False)
        entry = comm.messages.receive(source, tag, name, content_of(buf), *call_site())
        label = label_of_call()
        pending = GuardedCall(
            comm, name, (buf, source, tag), peer=peer_of(source), is_receive=True, label=label
        )
        watch = None if source == MPI.PROC_NULL else watch_receive(buf)
        return GuardedRequest(request, pending, comm.guard, watch, entry)

    return call


def _sendrecv(comm: CommBase, name: str, depth: int = 1) -> Callable[..., None]:
    getframe, ndarray, may_share_memory = sys._getframe, np.ndarray, np.may_share_memory
    start_receive, start_send = comm.inner.Irecv, comm.inner.Isend
    guard, quick_polls = comm.guard, comm.guard.quick_polls

    def call(
        sendbuf: Buffer,
        dest: int,
        sendtag: int = 0,
        recvbuf: Buffer = None,
        source: int = ours.ANY_SOURCE,
        recvtag: int = ours.ANY_TAG,
        status: Status | None = None,
    ) -> None:
        dest, sendtag, source, recvtag = map(peer_or_tag, (dest, sendtag, source, recvtag))
        arguments = (sendbuf, dest, sendtag, recvbuf, source, recvtag)
        # MPICH ends the process if a rank sends to itself from memory that it also receives into.
        are_arrays = type(sendbuf) is type(recvbuf) is ndarray
        if are_arrays and may_share_memory(sendbuf, recvbuf) and MPI.PROC_NULL not in (dest, source):
            raise ours.Exception(f"{name}: the send and receive buffers must not be aliased", ours.ERR_BUFFER)
        # The receive is posted first, so that a message that has arrived goes directly into the buffer.
        receiving = start_receive(_as_bytes(recvbuf), source, recvtag)
        comm.count(source, is_send=False)
        frame = caller(getframe(depth))
        entry = comm.messages.receive(source, recvtag, name, content_of(recvbuf), frame.f_code, frame.f_lasti)
        if status is None and (source < 0 or recvtag < 0):
            status = MPI.Status()  # to know what was received
        try:
            sending = start_send(native(sendbuf), dest, sendtag)
        except BaseException:
            # The receive stays posted, so it is registered as an open request.
            GuardedRequest(receiving, GuardedCall(comm, name, arguments, peer=peer_of(source)), guard)
            raise
        comm.count(dest, is_send=True)
        comm.messages.send(dest, sendtag, name, content_of(sendbuf), frame.f_code, frame.f_lasti)
        guard.failed_polls = 0
        if guard.open_requests:
            made = GuardedCall(comm, name, arguments)
            _note_misuse(guard, None if dest == MPI.PROC_NULL else watch_send(sendbuf), made)
            _note_misuse(guard, None if source == MPI.PROC_NULL else watch_receive(recvbuf), made)
        if status is None:
            test = receiving.Test
            for _ in quick_polls:
                if test():
                    if sending.Test():
                        return
                    break
        try:
            comm.wait_for_all(
                (receiving, GuardedCall(comm, name, arguments, peer=peer_of(source)), status),
                (sending, GuardedCall(comm, name, arguments, peer=peer_of(dest)), None),
            )
        finally:
            set_envelope(entry, status)

    return call


def _sendrecv_replace(comm: CommBase, name: str) -> Callable[..., None]:
    exchange = _sendrecv(comm, name, depth=2)

    def call(
        buf: Buffer,
        dest: int,
        sendtag: int = 0,
        source: int = ours.ANY_SOURCE,
        recvtag: int = ours.ANY_TAG,
        status: Status | None = None,
    ) -> None:
        # Not MPI_Isendrecv_replace: MPICH 5.0.2 leaves its status unfilled (source, tag and count are arbitrary).
        array, datatype, _ = elements(buf, writable=True)
        kind, is_packed = to_mpi4py(datatype), not is_scattered(array)
        received = array if is_packed else array.copy()
        exchange([array.copy(), kind], dest, sendtag, [received, kind], source, recvtag, status)
        if not is_packed:
            array[:] = received

    return call


BUFFER_CALLS: Final[Mapping[str, Callable[[CommBase, str], Callable[..., object]]]] = {
    **dict.fromkeys(_COLLECTIVES, _collective),
    **dict.fromkeys(("I" + name.lower() for name in _COLLECTIVES), _started_collective),
    **dict.fromkeys(("Send", "Ssend"), _send),
    **dict.fromkeys(("Isend", "Issend"), _started_send),
    **dict.fromkeys(("Send_init", "Ssend_init", "Recv_init"), _persistent),
    "Recv": _receive,
    "Irecv": _started_receive,
    "Sendrecv": _sendrecv,
    "Sendrecv_replace": _sendrecv_replace,
}
"""Builders of methods, by name; they take a communicator and the method's name."""

NEIGHBOUR_BUFFER_CALLS: Final[Mapping[str, Callable[[CommBase, str], Callable[..., object]]]] = {
    **dict.fromkeys(_OF_NEIGHBOURS, _collective),
    **dict.fromkeys(("I" + name.lower() for name in _OF_NEIGHBOURS), _started_collective),
}
"""Additional builders for a communicator with a topology."""
