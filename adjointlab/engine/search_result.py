"""The limits of a search, and its result: that of one check of one subject."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adjointlab import options
from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Figures, Status, Verdict
from adjointlab.core.partition import whole_number
from adjointlab.engine.case import Case
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.folded_warnings import FoldedWarning
from adjointlab.pictures.drawable import Drawable
from adjointlab.pictures.model import Drawing

__all__ = ["Budget", "SearchResult"]


@dataclass(frozen=True)
class Budget:
    """Limits of a search.

    `cases` to draw; `ranks` at most (default: what the world has, up to 8); `seed` of the draws (default: a fresh one, which
    the result states); after `seconds` drawing stops once the least number of cases is judged; shrinking a failing case takes at
    most `shrinking` seconds. A case runs under `schedules` schedules if the world can choose them. Tensors are drawn in memory of
    `device` ("cpu" or "cuda"; default: in all memories).
    """

    cases: int = options.CASES.default
    ranks: int | None = None
    seed: int | None = None
    shrinking: float = options.SHRINKING.default
    schedules: int = options.SCHEDULES.default
    device: str | None = options.DEVICE.default
    seconds: float = math.inf

    def __post_init__(self) -> None:
        options.CASES.check(self.cases)
        options.SCHEDULES.check(self.schedules)
        if self.ranks is not None:
            options.RANKS.check(self.ranks)
        if self.seed is not None:
            whole_number("seed", self.seed)
        if self.device is not None:
            options.DEVICE.parse(self.device)


@dataclass(frozen=True)
class SearchResult(Drawable):
    """Result of one check of one subject; the same on every rank."""

    subject: str
    check: str
    world: str
    verdict: Verdict
    tried: int = 0  # cases judged until the end, or until the failure
    seed: int = 0
    seconds: float = 0.0
    case: Case | None = None  # the smallest failing case
    spaces: Spaces | None = None  # its operator's
    drawn_ranks: int = 0  # the number of ranks of the case that failed first
    is_smallest: bool = False  # no case that is one step smaller fails in the same way
    figures: Figures = field(default_factory=dict)  # the worst of all cases
    exact: int = 0  # the number of cases judged without a tolerance
    counts: CaseCounts | None = None  # of a search that has ended
    warnings: tuple[FoldedWarning, ...] = ()  # on the leader

    @property
    def status(self) -> Status:
        return self.verdict.status

    def drawing(self) -> Drawing:
        """Return the failure as a drawing."""
        return self.verdict.drawing()

    def _heading(self) -> str:
        return f"{self.subject} {self.check}: {self.verdict}"
