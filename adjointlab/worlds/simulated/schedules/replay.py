"""Recording of the decisions of a strategy in one run, and their replay in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from adjointlab.worlds.schedule import DecisionKind, append, decode, encode
from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["DecisionRecorder", "Replay"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)

# Looked up once, because these two are recorded with every call that a rank makes.
_PREEMPTION: Final = int(DecisionKind.PREEMPTION)
_DEVIATION: Final = int(DecisionKind.DEVIATION)


class DecisionRecorder(Strategy):
    """Delegates decisions to `inner`, and records them."""

    def __init__(self, inner: Strategy) -> None:
        self.orderly = inner.orderly
        self._inner = inner
        self._numbers = bytearray()

    def next(self, ready: Ready[R]) -> R:
        if len(ready) == 1:
            return self._inner.next(ready)  # not a decision: neither recorded nor replayed
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
        # By identity, because options such as messages may compare equal.
        index = next(index for index, option in enumerate(options) if option is chosen)
        append(self._numbers, DecisionKind.CHOICE, index)
        return chosen

    @property
    def decisions(self) -> str:
        """Text of the decisions so far, see :mod:`adjointlab.worlds.schedule`."""
        return encode(bytes(self._numbers))


class Replay(Strategy):
    """Replays recorded decisions as long as the run needs the same kinds of decisions; after that, delegates to `otherwise`.

    A run of modified code may need different decisions, and must complete all the same.
    """

    orderly = False

    def __init__(self, decisions: str, otherwise: Strategy) -> None:
        self._recorded = decode(decisions)
        self._otherwise = otherwise
        self._position = 0
        self.left_at: int | None = (
            None  # number of decisions replayed before the run left the record; None if it has not
        )

    def next(self, ready: Ready[R]) -> R:
        if len(ready) == 1:
            return ready.popleft()
        rank = self._decision(DecisionKind.NEXT)
        for turn in ready if rank is not None else ():
            if turn.rank == rank:
                ready.remove(turn)
                return turn
        self._leave()
        return self._otherwise.next(ready)

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        decision = self._decision(DecisionKind.PREEMPTION)
        return self._otherwise.preempts(current, ready) if decision is None else bool(decision)

    def polled(self, current: ReadyRank) -> None:
        self._otherwise.polled(current)

    def deviates(self) -> bool:
        decision = self._decision(DecisionKind.DEVIATION)
        return self._otherwise.deviates() if decision is None else bool(decision)

    def choose(self, options: Sequence[T]) -> T:
        decision = self._decision(DecisionKind.CHOICE)
        if decision is not None and decision < len(options):
            return options[decision]
        self._leave()
        return self._otherwise.choose(options)

    def _decision(self, kind: int) -> int | None:
        if self.left_at is None and self._position < len(self._recorded):
            its_kind, decision = self._recorded[self._position]
            if its_kind == kind:
                self._position += 1
                return decision
        self._leave()
        return None

    def _leave(self) -> None:
        if self.left_at is None:
            self.left_at = self._position
