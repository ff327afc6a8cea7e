"""What keeps one rank of a run from waiting for ever.

Every wait on a guarded communicator polls here: it ends when the request is complete, when another rank gives
notice that it has failed, or when patience is exhausted. The guard also keeps the books of a run (messages sent and
received, collectives called, requests open), from which the leader sees whether the communicators are still clean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, NoReturn

from mpi4py import MPI

from adjointlab.worlds.mpi.backoff import pause, processors, yield_processor
from adjointlab.worlds.mpi.call_log import Account, Fingerprint, Note, account, fingerprint
from adjointlab.worlds.mpi.calls import Call, caller
from adjointlab.worlds.mpi.control_channel import NOTICE, Control, Notice
from adjointlab.worlds.mpi.keepalive import keep_alive
from adjointlab.worlds.world import Blocked, Cancelled, PeerFailed

__all__ = ["Books", "Guard"]

# Polls that a wait makes before it looks at anything else: some 60 microseconds' worth where each rank has a processor,
# and few where the rank that is waited for may need this one.
_QUICK_POLLS: Final = 600
_QUICK_POLLS_IN_A_CROWD: Final = 60
_POLLS_BETWEEN_LOOKS: Final = 16

# Seconds that a wait goes on after another rank's failure: what that rank did before may yet complete it, and this rank then
# goes on to what it would do by itself, such as to raise the same.
_LAST_CALL: Final = 1e-2

CommKey = tuple[tuple[int, ...], int]  # the ranks of a communicator, and which one of these ranks it is


@dataclass(frozen=True)
class Books:
    """One rank's account of a run."""

    sent: tuple[int, ...]  # messages, by rank of destination
    received: int
    collectives: dict[CommKey, Account]
    left_open: tuple[str, ...]  # requests
    abandoned: bool  # whether a wait was given up
    polling: bool  # the rank was blocked in a loop of polls
    late: bool  # the rank was still at work when another one lost its patience


class Guard:
    """The revocable wait, and the books, of this process."""

    def __init__(self, control: Control, patience: float, *, strict: bool = False) -> None:
        self.patience = patience
        self.strict = strict  # collectives are compared before they are carried out
        self.control = control
        self._words: dict[Any, Any] = {}
        self.quick = range(_QUICK_POLLS if control.size <= processors() else _QUICK_POLLS_IN_A_CROWD)
        self.begin(0, 0)

    def begin(self, run: int, ranks: int) -> None:
        """Open the books of a run."""
        self.run = run
        self.ranks = ranks
        self.departure: Blocked | PeerFailed | None = None
        self.polls = 0  # unsuccessful ones in a row
        self.sent = [0] * ranks
        self.received = 0
        self.trails: dict[CommKey, list[Note]] = {}
        self.open: dict[int, Any] = {}  # requests by id
        self.abandoned = False
        self.is_littered = False  # earlier runs have left many communicators behind
        self.in_wait = False
        self.expired = False  # the run has lasted so long that this wait has to end, whatever its patience
        self._polled_since = 0.0
        self._polling = False
        self._heard: list[Notice] = []  # of other ranks' failures
        self._heard_at = 0.0

    def end(self) -> Books:
        """Close the books. Requests that are still open are kept for ever, with their buffers."""
        left_open = tuple(request.story for request in self.open.values() if not request.is_complete())
        if self.open:
            for request in self.open.values():
                keep_alive(request)
            self.open = {}
        collectives = {key: account(trail, self._words) for key, trail in self.trails.items() if trail}
        abandoned = self.abandoned or self.departure is not None
        late = self.departure is None and self._others_are_blocked()
        return Books(tuple(self.sent), self.received, collectives, left_open, abandoned, self._polling, late)

    def in_words(self, note: Note) -> Fingerprint:
        """A noted call as the other ranks understand it."""
        return fingerprint(note, self._words)

    def notify(self, *, blocked: bool) -> None:
        """Tell the other ranks of the run that this one has failed."""
        for rank in range(self.ranks):
            if rank != self.control.rank:
                self.control.send(Notice(self.run, self.control.rank, blocked), rank, NOTICE)

    def wait(self, request: MPI.Request, call: Call, status: MPI.Status | None = None) -> None:
        """Wait for `request`, which is abandoned when the wait is revoked."""
        test = request.Test
        try:
            for _ in self.quick:
                if test(status):
                    return
            self.until(lambda: test(status), call)
        except BaseException:
            if request:
                keep_alive((request, call))
                self.abandoned = True
            raise

    def until(self, ready: Callable[[], Any], call: Call) -> Any:
        """Poll until `ready` returns something true, and return that."""
        if self.departure is not None:
            raise Cancelled
        started = perf_counter()
        self.in_wait = True
        try:
            while True:
                for _ in range(_POLLS_BETWEEN_LOOKS):
                    found = ready()
                    if found:
                        self.polls = 0
                        return found
                    yield_processor()
                waited = perf_counter() - started
                self._look(call, waited)
                pause(waited)
        finally:
            self.in_wait = False

    def expire(self) -> bool:
        """The run has lasted too long: whether this rank is in a wait, which then ends."""
        self.expired = True
        return self.in_wait

    def polled(self, call: Call) -> None:
        """User code has polled in vain: a loop of such polls is a wait too."""
        if self.departure is not None:
            raise Cancelled
        self.polls += 1
        yield_processor()
        if self.polls % _POLLS_BETWEEN_LOOKS == 0:
            now = perf_counter()
            if self.polls == _POLLS_BETWEEN_LOOKS:
                self._polled_since = now
            self._polling = True
            self._look(call, now - self._polled_since)
            self._polling = False
            pause(now - self._polled_since)

    def _others_are_blocked(self) -> bool:
        # The first look may do no more than bring in what has come.
        notices = self.control.notices(self.run) or self.control.notices(self.run)
        return any(notice.blocked for notice in (*self._heard, *notices))

    def _look(self, call: Call, waited: float) -> None:
        notices = self._heard
        notices += self.control.notices(self.run)
        if notices:
            # Others who have waited for about as long are part of the knot, not its victims.
            if all(notice.blocked for notice in notices) and waited > self.patience / 2:
                self.departure = Blocked(str(call), str(caller()), call.waits_for)
            else:
                self._heard_at = self._heard_at or perf_counter()
                if perf_counter() - self._heard_at < _LAST_CALL:
                    return
                peers = tuple(sorted(notice.rank for notice in notices))
                self.departure = PeerFailed(str(call), str(caller()), peers)
            raise Cancelled
        if waited > self.patience or self.expired:
            self.departure = Blocked(str(call), str(caller()), call.waits_for)
            self.notify(blocked=True)
            raise Cancelled

    def leave(self, call: Call) -> NoReturn:
        """Leave `call`, which all its ranks know not to match: no need to tell them."""
        if self.departure is None:
            self.departure = Blocked(str(call), str(caller()), call.waits_for)
        raise Cancelled

    def forget(self, call: Call) -> None:
        """Strike a cancelled message from the books."""
        if call.name.lower().removeprefix("i").startswith("recv"):
            self.received -= 1
        elif call.peer is not None:
            self.sent[call.comm.ranks[call.peer]] -= 1
