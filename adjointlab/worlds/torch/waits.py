"""Waits for the lab's own messages in one case of the torch world, which can be cancelled, unlike those of user code.

User code waits in torch's C++ code: such a wait ends when it is complete, when the timeout of its group expires, or when the
connection to a rank that has failed is closed.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from adjointlab.worlds.call_sites import call_site
from adjointlab.worlds.polling import Channel, poll_until
from adjointlab.worlds.run import Blocked, PeerFailed
from adjointlab.worlds.torch.calls import CallLog, GroupSummary
from adjointlab.worlds.world import Cancelled

__all__ = ["CaseWaits"]

_NOTICE: Final = 3  # rank to rank: I have failed, do not wait for me
_LAB: Final = 4  # rank to rank: an internal object of the lab
_GRACE: Final = 1e-2
"""Seconds for which a wait continues after another rank has failed: its last message may still arrive."""


class _Message(NamedTuple):
    run: int  # late messages of an earlier run are dropped
    content: Any


class CaseWaits:
    """Messages between the ranks of run `run`, and the outcome of this rank if a wait for one was cancelled."""

    def __init__(self, channel: Channel, run: int, ranks: int, patience: float) -> None:
        self.rank, self.ranks, self.run = channel.rank, ranks, run
        self.patience = patience
        self.log = CallLog()
        self.summaries: Mapping[str, GroupSummary] = {}  # of the log, once the group is closed
        self.groups: list[weakref.ref[object]] = []  # left open by a failure
        self.cancelled_as: Blocked | PeerFailed | None = None
        self.refused: list[str] = []  # reasons for refusing calls that would bypass the run
        self.exchanges = 0
        self.is_overdue = False
        self.is_waiting = False
        self._channel = channel
        self._failed: set[int] = set()
        self._has_notified = False

    def allgather(self, value: object, call: str) -> list[Any]:
        """Return every rank's value. Raises :class:`Cancelled` if a missing rank has failed, or if patience runs out."""
        self.exchanges += 1
        self._channel.send_to_others(_Message(self.run, value), _LAB, self.ranks)
        found: dict[int, Any] = {self.rank: value}

        def is_complete() -> bool:
            for rank in range(self.ranks):
                if rank not in found and (message := self._poll(rank, _LAB)) is not None:
                    found[rank] = message.content
            return len(found) == self.ranks

        def look(waited: float) -> None:
            missing = tuple(rank for rank in range(self.ranks) if rank not in found)
            failed = self.failed()
            if failed.intersection(missing) and waited > _GRACE:
                self._cancel(PeerFailed(call, str(call_site()), tuple(sorted(failed))))
            if waited > self.patience or self.is_overdue:
                self._cancel(Blocked(call, str(call_site()), missing))

        if self.cancelled_as is not None:  # user code may have caught Cancelled
            raise Cancelled
        self.is_waiting = True
        try:
            poll_until(is_complete, look, polls=1)
        finally:
            self.is_waiting = False
        return [found[rank] for rank in range(self.ranks)]

    def meet(self) -> None:
        """Wait until all ranks are here, until patience runs out, or until another rank has failed."""
        before = self.cancelled_as
        try:
            self.allgather(None, "closing the process group")
        except Cancelled:
            self.cancelled_as = before

    def failed(self) -> set[int]:
        """The ranks that are known to have failed."""
        for rank in range(self.ranks):
            if rank not in self._failed and rank != self.rank and self._poll(rank, _NOTICE) is not None:
                self._failed.add(rank)
        return self._failed

    def notify_failure(self) -> None:
        """Notify the other ranks that this one has failed."""
        if not self._has_notified:
            self._has_notified = True
            self._channel.send_to_others(_Message(self.run, None), _NOTICE, self.ranks)

    def expire(self) -> bool:
        """Declare the run overdue; return True if this rank is in a wait, which is then cancelled."""
        self.is_overdue = True
        return self.is_waiting

    def _poll(self, rank: int, tag: int) -> _Message | None:
        message: _Message | None = self._channel.poll(rank, tag)
        while message is not None and message.run < self.run:
            message = self._channel.poll(rank, tag)
        return message

    def _cancel(self, outcome: Blocked | PeerFailed) -> NoReturn:
        self.cancelled_as = outcome
        raise Cancelled
