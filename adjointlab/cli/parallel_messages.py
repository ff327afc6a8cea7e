"""Messages between the process that distributes the checks and those that run them."""

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
    """The first entry of a message from a process that runs checks."""

    READY = auto()
    """Followed by the checks of the subjects that the process has loaded."""
    RESULT = auto()
    INTERRUPTED = auto()
    """Followed by the result of a search that had found a failure when it was interrupted."""
    FORCED = auto()
    """Followed by the call by which user code is about to end the process."""


class PlannedCheck(NamedTuple):
    """A check of a subject, identified in the same way in every process."""

    location: str
    reference: str
    check: str

    @classmethod
    def of(cls, found: Found, check: str) -> PlannedCheck:
        """The check `check` of the subject `found`."""
        return cls(found.subject.location, found.reference, check)


@dataclass(frozen=True)
class Surroundings:
    """The state of a process at the start of a command, before it imports user code, which may change any of it."""

    environment: Mapping[str, str]
    path: tuple[str, ...]  # sys.path
    arguments: tuple[str, ...]  # sys.argv
    folder: Path

    @classmethod
    def now(cls) -> Surroundings:
        """The present state of this process."""
        return cls(dict(os.environ), tuple(sys.path), tuple(sys.argv), Path.cwd())


@dataclass(frozen=True)
class Setup:
    """The settings that a process needs. They are sent once, before this process has loaded any subject."""

    surroundings: Surroundings
    subjects: tuple[str, ...]  # as the user named them
    checks: tuple[str, ...] | None
    budget: Budget
    watchdog: float | None
    folder: Path  # of failures


class Outcome(NamedTuple):
    """The result of a check without its subject, and without the list of known failures, which the command itself applies."""

    result: SearchResult
    written: Written | None
    unwritten: str
    replayed: Path | None
    has_unseen_failures: bool

    def pickled(self) -> bytes:
        """Return the pickled outcome; empty if it cannot be pickled and restored, because of the parameters of a case."""
        try:
            data = pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
            pickle.loads(data)  # noqa: S301 - our own
        except Exception:
            return b""
        return data
