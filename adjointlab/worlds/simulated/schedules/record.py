"""The record of a run's decisions, as compact text."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

from adjointlab.worlds.simulated.schedules.strategy import Ready, Strategy, Turn

__all__ = ["CHOICE", "LIBERTY", "NEXT", "WAY", "DecisionRecorder", "decoded"]

T = TypeVar("T")
R = TypeVar("R", bound=Turn)

NEXT, WAY, LIBERTY, CHOICE = range(4)
"""The kinds of decision: the rank that runs next, whether one gives way, whether a liberty is taken, which option."""

_LONGEST = 2**24
"""Bytes of decisions that a text may unfold to."""


class DecisionRecorder(Strategy):
    """Decides as `inner` does, and writes it down: four times the decision plus its kind, in groups of seven bits."""

    def __init__(self, inner: Strategy) -> None:
        self.orderly = inner.orderly
        self._inner = inner
        self._bytes = bytearray()

    def next(self, ready: Ready[R]) -> R:
        if len(ready) == 1:
            return self._inner.next(ready)
        chosen = self._inner.next(ready)
        self._note(NEXT, chosen.rank)
        return chosen

    def gives_way(self, current: R, ready: Ready[R]) -> bool:
        gives_way = self._inner.gives_way(current, ready)
        self._bytes.append(4 * gives_way + WAY)
        return gives_way

    def polled(self, current: Turn) -> None:
        self._inner.polled(current)

    def taken(self) -> bool:
        taken = self._inner.taken()
        self._bytes.append(4 * taken + LIBERTY)
        return taken

    def choose(self, options: Sequence[T]) -> T:
        chosen = self._inner.choose(options)
        self._note(CHOICE, next(index for index, option in enumerate(options) if option is chosen))
        return chosen

    @property
    def decisions(self) -> str:
        """What has been decided so far; what :func:`decoded` reads."""
        return base64.b85encode(zlib.compress(bytes(self._bytes), 9)).decode()

    def _note(self, kind: int, decision: int) -> None:
        number = 4 * decision + kind
        while number >= 128:
            self._bytes.append(128 + number % 128)
            number //= 128
        self._bytes.append(number)


def decoded(decisions: str) -> list[tuple[int, int]]:
    """Kinds and decisions. Raises `ValueError` for what no :class:`DecisionRecorder` has written."""
    try:
        unfolding = zlib.decompressobj()
        data = unfolding.decompress(base64.b85decode(decisions), _LONGEST)
    except (zlib.error, binascii.Error, ValueError) as error:
        raise ValueError(f"decisions: {decisions[:20]!r} is no record of a schedule: {error}") from None
    if not unfolding.eof or (data and data[-1] >= 128):
        raise ValueError(f"decisions: {decisions[:20]!r}... is cut off, or longer than {_LONGEST} bytes")
    return [(number % 4, number // 4) for number in _numbers(data)]


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number += (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
