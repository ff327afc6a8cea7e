"""Global random streams of `random`, NumPy and torch, one for each simulated rank.

In a world of processes each has global streams of its own. Simulated ranks share one process, so the streams are swapped with
the rank, seeded from (seed, rank) when it starts, and the caller's are put back after the run. That happens at every task
switch and must cost about a microsecond, while the libraries' own functions (`random.getstate` makes a tuple of 625 integers)
take many times that. Hence the copies of raw memory below.
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
"""The Mersenne Twister's 624 words and its position."""


class Library(Protocol):
    """Global stream, or settings, of one library. Its states are of a type of its own, and only handed back to it."""

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
    """Return the generator's state where CPython keeps it; None if it is not found there (then getstate serves).

    A Random is a C structure: the object's header, the position in the words, the words. All that is undocumented, so
    what is found is compared with `getstate` before it is used. Python's own subclass adds `gauss_next`, half of a pair of
    normal numbers, which is saved beside it.
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
    """The second of a pair of normal numbers, which NumPy's legacy functions keep beside the generator for their next call.

    A new generator drops it, also one that is the same as before.
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
    """Return the flag and the number where NumPy keeps them; None if they are not found there (then `get_state` serves).

    They lie in the C structure of a RandomState, which is not documented: `int has_gauss; double gauss`, padded to 16 bytes. The
    number's place is that of two values in another object of the same type.
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
"""NumPy's bit generator of the caller, and the normal number that is kept beside it."""


class NumPyStream:
    """Stream of NumPy's legacy functions (`np.random.seed`, `np.random.rand`, ...)."""

    def __init__(self) -> None:
        self._ours = np.random.MT19937(0)
        self._kept = KeptNormal()
        # NumPy documents this address (BitGenerator.ctypes) and what lies there.
        memory = (ctypes.c_uint32 * WORDS).from_address(self._ours.ctypes.state_address)
        self._memory = memoryview(memory).cast("B")

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Context in which ours is the generator already that runs find, so that they have none to put aside."""
        entered = self.enter()
        try:
            yield
        finally:
            self.leave(entered)

    def enter(self) -> CallersGenerator:
        """Replace the caller's generator by ours; return what :meth:`leave` needs to undo that."""
        theirs = LEGACY.get_bit_generator(), self._kept.read()
        LEGACY.set_bit_generator(self._ours)
        return theirs

    def leave(self, entered: CallersGenerator) -> None:
        """Give the caller its generator back."""
        theirs, kept = entered
        LEGACY.set_bit_generator(theirs)
        self._kept.write(kept)

    def save(self) -> tuple[bytes, object]:
        return self._memory.tobytes(), self._kept.read()

    def restore(self, state: tuple[bytes, object]) -> None:
        self._memory[:], kept = state
        LEGACY.set_bit_generator(self._ours)  # the rank before may have set one of its own
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
        """Streams and settings of the libraries that are imported: torch may come with the operator under test."""
        torch = sys.modules.get("torch")
        streams: list[Library] = [self.python, self.numpy]
        if torch is not None and hasattr(torch, "default_generator"):
            streams.append(TorchStream(torch.default_generator))
            if torch.cuda.is_initialized():
                streams += map(TorchStream, torch.cuda.default_generators)
        return streams + settings_of_now()


@cache
def global_streams() -> GlobalStreams:
    """Return those of this process, which has one of each: a run, and :func:`own_streams` of a rank in it, swap the same states.

    With a generator of NumPy's for each, the rank would go on with the run's when it has waited for another.
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
        """Save the caller's streams, and begin those of `rank`."""
        self._caller_numpy = self._numpy.enter()
        self._caller = self._save()
        self._begin(rank)

    def swap(self, old: int | None, new: int) -> None:
        """Change from the streams of one rank (None: of one that has ended) to those of another."""
        if old is not None:
            self._saved[old] = self._save()
        saved = self._saved[new]
        if saved is None:
            self._begin(new)
        else:
            self._restore(saved)

    def add(self, library: Library) -> None:
        """Swap from now on what `library` saves too. The caller has what it is now, and every rank begins, also one that has begun."""
        self._libraries.append(library)
        self._caller.append(library.save())
        for rank, saved in enumerate(self._saved):
            if saved is not None:
                library.seed(self._number(rank))
                saved.append(library.save())
        library.seed(self._number(0))  # for the rank that runs now

    def leave(self) -> None:
        """Give the caller its streams back."""
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
    """Context with streams of its own, which begin alike in every context of that `seed`; the caller's do not move on in it."""
    streams = RandomStreams(global_streams(), seed, 1)
    streams.enter(0)
    try:
        yield
    finally:
        streams.leave()
