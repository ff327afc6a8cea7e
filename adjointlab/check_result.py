"""The result of one check of one subject as reports see it: what the search found, and where its failure is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path

from adjointlab.checks.verdict import Status
from adjointlab.engine.discovery import Found
from adjointlab.engine.failed_runs import MISDECLARED
from adjointlab.engine.search_result import SearchResult
from adjointlab.pictures.drawable import Drawable
from adjointlab.pictures.model import Drawing
from adjointlab.store.reproducer import Written
from adjointlab.worlds.interrupts import Terminated

__all__ = ["NO_COMMUNICATOR", "NO_MEMORY", "CheckResult", "ReportedAs", "SearchInterrupted"]

NO_COMMUNICATOR = "without communicator"
"""Kind of the verdict on a subject that needs what the world does not have."""

NO_MEMORY = "without memory on the device"
"""Kind of the verdict on a subject that draws no tensors in memory of the device that is asked for."""

_INCIDENTAL = re.compile(r"\b0x[0-9a-fA-F]+|^rank \d+ raised")
"""Parts of a headline that differ where the fault does not: addresses, as in MPI's errors, and which rank came first."""


class ReportedAs(Enum):
    """Kinds of results, as reports name them: the statuses, and what those are that a list of known failures has."""

    COHERENT = "coherent"
    INCOHERENT = "incoherent"
    UNJUDGED = "could not be judged"
    EXPECTED = "failed as expected"
    UNEXPECTED = "passed unexpectedly"


@dataclass(frozen=True)
class CheckResult(Drawable):
    """The result of one check of one subject, and where its failure is stored."""

    found: Found
    result: SearchResult
    written: Written | None = None
    unwritten: str = ""  # why a failure could not be stored
    replayed: Path | None = None  # the stored case, where no fresh ones were drawn
    known: str = ""  # where a list says that this fails, and why
    has_unseen_failures: bool = False
    """There are stored ones that cannot be replayed here: on more ranks, or in memory of a device."""

    @cached_property
    def subject(self) -> str:
        """The subject's name in reports; it tells subjects of one module apart that have the same name."""
        return f"{self.result.subject}{self.found.subject.distinction}"

    @property
    def status(self) -> Status:
        return self.result.status

    def drawing(self) -> Drawing:
        """Return the failure as a drawing."""
        return self.result.drawing()

    def _heading(self) -> str:
        return self.result._heading()

    @property
    def seed(self) -> int | None:
        """The seed of the draws; None where no case was drawn, because a stored one fails still, or the subject cannot run here."""
        is_refused = self.result.verdict.kind in (NO_COMMUNICATOR, NO_MEMORY)
        return None if self.replayed is not None or is_refused else self.result.seed

    @property
    def reported_as(self) -> ReportedAs:
        """The kind of the result, also by what a list of known failures says of it."""
        if not self.known:
            return ReportedAs[self.status.name]
        return ReportedAs.UNEXPECTED if self.status is Status.COHERENT else ReportedAs.EXPECTED

    @property
    def is_reported(self) -> bool:
        """Return True if there is a text to print: it fails, also as expected, or passes unexpectedly."""
        return self.reported_as is not ReportedAs.COHERENT

    @property
    def is_wrong(self) -> bool:
        """Return True if somebody has to look at it: it fails and should not, or passes unexpectedly."""
        return self.reported_as not in (ReportedAs.COHERENT, ReportedAs.EXPECTED)

    @property
    def fault(self) -> str:
        """Equal for failures of one subject that read alike, since several checks often see one fault; a pass has its own."""
        seen_by = self.result.check if self.status is Status.COHERENT else ""
        headline = _INCIDENTAL.sub("", self.result.verdict.headline)
        return f"{self.found.subject.location} {self.status.value} {seen_by} {headline}"

    @property
    def is_misdeclared(self) -> bool:
        """Return True if the declaration of the subject is wrong, as every check of it would say."""
        return self.result.verdict.kind == MISDECLARED

    def listed(self, known: str) -> CheckResult:
        """The result of a check that a list of known failures has, which says `known` of it."""
        # A pass shows nothing of a failure that cannot be replayed.
        is_unseen = self.status is Status.COHERENT and self.has_unseen_failures
        return self if is_unseen else replace(self, known=known)


class SearchInterrupted(Terminated):
    """A signal has ended a search that had found a failure, or that was done; the result is its second argument."""

    @property
    def known(self) -> CheckResult:
        result: CheckResult = self.args[1]
        return result
