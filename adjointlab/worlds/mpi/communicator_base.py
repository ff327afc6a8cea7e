"""Base of the guarded communicator, with all that its calls need: MPI's communicator, the guard, the call log, agreements."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.typing import Status
from adjointlab.worlds.backward import BackwardPass
from adjointlab.worlds.call_sites import CallSite, call_site
from adjointlab.worlds.comm_world import own_handle
from adjointlab.worlds.local_calls import LocalCalls
from adjointlab.worlds.mpi.agreement import Agreements
from adjointlab.worlds.mpi.call_log import CallEntry, CallLog, block_disagreement
from adjointlab.worlds.mpi.calls import GuardedCall
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.mpi.message_log import MessageLog
from adjointlab.worlds.mpi.requests import GuardedRequest, fill
from adjointlab.worlds.mpi.retired import Retired

__all__ = ["CommBase", "CommunicatorRegistry"]

T = TypeVar("T")


class CommunicatorRegistry:
    """The communicators that user code makes in one run, and what all communicators of this process share."""

    def __init__(self, guard: Guard, agreements: Agreements) -> None:
        self.guard = guard
        self.agreements = agreements
        self.start_run()

    def start_run(self) -> None:
        """Begin with nothing made yet."""
        self.derived: list[CommBase] = []  # in the order of their making
        self._counts: dict[Hashable, int] = {}

    def serial(self, key: Hashable) -> int:
        """Return how often this was called with `key` before, in this run.

        The members of some ranks' communicators make them in the same order, as MPI demands. So the ranks and their
        serial number name a communicator alike on all its members, without any message.
        """
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        return count


class CommBase(LocalCalls):
    """A communicator of MPI, and what its guarded calls share."""

    def __init__(self, inner: MPI.Intracomm, ranks: tuple[int, ...], registry: CommunicatorRegistry) -> None:
        # MPI would end the job at the first error. Like this it is an exception, so an outcome of the rank.
        inner = own_handle(inner)
        inner.Set_errhandler(MPI.ERRORS_RETURN)
        self.inner = inner
        self.ranks = ranks  # of the run, by rank of this communicator
        self.rank: int = inner.rank
        self.size: int = inner.size
        self.registry = registry
        self.guard = registry.guard
        self.made_at: CallSite | None = None  # by user code
        self.freed: MPI.Intracomm | None = None  # MPI's communicator, once user code has called Free
        self.is_kept = False  # until the run ends, which frees it
        self._built: list[str] = []  # names of the methods built so far
        self.start_run()

    def start_run(self) -> None:
        """Begin a run on this communicator, with nothing left of the one before."""
        self.key = (self.ranks, self.registry.serial(self.ranks))
        self._name = ""
        self.log = CallLog()
        self.guard.logs[self.key] = self.log
        self.messages = self.guard.messages[self.key] = MessageLog()
        self.agreed = 0  # number of agreements so far: part of their keys
        # The world keeps its communicator from run to run, and user code must not find it changed. A communicator that is
        # cached in an attribute was made in the last run anyway, so the next one cannot use it.
        self._attributes = {}

    def retire(self, reason: str) -> None:
        """Make every further use an error that says `reason`."""
        for name in self._built:
            # They are bound to MPI's communicator.
            del self.__dict__[name]
        self._built.clear()
        self.inner = cast("MPI.Intracomm", Retired(reason))

    def _predefined(self, key: int | ours.Keyval) -> Any:
        return None if isinstance(key, ours.Keyval) else self.inner.Get_attr(key)

    def note_return(self, function: Callable[..., object]) -> None:
        """Note that this rank has returned from a function of user code."""
        self.guard.note_return(function)

    def note_application(self) -> None:
        """Note that an application of the operator under test has ended: what is called from now on belongs to another one."""
        self.guard.note_application()

    def note_backward(self, begun: BackwardPass) -> None:
        """Note that this rank begins a backward pass."""
        self.guard.backward = begun

    def unfreed(self) -> list[CommBase]:
        """Return what this rank has made in this run, from whichever communicator, and not freed."""
        return [comm for comm in self.registry.derived if comm.freed is None and not comm.is_kept]

    def keep(self) -> None:
        """Leave it to the run to free this communicator: it is no fault of user code that it does not."""
        self.is_kept = True

    def count(self, peer: int, *, is_send: bool) -> None:
        """Count a message to or from the rank `peer`."""
        if peer == MPI.PROC_NULL:
            return
        if not is_send:
            self.guard.received += 1
        elif 0 <= peer < self.size:
            self.guard.sent[self.ranks[peer]] += 1

    def wait_for_all(self, *waits: tuple[MPI.Request, GuardedCall, Status | None]) -> None:
        """Wait for all the requests of one call; if a wait is revoked, those left over are kept."""
        open_requests = [(request, call) for request, call, _ in waits]
        try:
            for request, call, status in waits:
                found = status if status is None or isinstance(status, MPI.Status) else MPI.Status()
                self.guard.wait(request, call, found)
                open_requests.pop(0)
                if found is not None:
                    fill(status, found)
        except BaseException:
            for request, call in open_requests:
                if request:
                    # As an open request of the guard, it is kept alive with its buffers from the end of the run on.
                    GuardedRequest(request, call, self.guard)
            raise
        self.guard.failed_polls = 0

    def log_call(
        self, name: str, root: int | None = None, op: object = None, *, is_compared: bool = True
    ) -> None:
        """Log a collective that user code calls; in a strict world, compare it with the other ranks' first."""
        site = call_site()
        entry = (name, root, op, None, None, site.code, site.instruction)
        self.log.append(entry)
        if is_compared and self.guard.strict:
            self.compare(entry, GuardedCall(self, name, (), None if root is None else {"root": root}))

    def compare(self, entry: CallEntry, call: GuardedCall) -> None:
        """Wait until all ranks have reached this collective, and leave it if they call different ones."""
        if self.size > 1:
            given = self.agree("collective", self.guard.describer(entry), list, call)
            if any(given[0].difference(other) for other in given) or block_disagreement(given):
                self.guard.cancel_mismatched(call)

    def agree(
        self, kind: str, arguments: object, action: Callable[[Sequence[Any]], T], call: GuardedCall
    ) -> T:
        """Call `action` with all ranks' arguments once all of this communicator have reached this agreement."""
        self.agreed += 1
        key = (kind, self.key, self.agreed)
        return self.registry.agreements.agree(key, self.ranks, arguments, action, call)
