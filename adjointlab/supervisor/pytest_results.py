"""What the tests of a supervised pytest session have come to, as its ranks have written it down."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from adjointlab.store import json_lines as journal

__all__ = ["Tests"]


class Tests:
    """The files ``rank-R.tests``, one line for each thing that happened; see :mod:`adjointlab.pytest.supervised`."""

    __test__ = False  # no test itself

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder, self._ranks = folder, ranks

    def settle(self) -> None:
        """Between two jobs: what all ranks have finished is done, and none of them runs it again."""
        (self._folder / "tests.json").write_text(json.dumps(sorted(self._finished())), encoding="utf-8")

    @property
    def done(self) -> int:
        """How many are."""
        return len(self._finished())

    @property
    def failed(self) -> set[str]:
        """Those that failed on any rank."""
        return {line["finish"] for lines in self._lines() for line in lines if line.get("failed")}

    def of(self, works: Collection[str]) -> set[str]:
        """The coherence tests of these pieces of work."""
        return {line["finish"] for lines in self._lines() for line in lines if line.get("work") in works}

    def any(self) -> bool:
        """Whether there are tests at all."""
        return any(lines for lines in self._lines())

    def interrupted(self, ranks: Collection[int]) -> str:
        """The test that one of `ranks`, or any rank, was at when its job ended; empty if it was at none."""
        every = self._lines()
        for rank in (*ranks, *range(self._ranks)):
            marks = [line for line in every[rank] if "start" in line or "finish" in line]
            last = marks[-1] if marks else {}
            if "start" in last:
                return str(last["start"])
        return ""

    def _finished(self) -> set[str]:
        finished = [{line["finish"] for line in lines if "finish" in line} for lines in self._lines()]
        return set.intersection(*finished) if finished else set()

    def _lines(self) -> list[list[dict[str, Any]]]:
        return [journal.lines(self._folder / f"rank-{rank}.tests") for rank in range(self._ranks)]
