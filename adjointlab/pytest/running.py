"""Running one coherence test: checks a subject, reports the result, and fails the test if there is something to report."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from adjointlab.exit_codes import ExitCode
from adjointlab.pytest.github import GithubJob
from adjointlab.pytest.html import HtmlPage
from adjointlab.worlds.exit_guard import before_forced_end, ended_by_user_code
from adjointlab.worlds.interrupts import signal_of

if TYPE_CHECKING:
    from adjointlab.check_result import CheckResult, SearchInterrupted
    from adjointlab.engine.search_result import SearchResult
    from adjointlab.engine.subject import Subject
    from adjointlab.pytest.profile import Profile
    from adjointlab.worlds.world import World

__all__ = ["COUNTS", "KNOWN", "CoherenceTest", "counts_property"]

COUNTS: Final = "adjointlab_counts"
"""Name of the property with the counts of a test's cases."""

KNOWN: pytest.StashKey[str] = pytest.StashKey()
"""The entry of a test in the list of known failures."""


@dataclass(frozen=True)
class CoherenceTest:
    """One test of a session. Its result is added to the HTML page and to the report to GitHub, if these are requested."""

    item: pytest.Item
    world: World
    profile: Profile
    page: HtmlPage | None
    job: GithubJob | None
    stderr: int  # a copy of the descriptor from before pytest captured it

    def run(self, subject: Subject, check: str) -> None:
        """Run a check of a subject."""
        from adjointlab.check_result import SearchInterrupted
        from adjointlab.worlds.interposition import follow_imports
        from adjointlab.worlds.world import Exhausted

        follow_imports()
        try:
            with before_forced_end(partial(self._report_end, subject, check)):
                result = self._checked(subject, check)
            text = self._report(result)
        except SearchInterrupted as interrupt:
            # The search has found a failure, which is reported before the session ends.
            text = self._report_interrupt(interrupt)
        except Exhausted as problem:
            # The leader decides that a job is exhausted, so this happens on all ranks in the same test.
            pytest.exit(str(problem), ExitCode.RESTART)
        if text:
            pytest.fail(text, pytrace=False)

    @property
    def _collectors(self) -> Sequence[HtmlPage | GithubJob]:
        return [each for each in (self.page, self.job) if each is not None]

    def _checked(self, subject: Subject, check: str) -> CheckResult:
        from adjointlab.engine.discovery import found_as
        from adjointlab.engine.search_result import Budget
        from adjointlab.session import check_with_corpus

        classes = [node.name for node in self.item.listchain() if isinstance(node, pytest.Class)]
        found = found_as(subject, (self.item.path, ".".join(classes)))
        profile, seed = self.profile, self.profile.seed_of(subject.name, check)
        budget = Budget(
            profile.cases, profile.ranks, seed, schedules=profile.schedules, device=profile.device
        )
        return check_with_corpus(self.world, found, check, budget, profile.folder)

    def _report(self, result: CheckResult) -> str:
        """Report a result; return the text with which the test fails, "" if it passes."""
        from adjointlab.pictures.text import is_encodable
        from adjointlab.report.failure_picture import failure_picture
        from adjointlab.report.failure_text import failure_text
        from adjointlab.store.files import working_directory

        for warning in result.result.warnings:
            warning.show()
        # The user's code may have changed the directory.
        with working_directory(self.item.config.invocation_params.dir):
            # Not `sys.stdout`, which captures the output of tests.
            has_signs = is_encodable(getattr(sys.__stdout__, "encoding", None))
            picture = failure_picture(result, unicode=has_signs)
            text = f"{failure_text(result)}\n\n{picture}".strip()
            reported = replace(result, known=self._why_known(result))
            for collector in self._collectors:
                collector.add(reported)
        if result.result.counts is not None:
            self.item.user_properties.append(
                counts_property(result.result, result.subject, result.found.reference)
            )
        return text

    def _report_interrupt(self, interrupt: SearchInterrupted) -> str:
        """Report the result so far of a search that a signal has ended, and end the session; return the text of the failure."""
        from adjointlab.report.failure_text import failure_text

        if self.job is not None:
            self.job.add_interrupt(interrupt)
        self.item.session.shouldstop = f"interrupted by {signal.Signals(signal_of(interrupt)).name}"
        text = failure_text(interrupt.known)
        for collector in self._collectors:
            collector.add(interrupt.known)
        return text

    def _report_end(self, subject: Subject, check: str, code: int, call: str) -> None:
        """Print the test that is running when user code ends the process by `call`, and report it to GitHub."""
        from adjointlab.store.files import working_directory
        from adjointlab.store.interrupted import checks_at_work

        def say(line: str) -> None:
            # pytest captures the standard streams.
            os.write(self.stderr, f"{line}\n".encode(errors="backslashreplace"))

        folder, checks = self.item.config.invocation_params.dir, {(subject.location, check): self.item.nodeid}
        with working_directory(folder):
            at_work = checks_at_work(self.profile.folder, checks, "user code")
            say(f"adjointlab: {at_work}")
            if self.job is not None:
                self.job.tell_end(f"{ended_by_user_code(call, folder)}. {at_work}", say)

    def _why_known(self, result: CheckResult) -> str:
        """Return the test's entry in the list of known failures, or the reason of its xfail mark; empty if no failure is expected."""
        mark = self.item.get_closest_marker("xfail")
        if KNOWN in self.item.stash or mark is None or not result.is_reported:
            return self.item.stash.get(KNOWN, "")
        return str(mark.kwargs.get("reason") or "it is marked with xfail")


def counts_property(result: SearchResult, subject: str = "", reference: str = "") -> tuple[str, str]:
    """Return the property of a test with its subject and the counts of its cases. It is part of pytest-xdist's reports and JUnit files."""
    assert result.counts is not None
    return COUNTS, json.dumps([subject or result.subject, reference, asdict(result.counts)])
