"""Base of the guarded communicator, with everything that its calls need: MPI's communicator, the guard, the call log, agreements."""

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
    """The communicators that user code makes in one run, and the state that all communicators of this process share."""

    def __init__(self, guard: Guard, agreements: Agreements) -> None:
        self.guard = guard
        self.agreements = agreements
        self.start_run()

    def start_run(self) -> None:
        """Reset the state for a new run."""
        self.derived: list[CommBase] = []  # in order of creation
        self._counts: dict[Hashable, int] = {}

    def serial(self, key: Hashable) -> int:
        """Return the number of earlier calls with `key` in this run.

        MPI requires all members to make their communicators in the same order. So the list of ranks and this
        serial number identify a communicator in the same way on all its members, without any message.
        """
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        return count


class CommBase(LocalCalls):
    """An MPI communicator, and the state that its guarded calls share."""

    def __init__(self, inner: MPI.Intracomm, ranks: tuple[int, ...], registry: CommunicatorRegistry) -> None:
        # By default MPI ends the job at the first error. As an exception, it becomes the outcome of the rank.
        inner = own_handle(inner)
        inner.Set_errhandler(MPI.ERRORS_RETURN)
        self.inner = inner
        self.ranks = ranks  # ranks of the run, by rank of this communicator
        self.rank: int = inner.rank
        self.size: int = inner.size
        self.registry = registry
        self.guard = registry.guard
        self.made_at: CallSite | None = None  # place in user code
        self.freed: MPI.Intracomm | None = None  # MPI's communicator, once user code has called Free
        self.is_kept = False  # True if user code need not free it
        self._built: list[str] = []  # names of the methods built so far
        self.start_run()

    def start_run(self) -> None:
        """Reset the communicator's state for a new run."""
        self.key = (self.ranks, self.registry.serial(self.ranks))
        self._name = ""
        self.log = CallLog()
        self.guard.logs[self.key] = self.log
        self.messages = self.guard.messages[self.key] = MessageLog()
        self.agreed = 0  # number of agreements so far, part of their keys
        # The world reuses its communicator for further runs, and user code must not see attributes of an earlier one. A
        # communicator cached in an attribute was made in an earlier run, so it could not be used anyway.
        self._attributes = {}

    def retire(self, reason: str) -> None:
        """Make every further use raise an error that states `reason`."""
        for name in self._built:
            # These methods are bound to MPI's communicator.
            del self.__dict__[name]
        self._built.clear()
        self.inner = cast("MPI.Intracomm", Retired(reason))

    def _predefined(self, key: int | ours.Keyval) -> Any:
        return None if isinstance(key, ours.Keyval) else self.inner.Get_attr(key)

    def note_return(self, function: Callable[..., object]) -> None:
        """Record that this rank has returned from a function of user code."""
        self.guard.note_return(function)

    def note_application(self) -> None:
        """Record that an application of the operator under test has ended: later calls belong to the next one."""
        self.guard.note_application()

    def note_backward(self, begun: BackwardPass) -> None:
        """Record that this rank begins a backward pass."""
        self.guard.backward = begun

    def unfreed(self) -> list[CommBase]:
        """Return the communicators that this rank has made in this run, from any communicator, and not freed."""
        return [comm for comm in self.registry.derived if comm.freed is None and not comm.is_kept]

    def keep(self) -> None:
        """Leave it to the run to free this communicator, so that user code need not."""
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
        """Wait for all requests of one call; if a wait is revoked, the remaining ones are kept alive."""
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
                    # As an open request, it is kept alive with its buffers by the guard.
                    GuardedRequest(request, call, self.guard)
            raise
        self.guard.failed_polls = 0

    def log_call(
        self, name: str, root: int | None = None, op: object = None, *, is_compared: bool = True
    ) -> None:
        """Log a collective call of user code; in a strict world, also compare it with those of the other ranks."""
        site = call_site()
        entry = (name, root, op, None, None, site.code, site.instruction)
        self.log.append(entry)
        if is_compared and self.guard.strict:
            self.compare(entry, GuardedCall(self, name, (), None if root is None else {"root": root}))

    def compare(self, entry: CallEntry, call: GuardedCall) -> None:
        """Wait until all ranks have reached this collective, and cancel it if they call different ones."""
        if self.size > 1:
            given = self.agree("collective", self.guard.describer(entry), list, call)
            if any(given[0].difference(other) for other in given) or block_disagreement(given):
                self.guard.cancel_mismatched(call)

    def agree(
        self, kind: str, arguments: object, action: Callable[[Sequence[Any]], T], call: GuardedCall
    ) -> T:
        """Call `action` with the arguments of all ranks of this communicator, once they have reached this agreement."""
        self.agreed += 1
        key = (kind, self.key, self.agreed)
        return self.registry.agreements.agree(key, self.ranks, arguments, action, call)
