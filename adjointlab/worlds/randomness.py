"""Global random streams of `random`, NumPy and torch, one for each simulated rank.

In a world of processes, each process has its own global streams. Simulated ranks share one process, so the streams are seeded
from (seed, rank) when a rank starts, swapped when ranks are switched, and restored for the caller after the run. A swap happens at
every task switch and must cost about a microsecond, while the libraries' own functions (`random.getstate` makes a tuple of 625
integers) take many times that. Hence the copies of raw memory below.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np

from adjointlab.core.splitmix import mixed
from adjointlab.worlds.rank_settings import settings_of_now

__all__ = ["GlobalStreams", "RandomStreams", "global_streams", "own_streams"]

LEGACY: Any = np.random  # its stubs lack set_bit_generator and what get_state returns

WORDS = 625
"""32-bit words in the state of the Mersenne Twister: 624, and its position."""


class Library(Protocol):
    """Global stream, or settings, of one library. Its saved states are opaque."""

    def save(self) -> object: ...

    def restore(self, state: Any) -> None: ...

    def seed(self, number: int) -> None: ...


class PythonStream:
    """Stream of `random`'s module-level functions."""

    def __init__(self) -> None:
        self._generator: Any = random.random.__self__  # type: ignore[attr-defined]
        self._memory = _memory_of(self._generator)

    def save(self) -> object:
        if self._memory is None:
            return self._generator.getstate()
        return self._memory.tobytes(), self._generator.gauss_next

    def restore(self, state: Any) -> None:
        if self._memory is None:
            self._generator.setstate(state)
        else:
            self._memory[:], self._generator.gauss_next = state

    def seed(self, number: int) -> None:
        random.seed(number)


def _memory_of(generator: random.Random) -> memoryview | None:
    """Return a view of the generator's state in CPython's memory; None if it is not found there (then getstate is used).

    A Random is a C structure: the object's header, the position in the words, the words. None of this is documented, so
    the memory is compared with `getstate` before it is used. Python's own subclass adds `gauss_next`, half of a pair of
    normal numbers, which must be saved separately.
    """
    if sys.implementation.name != "cpython":
        return None
    words, position = generator.getstate()[1][:-1], generator.getstate()[1][-1]
    if (
        random.Random.__base__ is None
        or random.Random.__base__.__basicsize__ < object.__basicsize__ + 4 * WORDS
    ):
        return None
    memory = (ctypes.c_uint32 * WORDS).from_address(id(generator) + object.__basicsize__)
    return memoryview(memory).cast("B") if tuple(memory) == (position, *words) else None


class KeptNormal:
    """The second of a pair of normal numbers, which NumPy's legacy functions keep for their next call, separately from the generator.

    Setting a bit generator drops it, even if it is the one that was set before.
    """

    def __init__(self) -> None:
        self._memory = _memory_of_kept_normal()

    def read(self) -> object:
        if self._memory is None:
            state = LEGACY.get_state(legacy=False)
            return {name: state[name] for name in ("has_gauss", "gauss")}
        return self._memory.tobytes()

    def write(self, kept: Any) -> None:
        if self._memory is None:
            LEGACY.set_state({**LEGACY.get_state(legacy=False), **kept})
        else:
            self._memory[:] = kept


def _memory_of_kept_normal() -> memoryview | None:
    """Return a view of the flag and the number in NumPy's memory; None if they are not found there (then `get_state` is used).

    They are fields of the C structure of a RandomState, which is not documented: `int has_gauss; double gauss`, padded to 16 bytes.
    Their offset is found by searching another object of the same type for two known values.
    """
    if sys.implementation.name != "cpython":
        return None
    probe = np.random.RandomState(0)
    state = probe.get_state(legacy=False)
    memory = (ctypes.c_char * type(probe).__basicsize__).from_address(id(probe))
    found = set()
    for number in (1.2345678e-77, -9.87654321e88):
        probe.set_state({**state, "has_gauss": 1, "gauss": number})
        found.add(memory.raw.find(struct.pack("=qd", 1, number)))
    place = found.pop()
    if found or place < 0:
        return None
    singleton = LEGACY.mtrand._rand
    return memoryview((ctypes.c_char * 16).from_address(id(singleton) + place)).cast("B")


CallersGenerator: TypeAlias = tuple[object, object]
"""The caller's NumPy bit generator and kept normal number."""


class NumPyStream:
    """Stream of NumPy's legacy functions (`np.random.seed`, `np.random.rand`, ...)."""

    def __init__(self) -> None:
        self._ours = np.random.MT19937(0)
        self._kept = KeptNormal()
        # NumPy documents this address (BitGenerator.ctypes) and the layout of the memory there.
        memory = (ctypes.c_uint32 * WORDS).from_address(self._ours.ctypes.state_address)
        self._memory = memoryview(memory).cast("B")

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Context in which our generator is installed already, so that runs in it save none of the caller's."""
        entered = self.enter()
        try:
            yield
        finally:
            self.leave(entered)

    def enter(self) -> CallersGenerator:
        """Replace the caller's generator by ours; return the caller's, for :meth:`leave`."""
        theirs = LEGACY.get_bit_generator(), self._kept.read()
        LEGACY.set_bit_generator(self._ours)
        return theirs

    def leave(self, entered: CallersGenerator) -> None:
        """Restore the caller's generator."""
        theirs, kept = entered
        LEGACY.set_bit_generator(theirs)
        self._kept.write(kept)

    def save(self) -> tuple[bytes, object]:
        return self._memory.tobytes(), self._kept.read()

    def restore(self, state: tuple[bytes, object]) -> None:
        self._memory[:], kept = state
        LEGACY.set_bit_generator(self._ours)  # the previous rank may have set another one
        self._kept.write(kept)

    def seed(self, number: int) -> None:
        LEGACY.set_bit_generator(self._ours)
        np.random.seed(number & 0xFFFFFFFF)


class TorchStream:
    """One of torch's default streams: that of the CPU, or of a device."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def save(self) -> object:
        return self._generator.get_state()

    def restore(self, state: Any) -> None:
        self._generator.set_state(state)

    def seed(self, number: int) -> None:
        self._generator.manual_seed(number)


class GlobalStreams:
    """Global streams of this process."""

    def __init__(self) -> None:
        self.python = PythonStream()
        self.numpy = NumPyStream()

    def of_now(self) -> list[Library]:
        """Streams and settings of the libraries that are imported by now: the operator under test may import torch."""
        torch = sys.modules.get("torch")
        streams: list[Library] = [self.python, self.numpy]
        if torch is not None and hasattr(torch, "default_generator"):
            streams.append(TorchStream(torch.default_generator))
            if torch.cuda.is_initialized():
                streams += map(TorchStream, torch.cuda.default_generators)
        return streams + settings_of_now()


@cache
def global_streams() -> GlobalStreams:
    """Return the process-wide instance, which a run shares with :func:`own_streams` of a rank in it.

    If each had its own NumPy generator, the rank would continue with the run's generator after waiting for another rank.
    """
    return GlobalStreams()


class RandomStreams:
    """Streams of the ranks of one run."""

    def __init__(self, streams: GlobalStreams, seed: int, size: int) -> None:
        self._numpy = streams.numpy
        self._libraries = streams.of_now()
        self._seed = seed
        self._saved: list[list[object] | None] = [None] * size

    def enter(self, rank: int) -> None:
        """Save the caller's streams, and seed those of `rank`."""
        self._caller_numpy = self._numpy.enter()
        self._caller = self._save()
        self._begin(rank)

    def swap(self, old: int | None, new: int) -> None:
        """Switch from the streams of rank `old` (None: of a rank that has ended) to those of rank `new`."""
        if old is not None:
            self._saved[old] = self._save()
        saved = self._saved[new]
        if saved is None:
            self._begin(new)
        else:
            self._restore(saved)

    def add(self, library: Library) -> None:
        """Swap the state of `library` too from now on. Its current state is the caller's; every rank gets a freshly seeded one."""
        self._libraries.append(library)
        self._caller.append(library.save())
        for rank, saved in enumerate(self._saved):
            if saved is not None:
                library.seed(self._number(rank))
                saved.append(library.save())
        library.seed(self._number(0))  # for the rank that runs now

    def leave(self) -> None:
        """Restore the caller's streams."""
        self._restore(self._caller)
        self._numpy.leave(self._caller_numpy)

    def _save(self) -> list[object]:
        return [library.save() for library in self._libraries]

    def _restore(self, saved: list[object]) -> None:
        for library, state in zip(self._libraries, saved, strict=True):
            library.restore(state)

    def _begin(self, rank: int) -> None:
        for library in self._libraries:
            library.seed(self._number(rank))

    def _number(self, rank: int) -> int:
        return mixed(mixed(self._seed) + rank)


@contextmanager
def own_streams(seed: int = 0) -> Iterator[None]:
    """Context with separate streams seeded from `seed`; the caller's do not advance in it."""
    streams = RandomStreams(global_streams(), seed, 1)
    streams.enter(0)
    try:
        yield
    finally:
        streams.leave()
