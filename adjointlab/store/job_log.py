"""What the jobs before this one have found out, where a supervisor starts a job again after a death.

A supervised job (``adjointlab run``) finds in the folder that the variable ``ADJOINTLAB_SUPERVISED`` names, all of it JSON:

- ``settings.json``: the seed of all draws, and the seconds for making a failure smaller;
- ``deaths.jsonl``: a line for each time that the job died, written by the supervisor;
- ``done.jsonl``: a line for each piece of work that is done, written by the leader;
- ``work.json``: the piece of work that the leader is at; ``running.json``: its case (:mod:`adjointlab.store.running_case`).

So the job that is started again draws the same cases, knows those that kill it without running them, which makes
Hypothesis go on shrinking where it was, and passes over what is done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.case import Case, StoredCase
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.engine.search import SearchResult
from adjointlab.store import json_lines as journal
from adjointlab.store.reproducer import Written
from adjointlab.worlds.world import Dead, Finding, Run

__all__ = ["HOOKED", "VARIABLE", "DeadlyCases", "Death", "Done", "JobLog", "key_of", "supervised", "work_of"]

VARIABLE: Final = "ADJOINTLAB_SUPERVISED"
HOOKED: Final = "ADJOINTLAB_HOOKED"
"""The process of the job, which its own children inherit, and so know that they are none."""


@dataclass(frozen=True)
class Death:
    """How a job ended before its time, and at what: a case, a piece of work without one, or a test."""

    kind: str  # e.g. "a rank died of a segmentation fault"
    lines: tuple[tuple[str, str], ...] = ()
    ranks: Mapping[int, str] = field(default_factory=dict)  # what became of those that are known
    case: str = ""  # its key
    work: str = ""
    test: str = ""  # its node id
    at: float = 0.0  # seconds since the epoch
    certain: bool = False  # once is enough: the job had stopped, and seeing it again takes as long again
    reproducer: str = ""  # the case as a file of the supervisor's, and the folder where it belongs
    folder: str = ""

    def run(self, ranks: int) -> Run:
        """The death as what came of a case."""
        others = "ended with the job"
        outcomes = tuple(Dead(self.ranks.get(rank, others)) for rank in range(ranks))
        return Run(outcomes, (Finding(self.kind, ""), *(Finding(*line) for line in self.lines)))

    def verdict(self) -> Verdict:
        """The death as a verdict, where there is no case."""
        ranks = tuple((f"rank {rank}", reason) for rank, reason in sorted(self.ranks.items()))
        return Verdict(Status.UNJUDGED, self.kind, self.kind, (*ranks, *self.lines))


@dataclass(frozen=True)
class Done:
    """A piece of work that an earlier job has finished."""

    work: str
    result: SearchResult
    written: Written | None
    unwritten: str


@dataclass(frozen=True)
class JobLog:
    """The folder of a supervised job."""

    folder: Path

    # Both sides

    @property
    def deaths(self) -> list[Death]:
        """All that are known, the first one first."""
        return [_death(line) for line in journal.lines(self.folder / "deaths.jsonl")]

    @property
    def done(self) -> list[Done]:
        """What is done."""
        return [_done(line) for line in journal.lines(self.folder / "done.jsonl")]

    @property
    def work(self) -> tuple[str, Path | None]:
        """The piece of work that the leader was, or is, at, and where its failures go; empty between two."""
        lines = journal.lines(self.folder / "work.json")
        return (str(lines[0]["work"]), Path(lines[0]["folder"])) if lines else ("", None)

    # The supervisor

    def settle(self, seed: int, shrinking: float) -> None:
        """Begin: write the settings."""
        self.folder.mkdir(parents=True, exist_ok=True)
        journal.append(self.folder / "settings.json", {"seed": seed, "shrinking": shrinking})

    def is_known(self, death: Death) -> bool:
        """Whether the same case has ended a job before."""
        return any(known.case == death.case for known in self.deaths)

    def record_death(self, death: Death) -> None:
        """Add a death, and what it interrupted."""
        journal.append(self.folder / "deaths.jsonl", dataclasses.asdict(death))

    def clear(self) -> None:
        """Remove what says where the job was: it is recorded."""
        for path in (self.folder / "work.json", *self.folder.glob("running*.json")):
            path.unlink(missing_ok=True)

    # The job

    def seed_of(self, work: str) -> int:
        """Every piece of work has draws of its own, the same in every job."""
        return zlib.crc32(f"{self._setting('seed')}:{work}".encode())

    @property
    def session_seed(self) -> int:
        """The seed of a pytest session."""
        return int(self._setting("seed"))

    def shrinking(self, work: str) -> float:
        """The seconds that are left for making the failure of `work` smaller."""
        given = float(self._setting("shrinking"))
        first = min((death.at for death in self.deaths if death.work == work), default=None)
        return given if first is None else max(0.0, given - (time.time() - first))

    @contextmanager
    def at(self, work: str, folder: Path, *, is_leader: bool) -> Iterator[None]:
        """The leader is at `work` now, whose failures go to `folder`."""
        path = self.folder / "work.json"
        if is_leader:
            path.unlink(missing_ok=True)
            journal.append(path, {"work": work, "folder": str(folder.absolute())})
        yield
        if is_leader:
            path.unlink()

    def is_younger(self, path: Path) -> bool:
        """Whether a file has come since the supervision began."""
        try:
            return path.stat().st_mtime >= (self.folder / "settings.json").stat().st_mtime
        except OSError:
            return False

    def memory(self, work: str) -> DeadlyCases:
        """What is known of the cases of `work`."""
        return DeadlyCases(tuple(death for death in self.deaths if death.work == work and death.case))

    def death_without_case(self, work: str) -> Death | None:
        """A death at `work`, but at none of its cases."""
        return next((death for death in self.deaths if death.work == work and not death.case), None)

    def outcome(self, work: str) -> Done | None:
        """What came of `work`, if it is done."""
        return next((done for done in self.done if done.work == work), None)

    def finish(self, done: Done) -> None:
        """Write down, on the leader, what came of a piece of work."""
        written = done.written and [str(done.written.json), str(done.written.script)]
        journal.append(
            self.folder / "done.jsonl",
            {
                "work": done.work,
                "report": _report_as_data(done.result),
                "written": written,
                "unwritten": done.unwritten,
            },
        )

    def _setting(self, name: str) -> Any:
        return journal.lines(self.folder / "settings.json")[0][name]


@dataclass(frozen=True)
class DeadlyCases:
    """The cases that have ended a job."""

    deaths: tuple[Death, ...] = ()

    def __call__(self, case: Case, times: int = 1) -> Run | None:
        """What comes of `case`, if it has ended a job so often; `None` if one has to see."""
        if not self.deaths:
            return None
        key = key_of(case)
        seen = [death for death in self.deaths if death.case == key]
        if not seen or (len(seen) < times and not seen[0].certain):
            return None
        return seen[-1].run(case.ranks)


def supervised(environment: Mapping[str, str] = os.environ) -> JobLog | None:
    """The job_log of this job, if it has one. What a process of the job starts itself is not of the job."""
    folder = environment.get(VARIABLE)
    if not folder or environment.get(HOOKED, str(os.getpid())) != str(os.getpid()):
        return None
    return JobLog(Path(folder))


def key_of(case: Case) -> str:
    """Names a case, in few letters."""
    return hashlib.sha256(case.key()).hexdigest()[:32]


def work_of(location: str, check: str) -> str:
    """Names a piece of work: the check of the subject that is declared at `location`."""
    return f"{location} {check}"


def _death(data: Mapping[str, Any]) -> Death:
    ranks = {int(rank): str(reason) for rank, reason in data["ranks"].items()}
    return Death(**{**data, "lines": _pairs(data["lines"]), "ranks": ranks})


def _done(data: Mapping[str, Any]) -> Done:
    written = data["written"] and Written(*map(Path, data["written"]))
    return Done(data["work"], _report(data["report"]), written, data["unwritten"])


def _report_as_data(report: SearchResult) -> dict[str, Any]:
    data = {entry.name: getattr(report, entry.name) for entry in dataclasses.fields(report)}
    return data | {
        # Without the entry, which the script of its failure needed, and that is written.
        "verdict": dataclasses.asdict(report.verdict) | {"status": report.status.value, "entry": None},
        "case": report.case and report.case.data(),
        "spaces": report.spaces and [to_data(report.spaces.domain), to_data(report.spaces.codomain)],
    }


def _report(data: Mapping[str, Any]) -> SearchResult:
    verdict = data["verdict"]
    return SearchResult(
        **{
            **data,
            "verdict": Verdict(
                **{**verdict, "status": Status(verdict["status"]), "lines": _pairs(verdict["lines"])}
            ),
            "case": data["case"] and msgspec.convert(data["case"], StoredCase).case(),
            "spaces": data["spaces"] and Spaces(*map(from_data, data["spaces"])),
        }
    )


def _pairs(lines: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(label), str(text)) for label, text in lines)
