"""Text form of the decisions that a schedule took in one run: compact enough to stand in a reproducer.

Each decision is one number, ``4 * value + kind``, written as a variable-length integer: seven bits a byte, the lowest
first, and the top bit set on every byte but the last. Nearly all take one byte. The bytes are compressed with zlib and
spelled in base 85, which needs no escapes in JSON::

    kind NEXT, rank 40       number 160 = 1 * 128 + 32       bytes 0xA0 0x01
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator
from enum import IntEnum

__all__ = ["DecisionKind", "append", "decode", "encode"]

_LONGEST = 2**24
"""Bytes that a text may decompress to: a text from elsewhere must not be able to fill the memory."""


class DecisionKind(IntEnum):
    """Question that a strategy decided. The values are part of the format."""

    NEXT = 0  # the rank that runs next
    PREEMPTION = 1  # 1 if the running rank lets others run before its call
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
    """Text of decisions that :func:`append` has put together."""
    return base64.b85encode(zlib.compress(numbers, 9)).decode()


def decode(decisions: str) -> list[tuple[int, int]]:
    """Kind and value of each decision in a text of :func:`encode`; raises `ValueError` for any other text."""
    try:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(base64.b85decode(decisions), _LONGEST)
    except (zlib.error, binascii.Error, ValueError) as error:
        raise ValueError(f"decisions: {decisions[:20]!r} is no record of a schedule: {error}") from None
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
