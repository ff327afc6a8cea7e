"""Messages that are packed together before any of them is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from adjointlab.core import arrays
from adjointlab.typing import Array

__all__ = ["packed_together"]

_Message = TypeVar("_Message")


def packed_together(messages: Sequence[_Message], array: Array) -> Iterable[Sequence[_Message]]:
    """Group the messages that parts of `array` are packed into: a group is packed and sent before the next is packed.

    On the host each message is a group, so that it is sent while the next is packed. On a device all messages are one group, since
    a launch takes longer to start than to run.
    """
    if arrays.is_on_device(array):
        return [messages] if messages else []
    return zip(messages)
