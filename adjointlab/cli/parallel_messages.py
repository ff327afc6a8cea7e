"""Messages between the process that hands out checks and those that run them."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from adjointlab.engine.discovery import Found
    from adjointlab.engine.search_result import Budget, SearchResult
    from adjointlab.store.reproducer import Written

__all__ = ["MessageKind", "Outcome", "PlannedCheck", "Setup", "Surroundings"]


class MessageKind(StrEnum):
    """The first entry of a message of a process."""

    READY = auto()
    """With the checks of the subjects that it has loaded."""
    RESULT = auto()
    INTERRUPTED = auto()
    """With the result of a search that had found a failure when it was interrupted."""
    FORCED = auto()
    """With the call by which user code is about to end the process."""


class PlannedCheck(NamedTuple):
    """A check of a subject, by what tells it apart in any process."""

    location: str
    reference: str
    check: str

    @classmethod
    def of(cls, found: Found, check: str) -> PlannedCheck:
        """That check of a subject that was found."""
        return cls(found.subject.location, found.reference, check)


@dataclass(frozen=True)
class Surroundings:
    """The state of a process when a command begins, before it imports any user code, which may change all of this."""

    environment: Mapping[str, str]
    path: tuple[str, ...]  # sys.path
    arguments: tuple[str, ...]  # sys.argv
    folder: Path

    @classmethod
    def now(cls) -> Surroundings:
        """Those of this process."""
        return cls(dict(os.environ), tuple(sys.path), tuple(sys.argv), Path.cwd())


@dataclass(frozen=True)
class Setup:
    """All that a process needs to know, once, and before this one has loaded any subject."""

    surroundings: Surroundings
    subjects: tuple[str, ...]  # as the user named them
    checks: tuple[str, ...] | None
    budget: Budget
    watchdog: float | None
    folder: Path  # of failures


class Outcome(NamedTuple):
    """The result of a check, without the subject, and without what a list of known failures says, which the command itself reads."""

    result: SearchResult
    written: Written | None
    unwritten: str
    replayed: Path | None
    has_unseen_failures: bool

    def pickled(self) -> bytes:
        """As bytes that are known to open; none where parameters of a case are objects that no other process can have."""
        try:
            data = pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
            pickle.loads(data)  # noqa: S301 - our own
        except Exception:
            return b""
        return data
