"""Streams and events of a device that works as late as CUDA allows.

Nothing that is put into a stream is carried out until somebody waits for something that orders it: then just that stream runs, up to
the point that is waited for, after what its own waits for events ask for. On a real device the same work would be done at some time in
between. So what is missing an order goes wrong here every time: a send that reads memory which is still to be copied to, a
buffer that is used again while a copy from it is pending, a kernel on another stream that reads what was not yet written.

Threads share the default stream, as in CUDA's legacy mode; streams of the lab's own do not wait for it (``non_blocking=True``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

__all__ = [
    "AtOnce",
    "Event",
    "Stream",
    "current_device",
    "enqueue",
    "get_current_stream",
    "lock",
    "on_device",
]

lock = threading.RLock()
"""Held while work is carried out: simulated ranks are threads."""

_of_thread = threading.local()

_PATIENCE = 3
"""Queries of an event that is not waited for that say no, before the device makes progress by itself."""


class Stream:
    """An in-order queue of work."""

    by_pointer: ClassVar[dict[int, Stream]] = {}
    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        if not null and not non_blocking:
            raise NotImplementedError("a blocking stream waits for the default stream; use non_blocking=True")
        self.queue: list[Callable[[], None]] = []
        self.begun = 0
        self.ptr = 0 if null else id(self)
        self.device_id = current_device()
        Stream.by_pointer[self.ptr] = self

    def run(self, end: int) -> None:
        """Carry out the first `end` pieces of work."""
        with lock:
            while self.begun < end:
                work = self.queue[self.begun]
                self.begun += 1  # before it runs, which may come back to this stream
                work()

    def forget(self) -> None:
        """Drop what is queued: threads keep the default stream from test to test."""
        with lock:
            self.queue, self.begun = [], 0

    def synchronize(self) -> None:
        self.run(len(self.queue))

    @property
    def done(self) -> bool:
        return self.begun == len(self.queue)

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        # What the event stands for now: it may be recorded anew before this work is carried out.
        stream, end = event.stream, event.end
        if stream is not None:
            with lock:
                self.queue.append(lambda: stream.run(end))

    def use(self) -> Stream:
        _streams()[-1] = self
        return self

    def __enter__(self) -> Stream:
        _streams().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _streams().pop()


class Event:
    """A point in a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.stream: Stream | None = None
        self.end = 0
        self._queries = 0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = get_current_stream() if stream is None else stream
        self.end = len(self.stream.queue)
        self._queries = 0

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.run(self.end)

    @property
    def done(self) -> bool:
        if self.stream is None or self.stream.begun >= self.end:
            return True
        self._queries += 1
        if self._queries > _PATIENCE:
            self.synchronize()
        return self.stream.begun >= self.end


def _streams() -> list[Stream]:
    if not hasattr(_of_thread, "streams"):
        _of_thread.streams = [Stream.null]
    streams: list[Stream] = _of_thread.streams
    return streams


def get_current_stream(device_id: int | None = None) -> Stream:
    return _streams()[-1]


class AtOnce(Stream):
    """A stream of a library whose work is done at once."""

    def __init__(self) -> None:
        super().__init__(non_blocking=True)


def enqueue(work: Callable[[], None], stream: Stream | None = None) -> None:
    """Put work into a stream, by default the current one of this thread."""
    with lock:
        chosen = get_current_stream() if stream is None else stream
        chosen.queue.append(work)
        if isinstance(chosen, AtOnce):
            chosen.synchronize()


def current_device() -> int:
    number: int = getattr(_of_thread, "device", 0)
    return number


class on_device:
    """CuPy's ``Device``."""

    def __init__(self, device: int | Any | None = None) -> None:
        self.id = current_device() if device is None else int(device)
        self._before: list[int] = []

    def __enter__(self) -> on_device:
        self._before.append(current_device())
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        _of_thread.device = self._before.pop()

    @property
    def pci_bus_id(self) -> str:
        return f"0000:0{self.id}:00.0"

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, on_device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def use(self) -> None:
        _of_thread.device = self.id

    def synchronize(self) -> None:
        raise AssertionError("the whole device is waited for, and not an event")


Stream.null = Stream(null=True)
