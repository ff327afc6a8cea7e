"""The results of the tests of a supervised pytest session, as its ranks record them and its supervisor reads them.

Each rank adds events to its file ``rank-R.tests``, one JSON object a line, over all jobs of the session. The file
survives the death of the rank at any point: what it was doing is then the last event.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from adjointlab.store import json_lines
from adjointlab.supervisor.rank_files import RankFiles

__all__ = [
    "Event",
    "Finished",
    "Reported",
    "Started",
    "TestResults",
    "add_event",
    "events_in",
    "finished_tests",
]

_FINISHED = "finished-tests.json"


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A test, named by its node id, has started."""

    test: str


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """A report of the running test, as pytest's ``pytest_report_to_serializable`` gives it."""

    report: dict[str, Any]


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A test has finished; `work` names its check and subject, and is empty for an ordinary test."""

    test: str
    failed: bool
    work: str


Event: TypeAlias = Started | Reported | Finished

_EVENTS: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)


def add_event(path: Path, event: Event) -> None:
    """Add an event to the file of a rank."""
    json_lines.append(path, event)


def events_in(path: Path) -> list[Event]:
    """The events in the file of a rank."""
    return json_lines.lines(path, _EVENTS)


def finished_tests(folder: Path) -> set[str]:
    """The tests that earlier jobs have finished, as their supervisor recorded them."""
    return set(json.loads((folder / _FINISHED).read_text(encoding="utf-8")))


class TestResults:
    """The supervisor's view of the events of all ranks."""

    __test__ = False  # pytest would collect a class of this name

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder, self._paths = folder, [RankFiles(folder, rank).path("tests") for rank in range(ranks)]

    def record_finished(self) -> None:
        """Between two jobs, record the tests that all ranks have finished: none of them runs those again.

        Recorded by the supervisor and not read from the files by each rank, because ranks that disagreed about it would
        not run the same tests.
        """
        (self._folder / _FINISHED).write_text(json.dumps(sorted(self._finished())), encoding="utf-8")

    @property
    def finished_count(self) -> int:
        """The number of tests that all ranks have finished."""
        return len(self._finished())

    @property
    def failed(self) -> set[str]:
        """The tests that failed on any rank."""
        return {event.test for events in self._finishes() for event in events if event.failed}

    def of_work(self, works: Collection[str]) -> set[str]:
        """The coherence tests of these checks of subjects."""
        return {event.test for events in self._finishes() for event in events if event.work in works}

    @property
    def is_empty(self) -> bool:
        """True if no test has started: the command was not pytest, or did not get as far."""
        return not any(map(events_in, self._paths))

    def interrupted(self, suspects: Collection[int]) -> str:
        """The test that one of the `suspects`, else any rank, had started and not finished; empty if there is none."""
        for path in [*(self._paths[rank] for rank in suspects), *self._paths]:
            marks = [event for event in events_in(path) if not isinstance(event, Reported)]
            if marks and isinstance(last := marks[-1], Started):
                return last.test
        return ""

    def _finished(self) -> set[str]:
        tests = [{event.test for event in events} for events in self._finishes()]
        return set.intersection(*tests) if tests else set()

    def _finishes(self) -> list[list[Finished]]:
        return [[event for event in events_in(path) if isinstance(event, Finished)] for path in self._paths]
