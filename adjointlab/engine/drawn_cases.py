"""The cases that a search has drawn before the first failure, their results, and their numbers of ranks."""

from __future__ import annotations

import math
from collections import Counter

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import VARIOUS, Figures
from adjointlab.engine.case import Case
from adjointlab.engine.counts import WITHOUT_REASON, CaseCounts
from adjointlab.engine.run_case import UNDECIDED, Judgement, inapplicable_because
from adjointlab.worlds.run import Run

__all__ = ["DrawnCases"]


class DrawnCases:
    """The cases of one search, of which `asked` are to be judged.

    A search may have to be repeated (:meth:`repeat`), and then draws the same cases. So `number`, `judged` and `on_ranks`, which plan
    its draws, start again from zero; but `counts`, `figures` and `exact`, which are reported, count each case only once.
    """

    def __init__(self, asked: int) -> None:
        self.counts = CaseCounts(asked)
        self.figures: Figures = {}  # the worst of all cases
        self.exact = 0  # number of cases judged without a tolerance
        self._was_judged: list[bool] = []  # for each case, whether its check applied
        self.repeat()

    def repeat(self) -> None:
        """Expect the same cases again."""
        self.number = 0
        self.judged = 0
        self.on_ranks: Counter[int] = Counter()

    def add(self, case: Case) -> bool | None:
        """Count a drawn case. Returns whether its check applied to it if it was drawn before :meth:`repeat`, else `None`."""
        self.number += 1
        self.on_ranks[case.ranks] += 1
        if self.number > len(self._was_judged):
            return None
        was_judged = self._was_judged[self.number - 1]
        self.judged += was_judged
        return was_judged

    def note(self, case: Case, run: Run, judgement: Judgement | None) -> Judgement | None:
        """Count the result of a case that was not drawn before; return its judgement, `None` if it counts as rejected."""
        reason = inapplicable_because(run)
        if judgement is not None and judgement.verdict.kind == UNDECIDED:
            self.counts.undecided += 1
            reason, judgement = judgement.verdict.headline, None
        elif judgement is not None and judgement.verdict.is_coherent and _is_empty(judgement.spaces):
            judgement, reason = None, "no tensor of the case has an element"
        if judgement is None:
            self._was_judged.append(False)
            self.counts.reject(reason or WITHOUT_REASON)
        elif judgement.verdict.is_coherent:
            self._was_judged.append(True)
            self.counts.judge(case, run, judgement.spaces)
            self.judged += 1
            # Only for judged cases: without elements, nothing could be wrong.
            self.exact += judgement.verdict.is_exact
            self._add_figures(judgement.verdict.figures)
        return judgement

    def _add_figures(self, figures: Figures) -> None:
        """Keep the worst value of each number; texts that differ between cases become :data:`VARIOUS`."""
        for name, value in figures.items():
            known = self.figures.get(name)
            if isinstance(value, float | int) and isinstance(known, float | int):
                self.figures[name] = max(known, value)
            else:
                self.figures[name] = value if known is None or known == value else VARIOUS


def _is_empty(spaces: Spaces | None) -> bool:
    """Return True if all tensors are empty, so that whatever an operator does to their elements is right."""
    tensors = () if spaces is None else spaces.tensors
    return bool(tensors) and not any(math.prod(tensor.layout.shape) for tensor in tensors)
