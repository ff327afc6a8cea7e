"""``--adjointlab-html``: the verdicts of a session's coherence tests as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from adjointlab.exit_codes import ExitCode
from adjointlab.pytest.xdist import XdistNode, hand_over, handed_over

if TYPE_CHECKING:
    from adjointlab.check_result import CheckResult
    from adjointlab.report.html_report import Entry

__all__ = ["HtmlPage"]

_KEY: Final = "adjointlab_html"


class HtmlPage:
    """Collects the results of a session, and writes them to `path` at its end.

    With pytest-xdist each worker sends its results to the controller, which writes them. With `path` None, on ranks other than the
    first, nothing is written. `tell` is called with a message if the page cannot be written.
    """

    def __init__(self, path: Path | None, tell: Callable[[str], None] | None = None) -> None:
        self._path, self._tell = path, tell
        self._entries: list[Entry] = []

    def add(self, result: CheckResult) -> None:
        """Add the result of a test."""
        from adjointlab.report.html_report import entry_of

        self._entries.append(entry_of(result))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: XdistNode, error: object) -> None:
        """Get the results of a worker that has ended; a worker that has crashed sends none."""
        from adjointlab.report.html_report import Entry

        self._entries += (Entry(**fields) for fields in handed_over(node, _KEY) or ())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page, or send the results if this is a worker."""
        if hand_over(session.config, _KEY, lambda: [asdict(entry) for entry in self._entries]):
            return
        problem = "" if self._path is None else self._write(self._path)
        if problem:
            session.config.issue_config_time_warning(pytest.PytestWarning(problem), stacklevel=2)
            if self._tell is not None:
                self._tell(problem)
            session.exitstatus = session.exitstatus or ExitCode.UNJUDGED

    def _write(self, path: Path) -> str:
        """Write the page; return a message if that fails."""
        from adjointlab.report.html_report import environment, html_of_entries
        from adjointlab.store.outputs import write_results

        page = html_of_entries(self._entries, environment(pytest=pytest.__version__))
        problem = write_results(path, page)
        return problem and f"--adjointlab-html: {problem}"
