"""The guard: prevents a rank from waiting for ever.

Every wait on a guarded communicator that outlasts its first polls continues here, and so does a loop of user code that
polls without success. It ends when its request is complete; shortly after another rank has given notice of its failure; when
it exceeds the world's patience; or when the watchdog finds that the run has taken too long. In the last
three cases the wait is *revoked*: the rank raises :class:`Cancelled`, and its outcome says why.

The guard also counts a run's messages, collectives and requests. From these the leader decides whether the communicators
are clean enough to be reused in another run.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final, NoReturn, Protocol, TypeVar

from mpi4py import MPI

from adjointlab.worlds.backward import BackwardPass, is_in_backward
from adjointlab.worlds.call_sites import call_site, came_back
from adjointlab.worlds.mpi.buffer_watch import BufferWatch
from adjointlab.worlds.mpi.call_log import DESCRIBED, KEPT, CallLog, CommKey, Describer, RunStatistics
from adjointlab.worlds.mpi.calls import GuardedCall
from adjointlab.worlds.mpi.control_channel import ControlChannel, Notice
from adjointlab.worlds.mpi.message_log import MessageLog
from adjointlab.worlds.polling import Pace, Rests, keep_alive, poll_until, yield_processor
from adjointlab.worlds.run import Blocked, PeerFailed
from adjointlab.worlds.world import Cancelled

__all__ = ["Guard"]

T = TypeVar("T")

# Polls of a wait before it checks for other events: about 60 microseconds, in which most messages arrive. With more ranks
# than processors a tenth of that, because the other rank may need this processor.
_QUICK_POLLS: Final = 600
_QUICK_POLLS_WHEN_CROWDED: Final = 60
_POLLS_BETWEEN_LOOKS: Final = 16

_PACE: Final = Pace(before=5e-2, after=1.0)
_PACE_WHEN_CROWDED: Final = Pace(before=1e-3, after=0.25)

# Seconds for which a wait continues after another rank has failed. A message that was sent before the failure may still arrive
# and complete the wait. This rank then proceeds as it would have done anyway, for example raises the same exception as all
# others, and is not reported as a victim of the first. Ranks that have yet to send need a processor: with fewer processors than
# ranks they wait longer for one, and on a busy machine too, where this rank also waits. So of the time between two looks at the
# notices, only as much counts as a look and a rest usually take.
_GRACE_AFTER_FAILURE: Final = 1e-2
_GRACE_WHEN_CROWDED: Final = 5e-2
_BETWEEN_LOOKS: Final = 2e-3


class OpenRequest(Protocol):
    """A request that user code has started."""

    @property
    def watch(self) -> BufferWatch | None: ...
    def is_complete(self) -> bool: ...
    def described(self) -> str: ...
    def retire(self, reason: str) -> None: ...


class Guard:
    """The revocable wait of this process, and the statistics of its current run.

    `is_crowded` means that there are more ranks than cores, so that another rank may need this rank's core.
    """

    def __init__(
        self, control: ControlChannel, patience: float, *, strict: bool = False, is_crowded: bool = False
    ) -> None:
        self.patience = patience
        self.strict = strict  # collectives are compared before they are carried out
        self.control = control
        self.describer = Describer()
        self.quick_polls = range(_QUICK_POLLS_WHEN_CROWDED if is_crowded else _QUICK_POLLS)
        self._pace = _PACE_WHEN_CROWDED if is_crowded else _PACE
        self._grace = _GRACE_WHEN_CROWDED if is_crowded else _GRACE_AFTER_FAILURE
        self.start_run(0, 0)

    def start_run(self, run_number: int, ranks: int) -> None:
        """Reset the statistics for a new run."""
        self.run_number = run_number
        self.ranks = ranks
        self.cancelled_as: Blocked | PeerFailed | None = None  # this rank's outcome if a wait was revoked
        self.failed_polls = 0  # in a row
        self.sent = [0] * ranks
        self.received = 0
        self.logs: dict[CommKey, CallLog] = {}
        self.messages: dict[CommKey, MessageLog] = {}
        # The functions of user code that have returned, each with the number of earlier collectives on the run's communicator.
        self.returns: list[tuple[int, Callable[..., object]]] = []
        self.applications = 0  # ended applications of the operator under test
        self.backward: BackwardPass | None = None  # this rank's latest
        self.open_requests: dict[int, OpenRequest] = {}  # by id
        self.misuses: list[str] = []  # of buffers
        self.refused: list[str] = []  # reasons for refusing calls that would bypass the run
        self.has_abandoned = False
        self.saw_mpi_error = False
        self.has_leaked_many = False  # by earlier runs, of communicators
        self._is_waiting = False
        self._is_overdue = False
        self._is_polling = False
        self._rests = Rests(self._pace)  # of a loop of polls
        self._notices: list[Notice] = []
        self._grace_left = self._grace  # from the first of them on
        self._looked_at: float | None = None  # since then

    def finish_run(self) -> RunStatistics:
        """Return the statistics of the run."""
        still_open = tuple(
            request.described() for request in self.open_requests.values() if not request.is_complete()
        )
        for request in self.open_requests.values():
            # User code has not waited for them, so MPI may use their buffers until it is finalized.
            keep_alive(request)
        self.open_requests = {}
        logs = {key: log.summary(self.describer, self.returns) for key, log in self.logs.items() if log}
        messages = {key: log.summary() for key, log in self.messages.items() if log}
        has_abandoned = self.has_abandoned or self.cancelled_as is not None
        was_late = self.cancelled_as is None and self._others_are_blocked()
        return RunStatistics(
            sent=tuple(self.sent),
            received=self.received,
            logs=logs,
            messages=messages,
            open_requests=still_open,
            misuses=tuple(dict.fromkeys(self.misuses)),
            refused=tuple(dict.fromkeys(self.refused)),
            has_abandoned=has_abandoned,
            was_polling=self._is_polling,
            was_late=was_late,
            saw_mpi_error=self.saw_mpi_error,
            backward=self.backward,
        )

    def wait(self, request: MPI.Request, call: GuardedCall, status: MPI.Status | None = None) -> None:
        """Wait until `request` is complete; a revoked wait abandons it."""
        test = request.Test
        try:
            for _ in self.quick_polls:
                if test(status):
                    return
            self.wait_until(lambda: test(status), call)
        except BaseException:
            if request:
                # Cancelling the request would not help: MPI need not support it for sends, and does not for collectives.
                keep_alive((request, call))
                self.has_abandoned = True
            raise

    def wait_until(self, ready: Callable[[], T | None], call: GuardedCall) -> T:
        """Poll until `ready` returns a true value, and return that; or revoke the wait."""
        self._refuse_if_cancelled()
        self._is_waiting = True
        try:
            found = poll_until(
                ready, lambda waited: self._revoke_if_vain(call, waited), _POLLS_BETWEEN_LOOKS, self._pace
            )
        finally:
            self._is_waiting = False
        self.failed_polls = 0
        return found

    def note_return(self, function: Callable[..., object]) -> None:
        """Record that this rank has returned from a function of user code."""
        # The first log is that of the run's own communicator, on which the lab makes its calls.
        log = next(iter(self.logs.values()), None)
        calls = 0 if log is None else log.calls
        if self.returns and self.returns[-1][0] == calls:
            self.returns.pop()  # thousands may return between two calls, but only the last one is needed
        self.returns.append((calls, function))
        if len(self.returns) >= KEPT:
            del self.returns[
                : -DESCRIBED - 1
            ]  # at most one per call is left, and only DESCRIBED calls are described

    def note_application(self) -> None:
        """Record that an application of the operator under test has ended."""
        self.applications += 1
        for calls in self.logs.values():
            calls.mark(self.applications)
        for messages in self.messages.values():
            messages.mark(self.applications)

    def progress(self) -> tuple[int, int, int]:
        """Numbers of calls in the run so far; read by the watchdog's thread."""
        return sum(self.sent), self.received, sum(log.calls for log in tuple(self.logs.values()))

    def expire(self) -> bool:
        """Declare the run overdue; called from the watchdog's signal handler.

        Returns True if this rank is in a wait, which is then revoked at its next check. So the handler need not raise at a point
        where a request may just have been started, and the report names the call.
        """
        self._is_overdue = True
        return self._is_waiting

    def poll_failed(self, call: GuardedCall) -> None:
        """Record a poll of user code without success: a loop of such polls is a wait too."""
        self._refuse_if_cancelled()
        self.failed_polls += 1
        yield_processor()
        if self.failed_polls % _POLLS_BETWEEN_LOOKS == 0:
            if self.failed_polls == _POLLS_BETWEEN_LOOKS:
                self._rests = Rests(self._pace)
            # Stays True if the next line raises: then the rank was polling when it was cancelled.
            self._is_polling = True
            self._revoke_if_vain(call, self._rests.waited)
            self._is_polling = False
            self._rests.rest()

    def cancel_mismatched(self, call: GuardedCall) -> NoReturn:
        """Cancel a mismatched `call`. All its ranks have detected the mismatch and do the same, so none needs to be notified."""
        if self.cancelled_as is None:
            self.cancelled_as = self._blocked_in(call)
        raise Cancelled

    def notify_failure(self, *, is_blocked: bool = False) -> None:
        """Notify the other ranks of the run that this one has failed."""
        self.control.notify_failure(self.run_number, self.ranks, is_blocked=is_blocked)

    def note_misuse(self, misuse: str, request: OpenRequest, by: str = "") -> None:
        """Record misuse by user code of the buffers of a pending operation, and the call that did it."""
        self.misuses.append(f"{misuse} of {request.described()} before it had completed{by}")

    def note_misuse_by(self, watch: BufferWatch, described: Callable[[], str]) -> None:
        """Record misuse of the buffers of pending operations by a new call with the buffers of `watch`."""
        for request in self.open_requests.values():
            pending = request.watch
            if (
                pending is not None
                and (misuse := pending.misuse_by(watch))
                and not request.is_complete()  # it may have been completed by mpi4py's own functions
            ):
                self.note_misuse(misuse, request, f", by {described()}")

    def _refuse_if_cancelled(self) -> None:
        # User code may have caught Cancelled in a bare `except:`, or may communicate in a `finally:`.
        if self.cancelled_as is not None:
            raise Cancelled

    def _revoke_if_vain(self, call: GuardedCall, waited: float) -> None:
        """Revoke the wait in `call` if another rank has failed or patience has run out."""
        self._notices += self.control.notices(self.run_number)
        if self._notices:
            all_blocked = all(notice.is_blocked for notice in self._notices)
            if all_blocked and waited > self.patience / 2:
                # The ranks of a deadlock time out one after another, and the first one's notice cancels the
                # others. Those that have waited for about as long are part of the deadlock, not victims of a failure.
                self.cancelled_as = self._blocked_in(call)
            else:
                now = perf_counter()
                self._grace_left -= min(now - (self._looked_at or now), _BETWEEN_LOOKS)
                self._looked_at = now
                if self._grace_left > 0:
                    return
                peers = tuple(sorted(notice.rank for notice in self._notices))
                self.cancelled_as = PeerFailed(str(call), str(call_site()), peers, self._came_back())
            raise Cancelled
        if waited > self.patience or self._is_overdue:
            self.cancelled_as = self._blocked_in(call)
            self.notify_failure(is_blocked=True)
            raise Cancelled

    def _blocked_in(self, call: GuardedCall) -> Blocked:
        return Blocked(
            str(call),
            str(call_site()),
            call.waits_for,
            is_send=call.is_send,
            came_back=self._came_back(),
            in_backward=is_in_backward(),
        )

    def _came_back(self) -> str:
        return came_back(self.returns[-1][1] if self.returns else None)

    def _others_are_blocked(self) -> bool:
        # MPI makes progress only inside its own calls: the first probe may merely let a notice arrive.
        notices = self.control.notices(self.run_number) or self.control.notices(self.run_number)
        return any(notice.is_blocked for notice in (*self._notices, *notices))

    def uncount(self, call: GuardedCall) -> None:
        """Remove a cancelled message from the statistics."""
        if call.is_receive:
            self.received -= 1
        elif call.peer is not None:
            self.sent[call.comm.ranks[call.peer]] -= 1
