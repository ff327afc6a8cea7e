"""What a check is: an observation on every rank, and a judgement of all observations in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from adjointlab.checks.verdict import Verdict
from adjointlab.core.space import Space

if TYPE_CHECKING:
    from adjointlab.checks.context import CheckContext
    from adjointlab.checks.schedule_invariant import ScheduleInvariant

__all__ = ["Check", "Inapplicable", "Spaces"]


class Inapplicable(Exception):
    """A check has nothing to say about a case; raised alike on all ranks. Another case is drawn instead."""


@dataclass(frozen=True)
class Spaces:
    """What the operator of a case declares."""

    domain: Space
    codomain: Space

    @property
    def mixed(self) -> bool:
        """Whether one is real and the other complex, so that the pairing is the real part."""
        return self.domain.is_complex != self.codomain.is_complex

    def sides(self) -> tuple[tuple[str, Space, Space], ...]:
        """Both directions: the name, the space it maps from and the space it maps to."""
        return ("forward", self.domain, self.codomain), ("adjoint", self.codomain.dual, self.domain.dual)


class Check(Protocol):
    """One question about an operator.

    `observe` runs on every rank of a case and returns data; `judge` sees the observations of all ranks, in rank
    order, on the leader. So a check needs no communication of its own beside the operator's.
    """

    name: ClassVar[str]

    def observe(self, context: CheckContext) -> Any:
        """Exercise the operator on this rank."""

    def judge(self, spaces: Spaces, observations: Sequence[Any]) -> Verdict:
        """Decide from what all ranks saw."""

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[Any]
    ) -> Mapping[str, ScheduleInvariant]:
        """What of the observations follows from the case alone, whatever the ranks' interleaving, by name."""
        return {}

    def surroundings(self) -> AbstractContextManager[None]:
        """What has to hold in every process while cases of this check run."""
        return nullcontext()
