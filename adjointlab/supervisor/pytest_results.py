"""Results of the tests of a supervised pytest session, as its ranks record them and its supervisor reads them.

Each rank appends to its file ``rank-R.tests``, over all jobs of the session: a line when a test starts, and a line with its
reports when it has finished. A test that crashed the job is then the last one started, without an end.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from adjointlab.store import json_lines
from adjointlab.store.files import in_folder, write_atomically
from adjointlab.supervisor.rank_files import RankFiles

__all__ = ["RecordedTest", "SessionResults", "finished_tests"]

_FINISHED = "finished-tests.json"


class RecordedTest(msgspec.Struct, frozen=True):
    """A line: the start of a test or, with its `reports` as pytest serialises them, its end."""

    test: str  # its node id
    is_finished: bool = False
    failed: bool = False
    check_id: str = ""  # the check and the subject of a coherence test
    reports: list[dict[str, Any]] = []


def finished_tests(folder: Path) -> set[str]:
    """The tests that all ranks had finished before this job, as far as the supervisor could record them."""
    try:
        return set(json.loads((folder / _FINISHED).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return set()


class SessionResults:
    """The supervisor's view of the records of all ranks."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder, self._ranks = folder, range(ranks)

    def record_finished(self) -> None:
        """Record the tests that all ranks have finished, between two jobs, so that none of them runs those again.

        The ranks do not derive this from each other's files: a rank that found fewer finished tests than another would run a
        test alone. If the record cannot be written, as on a full disk, all ranks repeat the tests finished since the last record.
        """
        path, content = self._folder / _FINISHED, json.dumps(sorted(self._finished_by_all())).encode()
        with suppress(OSError):
            in_folder(path, lambda: write_atomically(path, content))

    @property
    def finished_count(self) -> int:
        """The number of tests that all ranks have finished."""
        return len(self._finished_by_all())

    @property
    def failed(self) -> set[str]:
        """The tests that failed on any rank."""
        return {line.test for rank in self._ranks for line in self._lines(rank) if line.failed}

    def of_checks(self, check_ids: Collection[str]) -> set[str]:
        """The coherence tests of these checks of subjects."""
        return {
            line.test
            for rank in self._ranks
            for line in self._lines(rank)
            if line.check_id and line.check_id in check_ids
        }

    @property
    def is_empty(self) -> bool:
        """True if no test has started: the command is not pytest, or did not get that far."""
        return not any(map(self._lines, self._ranks))

    def interrupted(self, suspects: Iterable[int]) -> str:
        """The test that one of the `suspects`, or else any rank, had started but not finished; empty if there is none."""
        for rank in (*suspects, *self._ranks):
            lines = self._lines(rank)
            if lines and not lines[-1].is_finished:
                return lines[-1].test
        return ""

    def _finished_by_all(self) -> set[str]:
        lines = map(self._lines, self._ranks)
        return set.intersection(*({line.test for line in of_rank if line.is_finished} for of_rank in lines))

    def _lines(self, rank: int) -> list[RecordedTest]:
        return json_lines.lines(RankFiles(self._folder, rank).path("tests"), RecordedTest)
