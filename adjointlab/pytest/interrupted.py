"""The coherence test that an interrupt has ended, told in a line of its own."""

from __future__ import annotations

import pytest

__all__ = ["InterruptedTest"]


class InterruptedTest:
    """Tells in the end of the test that was at work: pytest's heading would have the notes of the exception, line breaks and all."""

    def __init__(self) -> None:
        self._running, self._told = "", ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note the test that runs."""
        self._running = nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Take the notes from the exception."""
        from adjointlab.store.interrupted import interrupted_at

        notes: list[str] = getattr(excinfo.value, "__notes__", [])
        if self._running and notes:
            self._told = interrupted_at(self._running, excinfo.value)
            notes.clear()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell of the test."""
        if self._told:
            terminalreporter.write_line(self._told)
