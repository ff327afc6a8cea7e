"""Prove all cases within a bound by their complete matrices, instead of checking a random sample.

The cases are split among processes, each with its own simulated ranks. They are listed from small to large, so that
the first that fails is a small one.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from adjointlab.checks.proof import PROOF
from adjointlab.checks.verdict import Figure, coherent, unjudged
from adjointlab.cores import cores
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.listed_cases import Bound, every_case, memory_of_proofs
from adjointlab.engine.run_case import Judgement
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.shares_of_proofs import ended_early, in_processes
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.worlds.simulated.world import SimulatedWorld

__all__ = ["exhaust"]


def exhaust(
    subject: Subject,
    reference: str,
    bound: Bound,
    jobs: int | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
    device: str | None = None,
) -> SearchResult:
    """Prove every case of `subject` within `bound` on `jobs` processes (default: one for each core), in memory of `device`.

    The processes find the subject by its `reference`, as on a command line. `tick` is called with the number of cases done and
    the total. The result's `tried` is the number of cases proved, or the position of the first failing case in the list; its figure
    "entries" is the number of matrix entries. Raises :class:`SubjectError` as :func:`every_case` does.
    """
    started = time.monotonic()
    try:
        total = sum(1 for _ in every_case(subject, bound))
    except (KeyboardInterrupt, SubjectError):
        raise
    except BaseException:
        shares, total = [ended_early(traceback.format_exc().rstrip())], 0
    else:
        processes = max(1, min(jobs or cores(), total))
        shares = in_processes(
            reference,
            bound,
            memory_of_proofs(subject, device),
            processes,
            total,
            lambda done: tick(done, total),
        )
    counts, entries = CaseCounts(total), sum(share.entries for share in shares)
    for share in shares:
        counts.add(share.counts)
    proved = counts.judged
    (verdict, spaces), case, tried = Judgement(coherent(), None), None, proved
    if problems := [share.error for share in shares if share.error]:
        verdict = unjudged("the exhaustive run failed", ("because", problems[0]), kind="process")
    elif failures := [share.failure for share in shares if share.failure is not None]:
        number, case, (verdict, spaces) = min(failures, key=lambda failure: failure[0])
        tried = number + 1
    elif proved != total:
        raise RuntimeError(f"{proved} of {total} cases were proved, and nothing says why")
    return SearchResult(
        subject.name,
        PROOF.name,
        SimulatedWorld.name,
        verdict,
        tried,
        seconds=time.monotonic() - started,
        case=case,
        spaces=spaces,
        drawn_ranks=0 if case is None else case.ranks,
        figures={Figure.ENTRIES: entries},
        counts=counts,
    )
