"""A line in pytest's summary on the coherence test that an interrupt has ended."""

from __future__ import annotations

import pytest

__all__ = ["InterruptedTest"]


class InterruptedTest:
    """Takes the notes from the interrupting exception, which pytest would print in its heading with line breaks, and prints them below."""

    def __init__(self) -> None:
        self._running, self._line = "", ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember the running test."""
        self._running = nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Take the notes from the exception."""
        from adjointlab.store.interrupted import interrupted_at

        notes: list[str] = getattr(excinfo.value, "__notes__", [])
        if self._running and notes:
            self._line = interrupted_at(self._running, excinfo.value)
            notes.clear()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the line on the interrupted test."""
        if self._line:
            terminalreporter.write_line(self._line)
