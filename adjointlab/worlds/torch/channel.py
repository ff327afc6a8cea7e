"""Messages between the processes of torchrun, through the key-value store with which torch sets up process groups.

Nothing here waits in the store, so that every wait can be abandoned; and no process group is needed, so that it works whatever
happens to those of user code. A message is a key that only its sender writes, and that only its receiver reads and deletes.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.polling import poll_until
from adjointlab.worlds.torch.store import Store, connected_store, prefixed

__all__ = ["StoreChannel"]

_LARGEST: Final = 4 << 20
"""Largest size of a value in bytes; the store allows at most 8 MiB."""


_LEAVING: Final = 9
"""Tag of rank 0's last message."""


class StoreChannel:
    """A :class:`~adjointlab.worlds.polling.Channel` over a key-value store; channels of different names share it."""

    def __init__(self, store: Store, name: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = prefixed(store, f"adjointlab/{name}")
        self._sent: Counter[tuple[int, int]] = Counter()  # by receiver and tag
        self._received: Counter[tuple[int, int]] = Counter()  # by sender and tag

    @classmethod
    def of_torchrun(cls, name: str) -> StoreChannel:
        """Connect all processes of torchrun."""
        store, rank, size = connected_store()
        return cls(store, name, rank, size)

    def send(self, message: object, dest: int, tag: int) -> None:
        """Send without waiting for the receiver."""
        self._send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL), dest, tag)

    def send_to_others(self, message: object, tag: int, size: int | None = None) -> None:
        """Send to every other rank (below `size`, if it is given)."""
        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for rank in range(self.size if size is None else size):
            if rank != self.rank:
                self._send(pickled, rank, tag)

    def _send(self, pickled: bytes, dest: int, tag: int) -> None:
        key = f"{self.rank}/{dest}/{tag}/{self._sent[dest, tag]}"
        self._sent[dest, tag] += 1
        parts = [pickled[start : start + _LARGEST] for start in range(0, len(pickled), _LARGEST)]
        for number, part in enumerate(parts):
            self._store.set(f"{key}/{number}", part)
        # Written last, because it signals the receiver that all parts are there.
        self._store.set(key, str(len(parts)).encode())

    def poll(self, source: int, tag: int) -> Any:
        """Return the next message, or None if none has arrived."""
        key = f"{source}/{self.rank}/{tag}/{self._received[source, tag]}"
        if not self._store.check([key]):
            return None
        self._received[source, tag] += 1
        parts = [f"{key}/{number}" for number in range(int(self._store.get(key)))]
        pickled = b"".join(self._store.get(part) for part in parts)
        for each in (key, *parts):
            self._store.delete_key(each)
        return pickle.loads(pickled)  # noqa: S301 - from our own processes

    def receive(self, source: int, tag: int, between: Callable[[float], object]) -> Any:
        """Wait for the next message; `between` is called as by :func:`~adjointlab.worlds.polling.poll_until`."""
        found: list[Any] = []

        def is_here() -> bool:
            # The message itself may be a false value.
            if (message := self.poll(source, tag)) is not None:
                found.append(message)
            return bool(found)

        poll_until(is_here, between, polls=1)
        return found[0]

    def all_sent(self) -> bool:
        """Return True, because the store already has all messages."""
        return True

    def flush(self) -> None:
        """Do nothing: see :meth:`all_sent`."""

    def abandon_unsent(self) -> None:
        """Do nothing: see :meth:`all_sent`."""

    def leave(self, patience: float) -> None:
        """Wait until rank 0 is ready to leave: torchrun ends all ranks once one of them has ended with a non-zero code."""
        if self.rank == 0:
            self.send_to_others(True, _LEAVING)
            return
        late = False

        def look(waited: float) -> None:
            nonlocal late
            late = waited > patience

        poll_until(lambda: late or self.poll(0, _LEAVING), look, polls=1)

    def end_job(self, code: int) -> None:
        """End this process; torchrun then ends the others."""
        os._exit(code or ExitCode.UNJUDGED)
