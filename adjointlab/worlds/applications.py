"""Applications of the operator under test, which are numbered: calls of two of them must not match.

A run applies the operator many times. A rank that skips a collective in one application, for instance because all it holds is zero,
then takes part in that of its next one::

    rank 0   1: Allreduce   2: -           3: Allreduce
    rank 1   1: -           2: Allreduce   3: Allreduce     matches rank 0's first, and nothing is left over if rank 0 skips as many

Such a run may come to its end, and even with equal numbers in both directions, though each application by itself would never return.
"""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["ApplicationMarks", "crossed_collective", "crossed_message", "of_another_application"]


def crossed_collective(one: int, other: int) -> str:
    """Say that two calls of a collective belong to different applications, given how many had ended before; empty if they do not."""
    if one == other:
        return ""
    return (
        f"it is called in application {one + 1} of the operator on one and in application {other + 1} on the other, which alone would "
        "never return"
    )


def crossed_message(sent: int | None, received: int | None) -> str:
    """Say that a message is received in another application than it was sent in; empty if it is not, or one is not known."""
    if sent is None or received is None or sent == received:
        return ""
    said = (
        f"what was sent in application {sent + 1} of the operator is received in application {received + 1}"
    )
    if sent > received:
        return f"{said}: it overtakes another message, as it may after a probe of any source, or that application alone would wait for ever"
    return f"{said}, which alone would wait for ever"


def of_another_application(sent: int | None, received: int | None) -> str:
    """Say of a message from any source in which application it was sent; empty if that is the one that it is received in, or not known."""
    if sent is None or received is None or sent == received:
        return ""
    return f", in application {received + 1} of the operator, what that sends in application {sent + 1}"


class ApplicationMarks:
    """The positions in a log at which applications ended: the entries of a log are many, and these few."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._ended: list[int] = []

    def mark(self, position: int, ended: int) -> None:
        """Note that so many applications have ended before the entry at `position` is made."""
        if self._positions and self._positions[-1] == position:
            self._ended[-1] = ended  # nothing was logged since
        else:
            self._positions.append(position)
            self._ended.append(ended)

    def ended_before(self, position: int) -> int:
        """The number of applications that had ended before the entry at `position` was made."""
        index = bisect_right(self._positions, position)
        return self._ended[index - 1] if index else 0
