"""Internal messages of the MPI world, which never block inside MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from mpi4py import MPI

from adjointlab.worlds.comm_world import own_handle
from adjointlab.worlds.exit_of_c import allow_exit_of_c
from adjointlab.worlds.mpi.retired import Retired
from adjointlab.worlds.polling import keep_alive, poll_until

__all__ = ["ObjectChannel"]


class ObjectChannel:
    """Pickled objects between all processes of a private duplicate of `comm`. The constructor is collective.

    User code has no access to the duplicate, so it keeps working whatever happens to the communicators of user code.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = own_handle(comm).Dup()
        self.rank = self.comm.rank
        self.size = self.comm.size
        self._sending: list[MPI.Request] = []

    def retire(self, reason: str) -> None:
        """Make every further use of it in this process raise an error that states `reason`."""
        self.comm = cast("MPI.Intracomm", Retired(reason))

    def send(self, message: object, dest: int, tag: int) -> None:
        """Send without waiting; a large message is transferred while this process polls for others."""
        request = self.comm.isend(message, dest, tag)
        if not request.Test():
            # Dropping the request would free the pickle that MPI has yet to send.
            self._sending.append(request)
            self.all_sent()

    def send_to_others(self, message: object, tag: int, size: int | None = None) -> None:
        """Send to every other rank (below `size`, if it is given)."""
        for rank in range(self.size if size is None else size):
            if rank != self.rank:
                self.send(message, rank, tag)

    def poll(self, source: int, tag: int) -> Any:
        """Return the next message, or None if none has arrived."""
        # MPI makes progress only inside its own calls: the first probe may merely let a message arrive, which the second
        # one then finds.
        message = self.comm.improbe(source, tag) or self.comm.improbe(source, tag)
        return None if message is None else message.recv()

    def receive(self, source: int, tag: int, between: Callable[[float], object]) -> Any:
        """Wait for the next message; `between` is called as by :func:`poll_until`."""
        # Polls for the matched message rather than for its content, which may be a false value.
        return poll_until(lambda: self.comm.improbe(source, tag), between, polls=8).recv()

    def all_sent(self) -> bool:
        """Return True if all sends have completed."""
        self._sending = [request for request in self._sending if not request.Test()]
        return not self._sending

    def flush(self) -> None:
        """Wait until all sends have completed."""
        poll_until(self.all_sent, lambda waited: None, polls=1)

    def abandon_unsent(self) -> None:
        """Stop waiting for sends that may never be received."""
        for request in self._sending:
            keep_alive(request)
        self._sending = []

    def leave(self, patience: float) -> None:
        """Do nothing, because MPI_Finalize is collective."""

    def end_job(self, code: int) -> None:
        """End all processes at once: since some do not answer, no rank could leave MPI in order."""
        allow_exit_of_c()
        self.comm.Abort(code)
