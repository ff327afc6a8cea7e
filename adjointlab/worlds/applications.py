"""Numbered applications of the operator under test: calls from different applications must not match.

A run applies the operator many times. If a rank skips a collective in one application, for instance because its local tensor is zero,
its call in the next application matches the others' earlier one::

    rank 0   1: Allreduce   2: -           3: Allreduce
    rank 1   1: -           2: Allreduce   3: Allreduce     matches rank 0's first, and nothing is left over if rank 0 skips as many

Such a run may complete, and the inner products of forward and adjoint may even be equal, though each application by itself would never
return.
"""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["ApplicationMarks", "crossed_collective", "crossed_message", "of_another_application"]


def crossed_collective(one: int, other: int) -> str:
    """Message that two calls of a collective belong to different applications, given how many had ended before each; empty if they do not."""
    if one == other:
        return ""
    return (
        f"it is called in application {one + 1} of the operator on one and in application {other + 1} on the other, neither of which "
        "would return by itself"
    )


def crossed_message(sent: int | None, received: int | None) -> str:
    """Message that a message was received in another application than it was sent in; empty if it was not, or if either is unknown."""
    if sent is None or received is None or sent == received:
        return ""
    said = (
        f"what was sent in application {sent + 1} of the operator is received in application {received + 1}"
    )
    if sent > received:
        return f"{said}: it overtakes another message, as it may after a probe of any source, or that application by itself would wait for ever"
    return f"{said}, which by itself would wait for ever"


def of_another_application(sent: int | None, received: int | None) -> str:
    """Clause that names the application in which a message from any source was sent; empty if it is the receive's, or if either is unknown."""
    if sent is None or received is None or sent == received:
        return ""
    return f", in application {received + 1} of the operator, what that sends in application {sent + 1}"


class ApplicationMarks:
    """The positions in a log at which applications ended; kept separately because they are few compared with the entries."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._ended: list[int] = []

    def mark(self, position: int, ended: int) -> None:
        """Record that `ended` applications have ended before the entry at `position`."""
        if self._positions and self._positions[-1] == position:
            self._ended[-1] = ended  # nothing was logged since
        else:
            self._positions.append(position)
            self._ended.append(ended)

    def ended_before(self, position: int) -> int:
        """The number of applications that had ended before the entry at `position`."""
        index = bisect_right(self._positions, position)
        return self._ended[index - 1] if index else 0
