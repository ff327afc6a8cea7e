"""The control channel of the MPI world: commands, reports, failure notices, tokens of agreement.

Each kind of message has a tag, so that every wait polls for its own kind and leaves the others queued. MPI
delivers messages of one sender and tag in the order in which they were sent, but different tags are not ordered. Hence each
message that belongs to a run carries the run's number, so that late ones are recognised and dropped.

    leader                    rank r < ranks             rank r >= ranks (not in this run)
      COMMAND(run, body's payload) ->                     COMMAND(run, empty) ->
      ...                     ... NOTICE, TOKEN between any two ranks of the run ...
      <- REPORT(run, outcome, statistics)
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

from mpi4py import MPI

from adjointlab.worlds.mpi.polling import ObjectChannel
from adjointlab.worlds.polling import keep_alive

__all__ = ["CREATION", "TOKEN", "ControlChannel", "Notice", "Token"]

# Tags 1, 2 and 5 are COMMAND, REPORT and INTERRUPT of every world of processes.
_NOTICE: Final = 3  # rank to rank: I have failed, do not wait for me
TOKEN: Final = 4  # rank to rank: I am about to make this communicator
_STACKS: Final = 6  # rank to rank: show your stacks, the job is about to end
# First of the tags for creating a run's communicator, one for each number of ranks: Open MPI's MPI_Comm_create_group
# sends ordinary messages of the given tag on the parent.
CREATION: Final = 100


class Notice(NamedTuple):
    """Rank `rank` has failed in run `run`: it raised, or its wait exceeded its patience."""

    run: int
    rank: int
    is_blocked: bool


class Token(NamedTuple):
    """Rank `rank` has reached the agreement `key` in run `run`, with these arguments."""

    run: int
    rank: int
    key: Hashable
    arguments: Any


class ControlChannel(ObjectChannel):
    """Internal messages of the MPI world."""

    def request_stacks(self) -> None:
        """Ask all others to print their stacks, shortly before the end of the job; may be called from any thread."""
        # The watchdog's thread calls this while the main thread is in an MPI call, which is allowed only with
        # MPI_THREAD_MULTIPLE.
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            for rank in range(self.size):
                if rank != self.rank:
                    # Not send(): its list of requests belongs to the main thread.
                    keep_alive(self.comm.isend(self.rank, rank, _STACKS))

    def poll_stacks_request(self) -> int | None:
        """Return the rank that asks this one to print its stacks, if one does."""
        asker: int | None = self.poll(MPI.ANY_SOURCE, _STACKS)
        return asker

    def notify_failure(self, run: int, ranks: int, *, is_blocked: bool) -> None:
        """Notify the other ranks of the run that this one has failed."""
        self.send_to_others(Notice(run, self.rank, is_blocked), _NOTICE, ranks)

    def notices(self, run: int) -> list[Notice]:
        """Return the notices of run `run` that have arrived since the last call, and drop those of earlier runs."""
        found = []
        # Every wait calls this repeatedly, so one probe must suffice: if it merely lets a message arrive, the next call
        # finds it.
        while self.comm.Iprobe(MPI.ANY_SOURCE, _NOTICE):
            notice: Notice = self.comm.recv(None, MPI.ANY_SOURCE, _NOTICE)
            if notice.run == run:
                found.append(notice)
        return found

    def close(self) -> None:
        """Free the communicator; collective."""
        self.flush()
        self.comm.Free()
