"""The private communicator of the MPI world: commands, reports, notices of failure, tokens of agreement.

User code never sees it, so it works whatever has become of the communicators that user code works on. Waits on it
poll, with rests: a process that is not needed leaves the processor to those that are.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, NamedTuple

from mpi4py import MPI

from adjointlab.worlds.mpi.backoff import pause
from adjointlab.worlds.mpi.keepalive import keep_alive

__all__ = ["COMMAND", "CREATION", "INTERRUPT", "REPORT", "STACKS", "Control", "Notice", "Token"]

COMMAND: Final = 1  # leader to follower: run this; done
REPORT: Final = 2  # follower to leader: my outcome
NOTICE: Final = 3  # rank to rank: I have failed, do not wait for me
TOKEN: Final = 4  # rank to rank: I am about to make this communicator
INTERRUPT: Final = 5  # follower to leader: Ctrl-C
STACKS: Final = 6  # rank to rank: show your stacks, the job is about to end
CREATION: Final = 100  # and upwards: tags for making communicators (Open MPI sends messages with them)


class Notice(NamedTuple):
    """Rank `rank` has failed in run `run`: raised, or waited longer than its patience."""

    run: int
    rank: int
    blocked: bool


class Token(NamedTuple):
    """Rank `rank` stands before the creation `key` in run `run`, with these arguments."""

    run: int
    rank: int
    key: Any
    arguments: Any


class Control:
    """Messages of plain Python objects between the world's processes."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm.Dup()
        self.rank = self.comm.rank
        self.size = self.comm.size
        self._sending: list[MPI.Request] = []

    def send(self, message: Any, dest: int, tag: int) -> None:
        """Send without waiting; the message goes out as this process polls."""
        request = self.comm.isend(message, dest, tag)
        if not request.Test():
            self._sending = [sending for sending in self._sending if not sending.Test()]
            self._sending.append(request)

    def ask_for_stacks(self) -> None:
        """Ask all others for their stacks, from any thread, shortly before the end."""
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            for rank in range(self.size):
                if rank != self.rank:
                    keep_alive(self.comm.isend(self.rank, rank, STACKS))

    def poll(self, source: int, tag: int) -> Any:
        """The next message, or None if there is none."""
        # The first look may do no more than bring in what has come.
        message = self.comm.improbe(source, tag) or self.comm.improbe(source, tag)
        return None if message is None else message.recv()

    def receive(self, source: int, tag: int, meanwhile: Callable[[], None] | None = None) -> Any:
        """The next message, waited for at leisure; `meanwhile` is called between polls."""
        started = perf_counter()
        while True:
            for _ in range(8):
                message = self.comm.improbe(source, tag)
                if message is not None:
                    return message.recv()
            if meanwhile is not None:
                meanwhile()
            pause(perf_counter() - started)

    def notices(self, run: int) -> list[Notice]:
        """The notices of run `run` that have come in (those of earlier runs are dropped)."""
        found = []
        while self.comm.Iprobe(MPI.ANY_SOURCE, NOTICE):
            notice: Notice = self.comm.recv(None, MPI.ANY_SOURCE, NOTICE)
            if notice.run == run:
                found.append(notice)
        return found

    def flush(self) -> None:
        """Wait until all that was sent has gone out."""
        started = perf_counter()
        while self._sending:
            self._sending = [sending for sending in self._sending if not sending.Test()]
            pause(perf_counter() - started)

    def close(self) -> None:
        """Collective: free the communicator."""
        self.flush()
        self.comm.Free()
