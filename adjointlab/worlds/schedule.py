"""A schedule as data: with the body, the payload and the number of ranks it determines a simulated run.

Exactly one rank runs at a time, a single strategy makes all free choices, and its decisions depend only on its seed and the
earlier choices: so the same schedule gives the same run. (User code may be nondeterministic itself, for example through the order
of a set of strings.) The recorded decisions replay a run even if another version of the lab would draw other numbers.

The record is text, compact enough to be part of a reproducer. Each decision is one number, ``4 * value + kind``, written as a
variable-length integer: seven bits per byte, the lowest first, and the top bit set on every byte but the last. Nearly all take
one byte. The bytes are compressed with zlib and encoded in base 85, which needs no escapes in JSON::

    kind NEXT, rank 40       number 160 = 1 * 128 + 32       bytes 0xA0 0x01
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import Literal, get_args

__all__ = ["DecisionKind", "Kind", "Schedule", "append", "decode", "encode", "schedules_from"]

_LONGEST = 2**24
"""Largest decompressed size in bytes: an untrusted text must not be able to fill the memory."""


class DecisionKind(IntEnum):
    """Kind of choice that a strategy made. The values are part of the format."""

    NEXT = 0  # the rank that runs next
    PREEMPTION = 1  # 1 if the running rank is preempted before its call
    DEVIATION = 2  # 1 if the run deviates from prompt and orderly delivery here
    CHOICE = 3  # the index of the option chosen


def append(numbers: bytearray, kind: int, value: int) -> None:
    """Append one decision to `numbers`."""
    number = 4 * value + kind
    while number >= 128:
        numbers.append(128 + number % 128)
        number //= 128
    numbers.append(number)


def encode(numbers: bytes) -> str:
    """Text of the decisions that :func:`append` has collected."""
    return base64.b85encode(zlib.compress(numbers, 9)).decode()


def decode(decisions: str) -> list[tuple[int, int]]:
    """Kind and value of each decision in a text made by :func:`encode`; raises `ValueError` for any other text."""
    try:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(base64.b85decode(decisions), _LONGEST)
    except (zlib.error, binascii.Error, ValueError) as error:
        raise ValueError(f"decisions: {decisions[:20]!r} is not a record of a schedule: {error}") from None
    if not decompressor.eof or (data and data[-1] >= 128):
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


Kind = Literal["round-robin", "random", "pct"]

_KINDS = get_args(Kind)
_DEPTHS = (2, 3, 4)  # most faults need no more ordering constraints than that [Burckhardt10]


@dataclass(frozen=True)
class Schedule:
    """A `strategy` with its `seed`, and its `depth` (for pct only); recorded `decisions` are replayed first."""

    strategy: Kind = "round-robin"
    seed: int = 0
    depth: int = 0
    decisions: str = ""

    def __post_init__(self) -> None:
        if self.strategy not in _KINDS:
            raise ValueError(f"strategy: {self.strategy!r} is not one of {', '.join(_KINDS)}")
        if (self.depth < 1) == (self.strategy == "pct"):
            raise ValueError(f"depth: at least 1 for pct, and 0 for any other, not {self.depth}")
        if self.decisions:
            decode(self.decisions)  # raises

    @staticmethod
    def of(seed: int) -> Schedule:
        """The schedule for a bare seed: round-robin for 0, a random one for any other."""
        return Schedule("random", seed) if seed else Schedule()

    def __str__(self) -> str:
        if self.strategy == "round-robin":
            return "ranks in turn"
        depth = f", depth {self.depth}" if self.depth else ""
        return f"{self.strategy}{depth}, seed {self.seed}"


def schedules_from(seed: int, count: int) -> tuple[Schedule, ...]:
    """`count` schedules derived from `seed`, the first of which is ``Schedule.of(seed)``.

    The others are, alternately, schedules of bounded depth and random ones.
    """
    return tuple(schedule for schedule, _ in zip(_endless(seed), range(count), strict=False))


def _endless(seed: int) -> Iterator[Schedule]:
    yield Schedule.of(seed)
    random = Random(seed)
    while True:
        yield Schedule("pct", random.randrange(1, 2**16), random.choice(_DEPTHS))
        yield Schedule("random", random.randrange(1, 2**16))
