"""The result of one check of one subject, in the form that reports use: the search's result, and where its failure is stored."""

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
"""Kind of the verdict on a subject that needs a communicator in a world without one."""

NO_MEMORY = "without memory on the device"
"""Kind of the verdict on a subject that draws no tensors in memory of the requested device."""

_INCIDENTAL = re.compile(r"\b0x[0-9a-fA-F]+|^rank \d+ raised")
"""Parts of a headline that vary for one and the same fault: addresses, as in MPI's errors, and the first rank to raise."""


class ReportedAs(Enum):
    """Kinds of results in reports: the three statuses, and two for checks on the list of known failures."""

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
    known: str = ""  # the entry in the list of known failures: its position and the reason
    has_unseen_failures: bool = False
    """True if a stored failure cannot be replayed here, because it needs more ranks or a device."""

    @cached_property
    def subject(self) -> str:
        """The subject's name in reports, which distinguishes subjects of one module that have the same name."""
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
        """The seed of the draws; None if no case was drawn, because a stored one still fails or the subject cannot run here."""
        is_refused = self.result.verdict.kind in (NO_COMMUNICATOR, NO_MEMORY)
        return None if self.replayed is not None or is_refused else self.result.seed

    @property
    def reported_as(self) -> ReportedAs:
        """The kind of the result, taking the list of known failures into account."""
        if not self.known:
            return ReportedAs[self.status.name]
        return ReportedAs.UNEXPECTED if self.status is Status.COHERENT else ReportedAs.EXPECTED

    @property
    def is_reported(self) -> bool:
        """Return True if there is a text to print: the check failed, as expected or not, or passed unexpectedly."""
        return self.reported_as is not ReportedAs.COHERENT

    @property
    def is_wrong(self) -> bool:
        """Return True if the result needs attention: the check failed unexpectedly, or passed unexpectedly."""
        return self.reported_as not in (ReportedAs.COHERENT, ReportedAs.EXPECTED)

    @property
    def fault(self) -> str:
        """A key that is equal for failures of one subject with the same headline, since several checks often find one fault."""
        seen_by = self.result.check if self.status is Status.COHERENT else ""
        headline = _INCIDENTAL.sub("", self.result.verdict.headline)
        return f"{self.found.subject.location} {self.status.value} {seen_by} {headline}"

    @property
    def is_misdeclared(self) -> bool:
        """Return True if the declaration of the subject is wrong, so that all its checks give this result."""
        return self.result.verdict.kind == MISDECLARED

    def listed(self, known: str) -> CheckResult:
        """Return the result of a check that the list of known failures contains, in the entry `known`."""
        # A pass says nothing about a stored failure that cannot be replayed here.
        is_unseen = self.status is Status.COHERENT and self.has_unseen_failures
        return self if is_unseen else replace(self, known=known)


class SearchInterrupted(Terminated):
    """Raised when a signal ends a search that has a result: a failure found so far, or a finished search. The second argument is the result."""

    @property
    def known(self) -> CheckResult:
        result: CheckResult = self.args[1]
        return result
