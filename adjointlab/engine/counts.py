"""The numbers of cases that a search was asked for, judged and rejected, and the verdict if too few were judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from adjointlab.checks.check import Spaces, check_named
from adjointlab.checks.verdict import Verdict, unjudged
from adjointlab.core.space import needs_messages
from adjointlab.engine.case import Case
from adjointlab.quantities import counted
from adjointlab.worlds.run import Run

__all__ = ["WITHOUT_REASON", "CaseCounts", "is_silent"]

WITHOUT_REASON: Final = "the observations allow no conclusion"
"""The reason that a case was not judged, if its check gives none."""

_REJECTED_AT_MOST: Final = 8
"""Largest number of rejected cases for each case asked for: one case of five is drawn on a single rank."""

_UNDECIDED_AT_MOST: Final = 0.1
"""Largest share of undecided cases, of those asked for, with which the others still count as evidence."""

_REASONS_SHOWN: Final = 3


@dataclass
class CaseCounts:
    """Numbers of cases that were drawn in a search; those tried while shrinking do not count.

    Of the `judged` cases, `on_several_ranks` had several ranks, and in `communicating` of these at least two ranks communicated;
    `most_ranks` is the largest number of ranks that did. In `lacking_messages` none did, although the declared spaces need messages.
    `rejected` counts, by reason, the cases to which the check does not apply, and `undecided` those of them whose results differ without
    evidence whether they may. `is_cut_short` is set if time ran out before the requested number was drawn.
    """

    asked: int
    judged: int = 0
    on_several_ranks: int = 0
    communicating: int = 0
    most_ranks: int = 0
    lacking_messages: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    is_cut_short: bool = False
    undecided: int = 0

    def end(self) -> None:
        """Ask for no more cases than have been judged."""
        self.asked, self.is_cut_short = self.judged, True

    def judge(self, case: Case, run: Run, spaces: Spaces | None) -> None:
        """Count a case that was judged, by its last run and the spaces of its operator."""
        ranks = len(run.communicating)
        self.judged += 1
        self.on_several_ranks += case.ranks > 1
        self.communicating += ranks > 1
        self.most_ranks = max(self.most_ranks, ranks)
        if case.ranks > 1 and ranks < 2 and spaces is not None:
            goes_back = check_named(case.check).goes_back
            self.lacking_messages += needs_messages(spaces.domain, spaces.codomain, goes_back=goes_back)

    def reject(self, reason: str) -> None:
        """Count a case to which the check does not apply."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def add(self, other: CaseCounts) -> None:
        """Add the judged cases of another search."""
        self.judged += other.judged
        self.on_several_ranks += other.on_several_ranks
        self.communicating += other.communicating
        self.most_ranks = max(self.most_ranks, other.most_ranks)
        self.lacking_messages += other.lacking_messages

    @property
    def is_hopeless(self) -> bool:
        """True once so many cases were rejected that drawing more would waste time."""
        return sum(self.rejected.values()) > _REJECTED_AT_MOST * self.asked

    def shortfall(self, *, needs_several_ranks: bool) -> Verdict | None:
        """The verdict on a search that has found no failure in too few cases; None if there were enough."""
        rejected = sum(self.rejected.values())
        if not self.judged and not rejected:
            return unjudged("no case could be drawn: the subject's strategy rejects them all")
        if not self.judged:
            headline = f"no case could be judged of {rejected} that were drawn"
        elif needs_several_ranks and not self.on_several_ranks:
            headline = f"no case of several ranks could be judged, only {self.judged} of one rank"
        elif self.judged < self.asked:
            headline = f"only {self.judged} of {self.asked} cases could be judged"
        elif self.undecided > _UNDECIDED_AT_MOST * self.asked:
            # The judged cases are merely those whose results happen to agree.
            headline = f"{counted(self.undecided, 'case')} could be called neither right nor wrong, besides {self.judged} that were judged"
        else:
            return None
        return unjudged(headline, *_reasons(self.rejected), kind="too few cases judged")


def _reasons(rejected: Mapping[str, int]) -> list[tuple[str, str]]:
    """Lines that say why cases were rejected, the commonest reason first."""
    commonest = Counter(rejected).most_common(_REASONS_SHOWN)
    lines = [("rejected", f"{number}: {reason}") for reason, number in commonest]
    return lines or [("because", "the subject's strategy draws no others")]


def is_silent(counts: Sequence[CaseCounts]) -> bool:
    """Return True for checks of a subject that had cases on several ranks, in none of which ranks communicated."""
    return any(each.on_several_ranks for each in counts) and not any(each.communicating for each in counts)
