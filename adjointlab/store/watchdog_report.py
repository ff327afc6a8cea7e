"""What a process does when its watchdog is about to end the job: the case goes on disk as a failure of its subject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.discovery import Found
from adjointlab.engine.run_case import NO_RETURN
from adjointlab.engine.search import SearchResult
from adjointlab.store.reproducer import write
from adjointlab.store.running_case import Progress, Running, ending, read_file
from adjointlab.worlds.watchdog import OverdueReport

__all__ = ["overdue_report"]


def overdue_report(found: Found, progress: Progress, folder: Path, record: Path) -> OverdueReport:
    """Stores the case in `folder`, and says in the `record` of what is running why the job ends. Any rank can do so."""

    def store(payload: Any, late: str, stack: str) -> str:
        if not isinstance(payload, Case):
            return ""
        verdict = Verdict(Status.UNJUDGED, late, NO_RETURN, (("because", late), ("stack", stack)))
        before = read_file(record)
        done = 0 if before is None else before.done
        report = SearchResult(
            found.subject.name,
            payload.check,
            progress.world,
            verdict,
            done,
            progress.seed,
            0.0,
            payload,
            drawn_ranks=payload.ranks,
        )
        written = write(report, found.subject, folder)
        stage = "drawing" if before is None else before.stage
        ending(record, Running(progress, done, stage, payload, "watchdog", NO_RETURN, str(written.json)))
        return (
            f"adjointlab: {found.subject.name} could not be judged: {late}\n"
            f"  stored   {written.json}\n  the job ends here, with exit code 3"
        )

    return store
