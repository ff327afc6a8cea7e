"""Copies of the standard streams of a command, made at its start, because user code may close or replace them."""

from __future__ import annotations

import fcntl
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, ClassVar, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

__all__ = ["HeldStreams", "copied_out_of_the_way", "prints_on_stderr"]

_OUT_OF_THE_WAY: Final = 512
"""Lowest descriptor of a copy: user code that closes inherited descriptors in a loop often stops below it."""


class HeldStreams:
    """Context in which :meth:`of` returns streams to the files that ``sys.stdout`` and ``sys.stderr`` wrote to when it was entered."""

    # A process has one standard output, so at most one context is active.
    _current: ClassVar[HeldStreams | None] = None

    def __init__(self) -> None:
        self._has_lost_output = False

    def __enter__(self) -> HeldStreams:
        self._outer = HeldStreams._current
        self._before = sys.stdout, sys.stderr
        self._held = {False: _Held(sys.stdout, 1), True: _Held(sys.stderr, 2)}
        if isinstance(sys.stdout, io.TextIOWrapper) and _leads_to(sys.stdout, 1):
            sys.stdout.flush()
            sys.stdout = _to_no_reader_too(sys.stdout)
        HeldStreams._current = self
        return self

    def __exit__(self, *exception: object) -> None:
        HeldStreams._current = self._outer
        # The interpreter flushes these streams at its end, and exits with 120 if that fails.
        sys.stdout, sys.stderr = self._before
        for held in self._held.values():
            held.close()

    @classmethod
    def of(cls, *, to_stderr: bool) -> TextIO:
        """Return the stream to print to: the copy, or the stream of ``sys`` if no context is active or user code has closed the copy."""
        present = sys.stderr if to_stderr else sys.stdout
        held = None if cls._current is None else cls._current._held[to_stderr].stream
        if held is None or held is present:
            return present or io.StringIO()  # None: the process was started without one
        with suppress(Exception):  # user code may have replaced the stream by any object
            present.flush()  # so that the output keeps its order
        return held

    @classmethod
    def note_lost_output(cls) -> None:
        """Record that writing to the standard output of the active context has failed."""
        if cls._current is not None:
            cls._current._has_lost_output = True

    @classmethod
    def lost_output(cls) -> bool:
        """Return True if :meth:`note_lost_output` has been called in the active context."""
        return cls._current is not None and cls._current._has_lost_output

    @classmethod
    def renew(cls) -> None:
        """Continue to use the copies after the lab itself has redirected one of them."""
        if cls._current is not None:
            for held in cls._current._held.values():
                held.renew()


@contextmanager
def prints_on_stderr(*, is_wanted: bool) -> Iterator[None]:
    """Context in which user code prints to standard error, also through descriptor 1, because standard output has results for a program.

    The lab's own output still goes to standard output, through its copies.
    """
    if not is_wanted:
        yield
    elif not _leads_to(sys.stdout, 1):  # under a test runner
        with redirect_stdout(sys.stderr):
            yield
    else:
        sys.stdout.flush()
        kept = copied_out_of_the_way(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)


def _leads_to(stream: TextIO | None, descriptor: int) -> bool:
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


class _Descriptor(io.FileIO):
    """A file that discards what is written once its reader is gone, as behind `| head`."""

    def write(self, data: Buffer) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _to_no_reader_too(stream: io.TextIOWrapper) -> TextIO:
    """Return a stream like `stream` that does not raise in user code when its reader is gone: a verdict must not depend on the reader."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Held:
    """A copy of a stream, with a separate file descriptor; the stream itself if it has none, as under a test runner."""

    def __init__(self, stream: TextIO | None, descriptor: int) -> None:
        self._copy: TextIO | None = None
        self._stream = stream
        if not _leads_to(stream, descriptor):
            return
        assert stream is not None
        try:
            copy = copied_out_of_the_way(descriptor)
            self._identity = _identity(copy)
        except (OSError, ValueError):
            return
        # Not closed by its destructor, because the number may belong to another file by then.
        self._copy = open(  # noqa: SIM115
            copy, "w", encoding=stream.encoding, errors="backslashreplace", closefd=False
        )

    @property
    def stream(self) -> TextIO | None:
        if self._copy is None:
            return self._stream
        return self._copy if self._is_open() else None

    def _is_open(self) -> bool:
        """Return True if the descriptor still refers to the same file: user code may have closed it, and opened another under its number."""
        assert self._copy is not None
        try:
            return _identity(self._copy.fileno()) == self._identity
        except (OSError, ValueError):
            return False

    def renew(self) -> None:
        if self._copy is not None:
            with suppress(OSError, ValueError):
                self._identity = _identity(self._copy.fileno())

    def close(self) -> None:
        if self._copy is not None and self._is_open():
            with suppress(OSError):
                os.close(self._copy.fileno())


def copied_out_of_the_way(descriptor: int) -> int:
    """Return a copy of a file descriptor under a number that user code seldom closes. Programs that are started do not inherit it."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    except OSError:  # above the process's limit
        return os.dup(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
