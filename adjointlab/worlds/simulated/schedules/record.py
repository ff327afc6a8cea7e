"""Recording of the decisions that a strategy takes in one run, so that :mod:`.replay` can repeat them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from adjointlab.worlds.schedule import DecisionKind, append, encode
from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["DecisionRecorder"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)

# Looked up once: these two are recorded with every call that a rank makes.
_PREEMPTION: Final = int(DecisionKind.PREEMPTION)
_DEVIATION: Final = int(DecisionKind.DEVIATION)


class DecisionRecorder(Strategy):
    """Decides as `inner` does, and keeps a record of its decisions."""

    def __init__(self, inner: Strategy) -> None:
        self.orderly = inner.orderly
        self._inner = inner
        self._numbers = bytearray()

    def next(self, ready: Ready[R]) -> R:
        if len(ready) == 1:
            return self._inner.next(ready)  # no decision, and none that a replay asks for
        chosen = self._inner.next(ready)
        append(self._numbers, DecisionKind.NEXT, chosen.rank)
        return chosen

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        preempts = self._inner.preempts(current, ready)
        self._numbers.append(4 * preempts + _PREEMPTION)
        return preempts

    def polled(self, current: ReadyRank) -> None:
        self._inner.polled(current)

    def deviates(self) -> bool:
        taken = self._inner.deviates()
        self._numbers.append(4 * taken + _DEVIATION)
        return taken

    def choose(self, options: Sequence[T]) -> T:
        chosen = self._inner.choose(options)
        # By identity: options such as messages may compare equal.
        index = next(index for index, option in enumerate(options) if option is chosen)
        append(self._numbers, DecisionKind.CHOICE, index)
        return chosen

    @property
    def decisions(self) -> str:
        """Text of the decisions so far, see :mod:`adjointlab.worlds.schedule`."""
        return encode(bytes(self._numbers))
